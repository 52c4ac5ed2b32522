"""The contract of a draft head that reads features, and what the heads share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.runtime.attention import GroupedQueryAttention
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.linear import Linear
from trt_spec.runtime.models.base import Hidden, Model


class FeatureHead(ABC):
    """A draft head that reads pairs (feature of position t, token t + 1) and predicts token t + 2.

    The pair of position t has rotary position t and cache row t. N packed rows, R rows that need logits, F the width of
    a feature, V the target's vocabulary. Weights and cache have the
    target's dtype, features that of its activations.

    Attributes:
        attention: of its layers.
        capture: target layers whose input it wants, see `Model.forward`; () for none.
        num_layers: 1 where one layer is applied again and again; J where layer j drafts at depth j. Drafts of the
            latter are chains of at most J.
        max_positions: positions that the head was made for; None where the target's own limit is the only one.
    """

    capture: tuple[int, ...] = ()
    num_layers = 1
    max_positions: int | None = None

    def __init__(self, target: Model, attention: GroupedQueryAttention):
        self.dtype, self.device, self.attention = target.dtype, target.device, attention

    def make_cache(self, num_slots: int, slot_len: int) -> KVCache:
        """An empty KV cache."""
        return self.attention.make_cache(self.num_layers, num_slots, slot_len)

    def target_features(self, hidden: Hidden) -> Tensor:
        """The features [N, F] of positions that the target has processed: its state behind the final norm."""
        return hidden.last

    @abstractmethod
    def forward(self, features: Tensor, batch: Batch, cache: KVCache, layer: int = 0) -> Tensor:
        """Reads a packed batch of pairs and writes its rows to a layer of the cache.

        Args:
            features: [N, F], one per row.
            batch: the tokens of the pairs, with the positions of their features.

        Returns:
            [N, F]: what `logits` reads, and the features of the next depth.
        """

    @abstractmethod
    def logits(self, features: Tensor, layer: int = 0) -> Tensor:
        """Outputs of `forward` [R, F] -> [R, V] in float32, −inf outside the draft vocabulary."""


class OutputHead:
    """Draft logits over the target's vocabulary.

    Args:
        weight: [draft vocabulary, H].
        vocab_size: V. Rows beyond it are padding and are cut; what is missing gets −inf.
        target_ids: [draft vocabulary] the target's id of each row; None where row i is id i.
    """

    def __init__(self, weight: Tensor, vocab_size: int, target_ids: Tensor | None = None):
        self.vocab_size, self.target_ids = vocab_size, target_ids
        self.linear = Linear(weight if target_ids is not None else weight[:vocab_size].contiguous())

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden [R, H] -> [R, V] in float32 (float64 for float64 weights)."""
        logits = self.linear(hidden)
        logits = logits if logits.dtype is torch.float64 else logits.float()
        if self.target_ids is not None:
            return logits.new_full((len(logits), self.vocab_size), float("-inf")).index_copy_(
                1, self.target_ids, logits
            )
        return F.pad(logits, (0, self.vocab_size - logits.shape[-1]), value=float("-inf"))


def output_head(own: Tensor | None, target: Model, target_ids: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """The output of a head: its own, see `OutputHead`, or the target's where it has none that differs."""
    if target_ids is None and own_or_shared(own, target.head_weight) is target.head_weight:
        return target.logits
    return OutputHead(own, target.vocab_size, target_ids)


def own_or_shared(own: Tensor | None, shared: Tensor) -> Tensor:
    """A head's own copy of a tensor where it differs from the target's; equal copies are not kept twice."""
    return shared if own is None or torch.equal(own, shared) else own


def fit_embedding(embedding: Tensor, target: Model) -> Tensor:
    """An embedding with a row for every id of the target: zeros for ids that it lacks, which prompts may hold."""
    missing = target.vocab_size - len(embedding)
    return embedding if missing <= 0 else F.pad(embedding, (0, 0, 0, missing))
