"""The native DeepSeek-V3 forward: multi-head latent attention on compressed rows, and routed experts.

Source of the arithmetic: `transformers/models/deepseek_v3/modeling_deepseek_v3.py`; the tests hold this file to it.
What differs is the order of the products: the reference unfolds every cached latent c into keys W_uk·c and values
W_uv·c; here q·(W_uk·c) is computed as (W_ukᵀ·q)·c, and the values are unfolded once, after attention. So the cache
holds, and attention reads, kv_lora_rank + qk_rope_head_dim numbers per token instead of a key and a value per head.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trt_spec.checkpoints.deepseek_v3 import DeepseekV3Config
from trt_spec.runtime.attention import ForwardContext, LatentAttention
from trt_spec.runtime.experts import GroupedRouter, RoutedExperts
from trt_spec.runtime.kernels.library import activation_dtype
from trt_spec.runtime.linear import Linear, fuse
from trt_spec.runtime.mlp import GatedMLP
from trt_spec.runtime.models.base import DecoderLayer, Model
from trt_spec.runtime.norm import RmsNorm
from trt_spec.runtime.rope import RotaryTable, scaling_factor, yarn_mscale

LATENT_NORM_EPS = 1e-6  # of both latent norms; the reference does not take it from the config


class LatentSelfAttention:
    """Multi-head latent attention, absorbed: queries are carried into latent space and attend to cached latents."""

    def __init__(
        self, config: DeepseekV3Config, tensors: Mapping[str, Tensor], prefix: str, attention: LatentAttention
    ):
        def get(name: str) -> Tensor | None:
            return tensors.get(prefix + name)

        self.config, self.attention = config, attention
        nope, rope, heads = config.qk_nope_head_dim, config.qk_rope_head_dim, config.num_attention_heads
        kv_down = [get(f"kv_a_proj_with_mqa.{kind}") for kind in ("weight", "bias")]
        q_up = get("q_proj.weight" if config.q_lora_rank is None else "q_b_proj.weight")
        if config.rope_interleave:
            kv_down = [None if rows is None else _halves_first(rows, 1, rope) for rows in kv_down]
            q_up = _halves_first(q_up, heads, rope)
        if config.q_lora_rank is None:
            # The reference has no bias on q_proj, so the fused projection gets zeros there.
            q_down = [q_up, None if kv_down[1] is None else q_up.new_zeros(len(q_up))]
            self.q_norm = self.q_up = None
        else:
            q_down = [get(f"q_a_proj.{kind}") for kind in ("weight", "bias")]
            self.q_norm, self.q_up = RmsNorm(get("q_a_layernorm.weight"), LATENT_NORM_EPS), Linear(q_up)
        self.down = Linear(fuse(q_down[0], kv_down[0]), fuse(q_down[1], kv_down[1]))
        self.down_widths = (len(q_down[0]), config.cache_width)
        self.kv_norm = RmsNorm(get("kv_a_layernorm.weight"), LATENT_NORM_EPS)
        key_up, value_up = get("kv_b_proj.weight").unflatten(0, (heads, -1)).split((nope, config.v_head_dim), dim=1)
        dtype = activation_dtype(key_up.dtype, key_up.device)
        self.key_up = key_up.to(dtype).contiguous()  # W_uk [heads, nope, rank]
        self.value_up = value_up.to(dtype).transpose(1, 2).contiguous()  # W_uvᵀ [heads, rank, v]
        self.output = Linear(get("o_proj.weight"), get("o_proj.bias"))

    def __call__(self, normed: Tensor, index: int, context: ForwardContext) -> Tensor:
        """normed [N, H] -> [N, H], writing the compressed rows of layer `index`."""
        config = self.config
        q, rows = self.down(normed).split(self.down_widths, dim=-1)
        latent, key = rows.split((config.kv_lora_rank, config.qk_rope_head_dim), dim=-1)
        latent.copy_(self.kv_norm(latent))
        context.rotate_(key[:, None])
        context.write(index, rows)
        if self.q_up is not None:
            q = self.q_up(self.q_norm(q))
        q_nope, q_rope = q.unflatten(-1, (-1, config.head_dim)).split(
            (config.qk_nope_head_dim, config.qk_rope_head_dim), dim=-1
        )
        context.rotate_(q_rope)
        q = torch.cat((_per_head(q_nope, self.key_up), q_rope), dim=-1).flatten(1)
        latents = self.attention(q, index, context).unflatten(-1, (-1, config.kv_lora_rank))
        return self.output(_per_head(latents, self.value_up).flatten(1))


def _halves_first(rows: Tensor, num_heads: int, rope_dim: int) -> Tensor:
    """Reorders the output rows of a projection [heads · width, …] so that `RotaryTable` can rotate what it gives.

    The last `rope_dim` rows of each head come as pairs (0, 1), (2, 3), …; the table wants all first members, then all
    second ones. Scores do not change when queries and keys are reordered alike.
    """
    heads = rows.unflatten(0, (num_heads, -1))
    plain, rotary = heads[:, :-rope_dim], heads[:, -rope_dim:]
    return torch.cat((plain, rotary[:, 0::2], rotary[:, 1::2]), dim=1).flatten(0, 1)


def _per_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, heads, in] times weight [heads, in, out], head by head -> [N, heads, out]."""
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)


