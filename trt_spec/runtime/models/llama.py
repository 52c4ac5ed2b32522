"""The native Llama-like forward: Llama, Mistral, Qwen2, Qwen3, SmolLM2 and MiMo.

Source of the arithmetic: `transformers/models/llama/modeling_llama.py` and its siblings; the tests hold this file to
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from trt_spec.checkpoints.llama import LlamaConfig
from trt_spec.runtime.attention import ForwardContext, GroupedQueryAttention
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.kernels.stack import CompiledStack, compiled_stack
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.linear import Linear, linear_of
from trt_spec.runtime.mlp import GatedMLP
from trt_spec.runtime.models.base import DecoderLayer, Hidden, Model, embed
from trt_spec.runtime.norm import RmsNorm
from trt_spec.runtime.rope import RotaryTable


class LlamaLayer(DecoderLayer):
    """Grouped-query attention, then a gated SiLU MLP."""

    def __init__(
        self, config: LlamaConfig, tensors: Mapping[str, Tensor], prefix: str, attention: GroupedQueryAttention
    ):
        super().__init__(config, tensors, prefix)
        self.config, self.attention = config, attention
        self.q_norm, self.k_norm = (
            RmsNorm(tensors[f"{prefix}self_attn.{name}_norm.weight"], config.rms_norm_eps) if config.qk_norm else None
            for name in "qk"
        )
        self.qkv = linear_of(tensors, *(f"{prefix}self_attn.{name}_proj" for name in "qkv"))
        self.output = linear_of(tensors, f"{prefix}self_attn.o_proj")
        self.mlp = GatedMLP(tensors, f"{prefix}mlp.")

    @property
    def linears(self) -> list[Linear]:
        """What one row has to move through, in order."""
        return [self.qkv, self.output, *self.mlp.linears]

    @cached_property
    def compiled(self) -> CompiledStack | None:
        """This layer alone as one call of the compiled kernels; None where torch computes."""
        return compiled_stack(self.config, [self])

    def __call__(self, x: Tensor, index: int, context: ForwardContext) -> Tensor:
        """See `DecoderLayer`."""
        if self.compiled is None:
            return super().__call__(x, index, context)
        return self.compiled(x, context, [index])[0]

    def from_normed(self, x: Tensor, normed: Tensor, index: int, context: ForwardContext) -> Tensor:
        """See `DecoderLayer`."""
        if self.compiled is None:
            return super().from_normed(x, normed, index, context)
        return self.compiled(x, context, [index], normed=normed)[0]

    def self_attention(self, normed: Tensor, index: int, context: ForwardContext) -> Tensor:
        """See `DecoderLayer`."""
        config = self.config
        qkv = self.qkv(normed)
        heads = qkv[:, : config.q_width + config.kv_width].unflatten(-1, (-1, config.head_dim))
        if self.q_norm is not None:  # Qwen3
            queries, keys = heads.split((config.num_attention_heads, config.num_key_value_heads), dim=1)
            queries.copy_(self.q_norm(queries))
            keys.copy_(self.k_norm(keys))
        context.rotate_(heads)
        context.write(index, qkv[:, config.q_width :])
        return self.output(self.attention(qkv[:, : config.q_width], index, context))


class LlamaModel(Model):
    """A Llama-like causal language model on packed batches."""

    config: LlamaConfig

    @cached_property
    def compiled(self) -> CompiledStack | None:
        """All layers and the final norm as one call of the compiled kernels; None where torch computes."""
        return compiled_stack(self.config, self.layers, self.norm)

    def forward(self, batch: Batch, cache: KVCache, capture: Sequence[int] = ()) -> Hidden:
        """See `Model`."""
        if self.compiled is None:
            return super().forward(batch, cache, capture)
        x, context = embed(batch.token_ids, self.embedding), self.attention.context(batch, cache)
        return Hidden(*self.compiled(x, context, range(len(self.layers)), capture))

    @staticmethod
    def make_attention(
        config: LlamaConfig, num_positions: int, dtype: torch.dtype, device: torch.device
    ) -> GroupedQueryAttention:
        """See `Model`."""
        rope = RotaryTable(config.head_dim, config, num_positions, dtype, device)
        return GroupedQueryAttention(config.num_attention_heads, config.num_key_value_heads, config.head_dim, rope)

    def make_layer(self, tensors: Mapping[str, Tensor], prefix: str) -> LlamaLayer:
        """See `Model`."""
        return LlamaLayer(self.config, tensors, prefix, self.attention)
