"""The contract of a draft head that reads features, and what the heads share."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.checkpoints.llama import LlamaConfig
from trt_spec.runtime.attention import GroupedQueryAttention
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.linear import Linear
from trt_spec.runtime.models.base import Hidden, Model
from trt_spec.runtime.rope import RotaryTable


class FeatureHead(Protocol):
    """A draft layer that reads pairs (feature of position t, token t + 1) and predicts token t + 2.

    The pair of position t has rotary position t and cache row t. N packed rows, R rows that need logits, F the width of
    a feature, V the target's vocabulary.

    Attributes:
        capture: target layers whose input it wants, see `Model.forward`; () for none.
        num_turns: 1 where one layer is applied again and again; J where J layers take turns, layer j at depth j.
            Drafts of the latter are chains of at most J.
        max_positions: positions that the head was made for; None where the target's own limit is the only one.
        dtype: of features, weights and cache.
    """

    capture: tuple[int, ...]
    num_turns: int
    max_positions: int | None
    dtype: torch.dtype
    device: torch.device

    def make_cache(self, num_slots: int, slot_len: int) -> KVCache:
        """An empty KV cache with one layer per turn."""

    def target_features(self, hidden: Hidden) -> Tensor:
        """The features [N, F] of positions that the target has processed."""

    def forward(self, features: Tensor, batch: Batch, cache: KVCache, turn: int = 0) -> Tensor:
        """Reads a packed batch of pairs and writes its rows to layer `turn` of the cache.

        Args:
            features: [N, F], one per row.
            batch: the tokens of the pairs, with the positions of their features.

        Returns:
            [N, F]: what `logits` reads, and the features of the next depth.
        """

    def logits(self, features: Tensor, turn: int = 0) -> Tensor:
        """Outputs of `forward` [R, F] -> [R, V] in float32, −inf outside the draft vocabulary."""


class DraftLayer:
    """The attention of one Llama-like draft layer, with the rotary table and the cache that its own geometry needs."""

    def __init__(self, config: LlamaConfig, num_positions: int, dtype: torch.dtype, device: torch.device):
        self.config, self.dtype, self.device = config, dtype, device
        self.attention = GroupedQueryAttention(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self.rope = RotaryTable(
            config.head_dim,
            config.rope_theta,
            config.rope_scaling,
            config.max_position_embeddings,
            num_positions,
            dtype,
            device,
        )

    def make_cache(self, num_slots: int, slot_len: int) -> KVCache:
        """An empty cache of one layer."""
        return KVCache(1, num_slots, slot_len, 2 * self.config.kv_width, self.dtype, self.device)


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


def own_or_shared(own: Tensor | None, shared: Tensor) -> Tensor:
    """A head's own copy of a tensor where it differs from the target's; equal copies are not kept twice."""
    return shared if own is None or torch.equal(own, shared) else own


def fit_embedding(embedding: Tensor, target: Model) -> Tensor:
    """An embedding with a row for every id of the target: zeros for ids that it lacks, which prompts may hold."""
    missing = target.vocab_size - len(embedding)
    return embedding if missing <= 0 else F.pad(embedding, (0, 0, 0, missing))
