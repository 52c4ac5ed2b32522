"""Drafting with MTP layers: one that is applied again and again, or several of which layer j drafts at depth j.

In the latter case layer j reads pairs (feature of layer j − 1 at position t, token t + 1 + j), so its last j pairs need
tokens that are only drafted. Those rows are run for the draft and run again, with the tokens that were accepted, in the
next step. Source: DeepSeek-V3 (2024), section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from trt_spec.runtime.acceptance import Draft
from trt_spec.runtime.batch import Rows
from trt_spec.runtime.drafters.draft_shapes import GrowingTree
from trt_spec.runtime.drafters.feature import FeatureDrafter, load_head
from trt_spec.runtime.drafters.inputs import DrafterInputs
from trt_spec.runtime.randomness import Randomness
from trt_spec.runtime.sequence import Sequence


class MultiLayerMtpDrafter(FeatureDrafter):
    """Chains of at most as many tokens as there are layers."""

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        """One chain per sequence, of no more tokens than it has: layer j reads a position with j tokens behind it."""
        most = [min(length, len(sequence.token_ids)) for sequence, length in zip(sequences, max_lens, strict=True)]
        return super().propose(sequences, most, source)

    def _extend(self, trees: SequenceOf[GrowingTree]) -> Tensor:
        """Runs the next layer over its rows with drafted tokens, on what the layer before gave at its own."""
        layer = len(trees[0].tokens)
        states = [self._state(tree.sequence, layer) for tree in trees]
        rows = [
            Rows(tree.sequence.slot, state.num_cached, tree.tokens) for tree, state in zip(trees, states, strict=True)
        ]
        features = [torch.cat((*state.unread, *tree.outputs)) for tree, state in zip(trees, states, strict=True)]
        results = self._run(rows, features, layer)
        for tree, outputs in zip(trees, results, strict=True):
            tree.outputs = [outputs]
        return self.head.logits(torch.stack([outputs[-1] for outputs in results]), layer)


def make(inputs: DrafterInputs) -> FeatureDrafter:
    """The MTP layers of the engine's target, loaded."""
    head, limits = load_head(inputs), inputs.limits
    if head.num_layers == 1:
        return FeatureDrafter(head, inputs.draft_shape(), limits.max_batch_size, limits.max_seq_len)
    shape = inputs.draft_shape(head.num_layers)
    return MultiLayerMtpDrafter(head, shape, limits.max_batch_size, limits.max_seq_len)
