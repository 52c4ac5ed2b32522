"""What drafters that predict one token after another share: growing trees level by level, over all sequences."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as SequenceOf

from torch import Tensor

from trt_spec.runtime.acceptance import Draft
from trt_spec.runtime.drafters.base import Drafter
from trt_spec.runtime.drafters.draft_shapes import DraftShape, GrowingTree
from trt_spec.runtime.randomness import Randomness
from trt_spec.runtime.sequence import Sequence


class AutoregressiveDrafter(Drafter):
    """Reads what was committed since the last step, then grows every draft by one level per forward.

    Draft nodes are cached behind the committed tokens and forgotten after the step: accepted ones are read again with
    the next `_read`, which has to run anyway.
    """

    draft_shape: DraftShape

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        """One draft per sequence; sequences drop out when their trees are grown."""
        trees = self.draft_shape.trees(sequences, max_lens, source)
        growing, logits = trees, self._read(sequences)
        while growing:
            self._grow(growing, logits)
            growing = [tree for tree in growing if tree.frontier]
            if growing:
                logits = self._extend(growing)
        return [self.draft_shape.finish(tree) for tree in trees]

    def _grow(self, trees: SequenceOf[GrowingTree], logits: Tensor) -> None:
        """One level for every tree, from the logits [all frontier nodes, V].

        Where the draft's numbers overflowed it drafts no further, and lets no later request read them from the slot.
        """
        offset, is_nan = 0, logits.isnan().any(-1).tolist()
        for tree in trees:
            end = offset + len(tree.frontier)
            if any(is_nan[offset:end]):
                tree.feed([])
                for cache in self.caches:
                    cache.wipe(tree.sequence.slot)
            else:
                self.draft_shape.grow(tree, logits[offset:end])
            offset = end

    @abstractmethod
    def _read(self, sequences: SequenceOf[Sequence]) -> Tensor:
        """Feeds each sequence's committed tokens that are not cached yet; returns next-token logits [sequences, V]."""

    @abstractmethod
    def _extend(self, trees: SequenceOf[GrowingTree]) -> Tensor:
        """Feeds the frontiers; returns the logits [all frontier nodes, V] of their next tokens, tree by tree."""
