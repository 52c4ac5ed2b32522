"""What the engine and the drafters need of a model, and the part that all decoder-only families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.runtime.attention import GroupedQueryAttention
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.linear import Linear
from trt_spec.runtime.norm import make_rms_norm
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


class Model(Protocol):
    """A causal language model on packed batches.

    Attributes:
        dtype: of weights, KV cache and hidden states.
        num_positions: length of the rotary table.
        embedding: [V, H], for drafters that share it.
        head_weight: [V, H]; the same tensor as `embedding` where the head is tied.
    """

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    num_positions: int
    embedding: Tensor
    head_weight: Tensor

    @property
    def vocab_size(self) -> int:
        """Rows of the head, padding included."""

    def make_cache(self, num_slots: int, slot_len: int, num_layers: int | None = None) -> KVCache:
        """An empty KV cache for this model, or for `num_layers` layers of its make."""

    def forward(self, batch: Batch, cache: KVCache, capture: Sequence[int] = ()) -> Hidden:
        """Runs all layers on a packed batch and writes its rows to the cache.

        Args:
            capture: layer indices whose input (the residual stream before that layer; `num_hidden_layers` for the
                stream before the final norm) is returned in `Hidden.aux`.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, H] -> logits [R, V] in float32 (float64 for a float64 model)."""


class Layer(Protocol):
    """One decoder layer of any family."""

    def __call__(
        self,
        x: Tensor,
        cache: KVCache,
        index: int,
        batch: Batch,
        masks: list[Tensor | None],
        rope: RotaryTable,
        cos_sin: tuple[Tensor, Tensor],
    ) -> Tensor:
        """x [N, H] -> [N, H], writing this layer's rows to layer `index` of the cache."""


class DecoderModel:
    """Embedding, decoder layers, final norm and head: a `Model` but for what its family's layers are.

    Weights are packed at construction and never change.

    Args:
        layers: one per hidden layer of the config.
        attention: shared by the layers; gives the masks of a step.
        rope_dim: columns of a head that turn with the position.
        cache_width: columns of a cached token in one layer.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        num_positions: int,
        *,
        layers: Sequence[Layer],
        attention: GroupedQueryAttention,
        rope_dim: int,
        cache_width: int,
    ):
        embedding = tensors["model.embed_tokens.weight"]
        self.config, self.dtype, self.device = config, embedding.dtype, embedding.device
        self.num_positions, self.cache_width = num_positions, cache_width
        self.attention = attention
        self.rope = RotaryTable(
            rope_dim,
            config.rope_theta,
            config.rope_scaling,
            config.max_position_embeddings,
            num_positions,
            self.dtype,
            self.device,
        )
        self.embedding = embedding
        self.layers = list(layers)
        self.norm = make_rms_norm(tensors["model.norm.weight"], config.rms_norm_eps)
        self.head_weight = embedding if config.tied_head else tensors["lm_head.weight"]
        self.head = Linear(self.head_weight)

    @property
    def vocab_size(self) -> int:
        return self.head_weight.shape[0]

    def make_cache(self, num_slots: int, slot_len: int, num_layers: int | None = None) -> KVCache:
        """See `Model.make_cache`."""
        num_layers = num_layers or self.config.num_hidden_layers
        return KVCache(num_layers, num_slots, slot_len, self.cache_width, self.dtype, self.device)

    def forward(self, batch: Batch, cache: KVCache, capture: Sequence[int] = ()) -> Hidden:
        """See `Model.forward`."""
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
        """See `Model.logits`."""
        logits = self.head(hidden)
        return logits if logits.dtype is torch.float64 else logits.float()
