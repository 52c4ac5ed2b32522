"""The native Llama-like forward: Llama, Mistral, Qwen2, Qwen3, SmolLM2 and MiMo.

Source of the arithmetic: `transformers/models/llama/modeling_llama.py` and its siblings; the tests hold this file to
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.checkpoints.llama import LlamaConfig
from trt_spec.runtime.attention import GroupedQueryAttention
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.linear import fuse, make_linear
from trt_spec.runtime.norm import NormFn, make_rms_norm
from trt_spec.runtime.rope import RotaryTable


class Hidden(NamedTuple):
    """What a forward leaves behind for heads and drafters.

    Attributes:
        last: [N, H] after the final norm; the head reads this.
        aux: [N, C · H] residual stream at the captured layers, concatenated; None where nothing was asked for.
    """

    last: Tensor
    aux: Tensor | None = None

    def rows(self, start: int, end: int) -> Hidden:
        """The part [start, end) of the packed rows."""
        return Hidden(self.last[start:end], None if self.aux is None else self.aux[start:end])


class DecoderLayer:
    """One pre-norm decoder layer: grouped-query attention, then a gated SiLU MLP."""

    def __init__(
        self, config: LlamaConfig, tensors: Mapping[str, Tensor], prefix: str, attention: GroupedQueryAttention
    ):
        def get(name: str) -> Tensor | None:
            return tensors.get(prefix + name)

        def fused(names: Sequence[str]):
            return make_linear(
                fuse(*(get(f"{name}.weight") for name in names)), fuse(*(get(f"{name}.bias") for name in names))
            )

        def norm(name: str) -> NormFn:
            return make_rms_norm(get(f"{name}.weight"), config.rms_norm_eps)

        self.config, self.attention = config, attention
        self.input_norm = norm("input_layernorm")
        self.post_norm = norm("post_attention_layernorm")
        self.q_norm, self.k_norm = (norm(f"self_attn.{name}_norm") if config.qk_norm else None for name in "qk")
        self.qkv = fused([f"self_attn.{name}_proj" for name in "qkv"])
        self.output = fused(["self_attn.o_proj"])
        self.gate_up = fused(["mlp.gate_proj", "mlp.up_proj"])
        self.down = fused(["mlp.down_proj"])

    def __call__(
        self,
        x: Tensor,
        cache: KVCache,
        index: int,
        batch: Batch,
        masks: list[Tensor | None],
        rope: RotaryTable,
        cos_sin,
    ) -> Tensor:
        """x [N, H] -> [N, H], writing this layer's keys and values to the cache."""
        x = x + self.self_attention(self.input_norm(x), cache, index, batch, masks, rope, cos_sin)
        return x.add_(self.mlp(self.post_norm(x)))

    def self_attention(self, normed: Tensor, cache, index, batch, masks, rope, cos_sin) -> Tensor:
        """Attention on an already normed input [N, width]; EAGLE heads call this with inputs of their own."""
        config = self.config
        qkv = self.qkv(normed)
        heads = qkv[:, : config.q_width + config.kv_width].unflatten(-1, (-1, config.head_dim))
        if self.q_norm is not None:
            self._norm_heads_(heads)
        rope.rotate_(heads, *cos_sin)
        cache.layers[index].index_copy_(0, batch.cache_rows, qkv[:, config.q_width :])
        return self.output(self.attention(qkv[:, : config.q_width], cache, index, batch, masks))

    def _norm_heads_(self, heads: Tensor) -> None:
        """Qwen3's RMS norm of every query and key head, in place."""
        queries, keys = heads.split((self.config.num_attention_heads, self.config.num_key_value_heads), dim=1)
        queries.copy_(self.q_norm(queries))
        keys.copy_(self.k_norm(keys))

    def mlp(self, normed: Tensor) -> Tensor:
        gate, up = self.gate_up(normed).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


class LlamaModel:
    """A Llama-like causal language model on packed batches. Weights are packed at construction and never change."""

    def __init__(self, config: LlamaConfig, tensors: Mapping[str, Tensor], num_positions: int):
        embedding = tensors["model.embed_tokens.weight"]
        self.config, self.dtype, self.device = config, embedding.dtype, embedding.device
        self.num_positions = num_positions
        self.attention = GroupedQueryAttention(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self.rope = RotaryTable(
            config.head_dim,
            config.rope_theta,
            config.rope_scaling,
            config.max_position_embeddings,
            num_positions,
            self.dtype,
            self.device,
        )
        self.embedding = embedding
        self.layers = [
            DecoderLayer(config, tensors, f"model.layers.{index}.", self.attention)
            for index in range(config.num_hidden_layers)
        ]
        self.norm = make_rms_norm(tensors["model.norm.weight"], config.rms_norm_eps)
        self.head_weight = embedding if config.tied_head else tensors["lm_head.weight"]
        self.head = make_linear(self.head_weight)

    @property
    def vocab_size(self) -> int:
        return self.head_weight.shape[0]

    def make_cache(self, num_slots: int, slot_len: int) -> KVCache:
        width = 2 * self.config.kv_width
        return KVCache(self.config.num_hidden_layers, num_slots, slot_len, width, self.dtype, self.device)

    def forward(self, batch: Batch, cache: KVCache, capture: Sequence[int] = ()) -> Hidden:
        """Runs all layers on a packed batch and writes its keys and values.

        Args:
            capture: layer indices whose input (the residual stream before that layer; `num_hidden_layers` for the
                stream before the final norm) is returned in `Hidden.aux`.
        """
        x = F.embedding(batch.token_ids, self.embedding)
        masks = self.attention.folded_masks(batch)
        cos_sin = self.rope.at(batch.positions)
        captured = []
        for index, layer in enumerate(self.layers):
            if index in capture:
                captured.append(x)
            x = layer(x, cache, index, batch, masks, self.rope, cos_sin)
        if len(self.layers) in capture:
            captured.append(x)
        return Hidden(self.norm(x), torch.cat(captured, dim=-1) if captured else None)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, H] -> logits [R, V] in float32."""
        return self.head(hidden).float()
