"""Drafting with Medusa heads: head i guesses, from one hidden state, the token i + 1 places after the next one.

Source: Medusa (Cai et al. 2024). The heads do not see each other's guesses, so every node of a level has the same law.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from trt_spec.runtime.acceptance import Draft, Verdict
from trt_spec.runtime.drafters.base import Drafter
from trt_spec.runtime.drafters.growth import GrowingTree, Growth
from trt_spec.runtime.drafters.inputs import DrafterInputs
from trt_spec.runtime.heads import load_medusa
from trt_spec.runtime.heads.medusa import MedusaHeads
from trt_spec.runtime.models import Hidden
from trt_spec.runtime.randomness import Randomness
from trt_spec.runtime.sequence import Sequence


class MedusaDrafter(Drafter):
    """Keeps, per sequence, the hidden state from which the target chose the last token."""

    def __init__(self, heads: MedusaHeads, growth: Growth):
        self.heads, self.growth = heads, growth
        self._hidden: dict[str, Tensor] = {}

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        """All levels from one run of the heads over all sequences; heads below the deepest level stay idle."""
        hidden = torch.stack([self._hidden[sequence.request.request_id] for sequence in sequences])
        trees = [
            GrowingTree(sequence, min(length, self.growth.max_depth, self.heads.num_heads), sequence.stream(source))
            for sequence, length in zip(sequences, max_lens, strict=True)
        ]
        logits = self.heads.logits(hidden, max(tree.max_depth for tree in trees))  # [depth, sequences, V]
        for row, tree in enumerate(trees):
            for level in logits[:, row]:
                if tree.frontier:
                    self.growth.grow(tree, level.expand(len(tree.frontier), -1))
        return [self.growth.finish(tree) for tree in trees]

    def commit(
        self,
        sequences: SequenceOf[Sequence],
        drafts: SequenceOf[Draft],
        verdicts: SequenceOf[Verdict],
        hidden: SequenceOf[Hidden],
    ) -> None:
        """Keeps the row that gave the step's last token: the last accepted node's, or the last committed token's."""
        for sequence, verdict, rows in zip(sequences, verdicts, hidden, strict=True):
            if sequence.speculates:
                row = int(verdict.path[-1]) + 1 if len(verdict.path) else 0
                self._hidden[sequence.request.request_id] = rows.last[row].clone()

    def release(self, sequence: Sequence) -> None:
        self._hidden.pop(sequence.request.request_id, None)

    def snapshot(self, sequence: Sequence) -> object:
        return self._hidden.get(sequence.request.request_id)

    def restore(self, sequence: Sequence, snapshot: object) -> None:
        self.release(sequence)
        if snapshot is not None:
            self._hidden[sequence.request.request_id] = snapshot


def make(inputs: DrafterInputs) -> MedusaDrafter:
    """The heads of the engine, loaded."""
    heads = load_medusa(inputs.draft_dir, inputs.target, inputs.target_dir)
    return MedusaDrafter(heads, inputs.growth(heads.num_heads))
