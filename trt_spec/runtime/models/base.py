"""What the engine and the drafters need of a model, and the part that all decoder-only families share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.runtime.attention import ForwardContext, GroupedQueryAttention
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.kernels.library import activation_dtype
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.linear import Linear
from trt_spec.runtime.norm import RmsNorm


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


def embed(token_ids: Tensor, embedding: Tensor) -> Tensor:
    """Rows of an embedding [V, H] for tokens [N], as activations [N, H]."""
    return F.embedding(token_ids, embedding).to(activation_dtype(embedding.dtype, embedding.device))


class ModelConfig(Protocol):
    """What every family's config has. `sliding_window` is None where each layer sees the whole context."""

    family: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    sliding_window: int | None
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any]
    tied_head: bool


class DecoderLayer(ABC):
    """One pre-norm decoder layer of any family: attention, then an MLP.

    Without an input_layernorm among its tensors, as in EAGLE-1 and 2, attention reads the input as it is.

    Attributes:
        mlp: [N, H] -> [N, H].
    """

    mlp: Callable[[Tensor], Tensor]

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor], prefix: str):
        def norm(name: str) -> RmsNorm:
            return RmsNorm(tensors[f"{prefix}{name}.weight"], config.rms_norm_eps)

        self.input_norm = norm("input_layernorm") if f"{prefix}input_layernorm.weight" in tensors else None
        self.post_norm = norm("post_attention_layernorm")

    def __call__(self, x: Tensor, index: int, context: ForwardContext) -> Tensor:
        """x [N, H] -> [N, H], writing this layer's rows to layer `index` of the cache."""
        return self.from_normed(x, x if self.input_norm is None else self.input_norm(x), index, context)

    def from_normed(self, x: Tensor, normed: Tensor, index: int, context: ForwardContext) -> Tensor:
        """The layer with residual x [N, H] and an already normed input of attention [N, width], EAGLE-3's 2H wide."""
        x = x + self.self_attention(normed, index, context)
        return x.add_(self.mlp(self.post_norm(x)))

    @abstractmethod
    def self_attention(self, normed: Tensor, index: int, context: ForwardContext) -> Tensor:
        """[N, width] -> [N, H], writing this layer's rows to the cache."""


class Model(ABC):
    """A causal language model on packed batches: embedding, decoder layers, final norm and head.

    Weights are packed at construction and never change. A family says what its attention and its layers are.

    Args:
        tensors: by stored name, in one dtype, which is that of weights and KV cache.
        num_positions: length of the rotary table.

    Attributes:
        activation_dtype: of what layers hand on, hidden states included: float32 where compiled kernels run.
        embedding: [V, H], for drafters that share it.
        head_weight: [V, H]; the same tensor as `embedding` where the head is tied.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor], num_positions: int):
        self.embedding = tensors["model.embed_tokens.weight"]
        self.config, self.num_positions = config, num_positions
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        self.activation_dtype = activation_dtype(self.dtype, self.device)
        self.attention = self.make_attention(config, num_positions, self.dtype, self.device)
        self.layers = [self.make_layer(tensors, f"model.layers.{index}.") for index in range(config.num_hidden_layers)]
        self.norm = RmsNorm(tensors["model.norm.weight"], config.rms_norm_eps)
        self.head_weight = self.embedding if config.tied_head else tensors["lm_head.weight"]
        self.head = Linear(self.head_weight)

    @staticmethod
    @abstractmethod
    def make_attention(
        config: ModelConfig, num_positions: int, dtype: torch.dtype, device: torch.device
    ) -> GroupedQueryAttention:
        """What the layers attend with."""

    @abstractmethod
    def make_layer(self, tensors: Mapping[str, Tensor], prefix: str) -> DecoderLayer:
        """A layer of this family on `attention`, from the tensors below `prefix`."""

    @property
    def vocab_size(self) -> int:
        """Rows of the head, padding included."""
        return self.head_weight.shape[0]

    def make_cache(self, num_slots: int, slot_len: int) -> KVCache:
        """An empty KV cache for this model."""
        return self.attention.make_cache(len(self.layers), num_slots, slot_len)

    def forward(self, batch: Batch, cache: KVCache, capture: Sequence[int] = ()) -> Hidden:
        """Runs all layers on a packed batch and writes its rows to the cache.

        Args:
            capture: layer indices whose input (the residual stream before that layer; `num_hidden_layers` for the
                stream before the final norm) is returned in `Hidden.aux`.
        """
        x, context = embed(batch.token_ids, self.embedding), self.attention.context(batch, cache)
        captured = []
        for index, layer in enumerate(self.layers):
            if index in capture:
                captured.append(x)
            x = layer(x, index, context)
        if len(self.layers) in capture:
            captured.append(x)
        return Hidden(self.norm(x), torch.cat(captured, dim=-1) if captured else None)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, H] -> logits [R, V] in float32 (float64 for a float64 model)."""
        logits = self.head(hidden)
        return logits if logits.dtype is torch.float64 else logits.float()
