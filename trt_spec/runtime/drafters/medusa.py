"""Drafting with Medusa heads: head i guesses, from one hidden state, the token i + 1 places after the next one.

Source: Medusa (Cai et al. 2024). The heads do not see each other's guesses, so all nodes of a level have
the same probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch

from trt_spec.runtime.acceptance import Draft, Verdict
from trt_spec.runtime.drafters.base import Drafter
from trt_spec.runtime.drafters.draft_shapes import DraftShape
from trt_spec.runtime.drafters.inputs import DrafterInputs
from trt_spec.runtime.heads import load_medusa
from trt_spec.runtime.heads.medusa import MedusaHeads
from trt_spec.runtime.models import Hidden
from trt_spec.runtime.randomness import Randomness
from trt_spec.runtime.sequence import Sequence


class MedusaDrafter(Drafter):
    """Keeps, per sequence, the hidden state [H] from which the target chose the last token."""

    def __init__(self, heads: MedusaHeads, draft_shape: DraftShape):
        self.heads, self.draft_shape = heads, draft_shape

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        """All levels from one run of the heads over all sequences; heads below the deepest level stay idle."""
        trees = self.draft_shape.trees(sequences, max_lens, source)
        hidden = torch.stack([sequence.drafter_states[self] for sequence in sequences])
        logits = self.heads.logits(hidden, max(tree.max_depth for tree in trees))  # [depth, sequences, V]
        for row, tree in enumerate(trees):
            for level in logits[:, row]:
                if tree.frontier:
                    self.draft_shape.grow(tree, level.expand(len(tree.frontier), -1))
        return [self.draft_shape.finish(tree) for tree in trees]

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
                sequence.drafter_states[self] = rows.last[row].clone()


def make(inputs: DrafterInputs) -> MedusaDrafter:
    """The heads of the engine, loaded."""
    heads = load_medusa(inputs.draft_dir, inputs.target, inputs.target_dir)
    return MedusaDrafter(heads, inputs.draft_shape(heads.num_heads))
