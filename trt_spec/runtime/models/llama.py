"""The native Llama-like forward: Llama, Mistral, Qwen2, Qwen3, SmolLM2 and MiMo.

Source of the arithmetic: `transformers/models/llama/modeling_llama.py` and its siblings; the tests hold this file to
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from trt_spec.checkpoints.llama import LlamaConfig
from trt_spec.runtime.attention import GroupedQueryAttention
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.linear import Linear, fuse
from trt_spec.runtime.mlp import GatedMLP
from trt_spec.runtime.models.base import DecoderModel
from trt_spec.runtime.norm import NormFn, make_rms_norm
from trt_spec.runtime.rope import RotaryTable


class DecoderLayer:
    """One pre-norm decoder layer: grouped-query attention, then a gated SiLU MLP.

    Without an input_layernorm among its tensors, as in EAGLE-1 and 2, attention reads the input as it is.
    """

    def __init__(
        self, config: LlamaConfig, tensors: Mapping[str, Tensor], prefix: str, attention: GroupedQueryAttention
    ):
        def get(name: str) -> Tensor | None:
            return tensors.get(prefix + name)

        def fused(names: Sequence[str]):
            return Linear(
                fuse(*(get(f"{name}.weight") for name in names)), fuse(*(get(f"{name}.bias") for name in names))
            )

        def norm(name: str) -> NormFn:
            return make_rms_norm(get(f"{name}.weight"), config.rms_norm_eps)

        self.config, self.attention = config, attention
        self.input_norm = norm("input_layernorm") if f"{prefix}input_layernorm.weight" in tensors else None
        self.post_norm = norm("post_attention_layernorm")
        self.q_norm, self.k_norm = (norm(f"self_attn.{name}_norm") if config.qk_norm else None for name in "qk")
        self.qkv = fused([f"self_attn.{name}_proj" for name in "qkv"])
        self.output = fused(["self_attn.o_proj"])
        self.mlp = GatedMLP(tensors, prefix + "mlp.")

    @property
    def linears(self) -> list[Linear]:
        """What one row has to move through, in order."""
        return [self.qkv, self.output, *self.mlp.linears]

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
        normed = x if self.input_norm is None else self.input_norm(x)
        return self.from_normed(x, normed, cache, index, batch, masks, rope, cos_sin)

    def from_normed(self, x: Tensor, normed: Tensor, cache, index, batch, masks, rope, cos_sin) -> Tensor:
        """The layer with residual x [N, H] and an already normed input of attention [N, width], EAGLE-3's 2H wide."""
        x = x + self.self_attention(normed, cache, index, batch, masks, rope, cos_sin)
        return x.add_(self.mlp(self.post_norm(x)))

    def self_attention(self, normed: Tensor, cache, index, batch, masks, rope, cos_sin) -> Tensor:
        """Attention on an already normed input [N, width], writing its keys and values to the cache."""
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


class LlamaModel(DecoderModel):
    """A Llama-like causal language model on packed batches."""

    config: LlamaConfig

    def __init__(self, config: LlamaConfig, tensors: Mapping[str, Tensor], num_positions: int):
        attention = GroupedQueryAttention(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        layers = [
            DecoderLayer(config, tensors, f"model.layers.{index}.", attention)
            for index in range(config.num_hidden_layers)
        ]
        super().__init__(
            config,
            tensors,
            num_positions,
            layers=layers,
            attention=attention,
            rope_dim=config.head_dim,
            cache_width=2 * config.kv_width,
        )