class MixtureOfExperts:
    """Routed experts plus the shared ones, which every row uses."""

    def __init__(self, config: DeepseekV3Config, tensors: Mapping[str, Tensor], prefix: str):
        self.router = GroupedRouter(
            tensors[f"{prefix}gate.weight"],
            tensors[f"{prefix}gate.e_score_correction_bias"],
            num_groups=config.n_group,
            num_chosen_groups=config.topk_group,
            num_chosen=config.num_experts_per_tok,
            is_normalised=config.norm_topk_prob,
            scale=config.routed_scaling_factor,
        )
        self.experts = RoutedExperts(*_stacked_experts(config, tensors, f"{prefix}experts."))
        self.shared = GatedMLP(tensors, f"{prefix}shared_experts.") if config.n_shared_experts else None

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, H] -> [N, H]."""
        routed = self.experts(x, *self.router(x))
        return routed if self.shared is None else routed.add_(self.shared(x))


def _stacked_experts(config: DeepseekV3Config, tensors: Mapping[str, Tensor], prefix: str) -> tuple[Tensor, Tensor]:
    """(gate and up [E, 2 · I, H], down [E, H, I]) from one tensor per expert or from the fused ones."""
    if config.has_fused_experts:
        return tensors[f"{prefix}gate_up_proj"], tensors[f"{prefix}down_proj"]

    def stack(name: str) -> Tensor:
        return torch.stack([tensors[f"{prefix}{expert}.{name}.weight"] for expert in range(config.n_routed_experts)])

    return torch.cat((stack("gate_proj"), stack("up_proj")), dim=1), stack("down_proj")


class DeepseekV3Layer(DecoderLayer):
    """Latent attention, then experts or one dense MLP, which is read off the tensors."""

    def __init__(
        self, config: DeepseekV3Config, tensors: Mapping[str, Tensor], prefix: str, attention: LatentAttention
    ):
        super().__init__(config, tensors, prefix)
        self.latent_attention = LatentSelfAttention(config, tensors, f"{prefix}self_attn.", attention)
        has_experts = f"{prefix}mlp.gate.weight" in tensors
        self.mlp = (
            MixtureOfExperts(config, tensors, f"{prefix}mlp.") if has_experts else GatedMLP(tensors, f"{prefix}mlp.")
        )

    def self_attention(self, normed: Tensor, index: int, context: ForwardContext) -> Tensor:
        """See `DecoderLayer`."""
        return self.latent_attention(normed, index, context)


class DeepseekV3Model(Model):
    """A DeepSeek-V3-like causal language model on packed batches; its MTP layers are the `mtp` drafter's."""

    config: DeepseekV3Config

    @staticmethod
    def make_attention(
        config: DeepseekV3Config, num_positions: int, dtype: torch.dtype, device: torch.device
    ) -> LatentAttention:
        """See `Model`."""
        rope = RotaryTable(config.qk_rope_head_dim, config, num_positions, dtype, device)
        return LatentAttention(config.num_attention_heads, config.kv_lora_rank, rope, softmax_scale(config))

    def make_layer(self, tensors: Mapping[str, Tensor], prefix: str) -> DeepseekV3Layer:
        """See `Model`."""
        return DeepseekV3Layer(self.config, tensors, prefix, self.attention)


def softmax_scale(config: DeepseekV3Config) -> float:
    """head_dim^−½, times mscale² where the scaling sets mscale_all_dim: YaRN's temperature, on all columns alike."""
    scale, scaling = config.head_dim**-0.5, config.rope_scaling
    if not scaling.get("mscale_all_dim"):
        return scale
    factor = scaling_factor(scaling, config.max_position_embeddings)
    return scale * yarn_mscale(factor, scaling["mscale_all_dim"]) ** 2
