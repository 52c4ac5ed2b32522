"""Drafting on the target's features: EAGLE-1, EAGLE-2, EAGLE-3 and an MTP layer that is applied again and again.

A head reads pairs: (feature of position t, token t + 1) → token t + 2. The target gives the features of committed
positions; below them the head goes on with its own. Sources: EAGLE (Li et al. 2024), EAGLE-3 (Li et al. 2025),
DeepSeek-V3 (2024), section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from trt_spec.runtime.acceptance import Draft, Verdict
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.drafters.autoregressive import AutoregressiveDrafter
from trt_spec.runtime.drafters.draft_shapes import DraftShape, GrowingTree
from trt_spec.runtime.drafters.inputs import DrafterInputs
from trt_spec.runtime.heads import FeatureHead, load_feature_head
from trt_spec.runtime.models import Hidden
from trt_spec.runtime.sequence import Sequence


class LayerState(NamedTuple):
    """What one layer of a head has read of one sequence.

    Attributes:
        num_cached: pairs that it has read. The pair of position t is cached in row t.
        unread: features [n, F] of the positions after them, in chunks.
        output: what it gave [F] at the last pair that it has read.
    """

    num_cached: int = 0
    unread: tuple[Tensor, ...] = ()
    output: Tensor | None = None


class FeatureDrafter(AutoregressiveDrafter):
    """Reads with every layer of the head what is committed, and grows drafts with the first."""

    def __init__(self, head: FeatureHead, draft_shape: DraftShape, num_slots: int, max_seq_len: int):
        self.head, self.draft_shape, self.capture = head, draft_shape, head.capture
        self.max_positions = head.max_positions
        self.cache = head.make_cache(num_slots, max_seq_len + draft_shape.max_fed)
        self.caches = (self.cache,)

    def prefill(self, prompts: SequenceOf[tuple[Sequence, Rows]], hidden: Hidden) -> None:
        """Reads prompt chunks. The last position of a prompt waits for its next token."""
        features = self.head.target_features(hidden)
        offset, readers = 0, []
        for sequence, rows in prompts:
            if self._follows(sequence):
                self._keep(sequence, features[offset : offset + rows.num_rows])
                readers.append(sequence)
            offset += rows.num_rows
        self._read_pairs(readers)

    def commit(
        self,
        sequences: SequenceOf[Sequence],
        drafts: SequenceOf[Draft],
        verdicts: SequenceOf[Verdict],
        hidden: SequenceOf[Hidden],
    ) -> None:
        """Keeps the features of the last committed token and of the accepted nodes."""
        for sequence, verdict, rows in zip(sequences, verdicts, hidden, strict=True):
            if sequence.is_decoding and self._follows(sequence):
                path = torch.cat((torch.zeros(1, dtype=torch.int64), verdict.path + 1))
                self._keep(sequence, self.head.target_features(rows)[path.to(self.head.device)])

    def _follows(self, sequence: Sequence) -> bool:
        limit = self.max_positions
        return sequence.speculates and (limit is None or len(sequence.token_ids) <= limit)

    def _state(self, sequence: Sequence, layer: int = 0) -> LayerState:
        return sequence.drafter_states.get((self, layer), LayerState())

    def _update(self, sequence: Sequence, layer: int, **changes) -> None:
        sequence.drafter_states[self, layer] = self._state(sequence, layer)._replace(**changes)

    def _keep(self, sequence: Sequence, features: Tensor, layer: int = 0) -> None:
        self._update(sequence, layer, unread=(*self._state(sequence, layer).unread, features))

    def _read(self, sequences: SequenceOf[Sequence]) -> Tensor:
        self._read_pairs(sequences)
        return self.head.logits(torch.stack([self._state(sequence).output for sequence in sequences]))

    def _read_pairs(self, sequences: SequenceOf[Sequence]) -> None:
        """Lets every layer read the pairs whose tokens are known; what one layer gives, the next one reads."""
        for layer in range(self.head.num_layers):
            readers, rows, features = [], [], []
            for sequence in sequences:
                start, chunks, _ = self._state(sequence, layer)
                unread = torch.cat(chunks) if chunks else torch.empty(0)
                tokens = sequence.token_ids[start + 1 + layer : start + 1 + layer + len(unread)]
                if tokens:
                    readers.append(sequence)
                    rows.append(Rows(sequence.slot, start, tokens))
                    features.append(unread[: len(tokens)])
                    rest = unread[len(tokens) :].clone()  # a view would hold the whole chunk
                    self._update(sequence, layer, num_cached=start + len(tokens), unread=(rest,) if len(rest) else ())
            if not readers:
                return
            for sequence, outputs in zip(readers, self._run(rows, features, layer), strict=True):
                self._update(sequence, layer, output=outputs[-1].clone())
                if layer + 1 < self.head.num_layers:
                    self._keep(sequence, outputs, layer + 1)

    def _extend(self, trees: SequenceOf[GrowingTree]) -> Tensor:
        rows = [tree.rows(self._state(tree.sequence).num_cached) for tree in trees]
        features = [torch.stack([self._feature_above(tree, node) for node in tree.frontier]) for tree in trees]
        results = self._run(rows, features)
        for tree, outputs in zip(trees, results, strict=True):
            tree.outputs += outputs
        return self.head.logits(torch.cat(results))

    def _feature_above(self, tree: GrowingTree, node: int) -> Tensor:
        """The head's output at the node's parent, which it has fed already."""
        parent = tree.parents[node]
        return self._state(tree.sequence).output if parent < 0 else tree.outputs[tree.fed.index(parent)]

    def _run(self, rows: SequenceOf[Rows], features: SequenceOf[Tensor], layer: int = 0) -> list[Tensor]:
        """Runs a layer over rows, given in slot order, with one feature each: its outputs [rows, F] by sequence."""
        batch = pack(rows, self.cache.slot_len, self.head.dtype, self.head.device)
        outputs = self.head.forward(torch.cat(list(features)), batch, self.cache, layer)
        return [outputs[start:end] for start, end in pairwise(batch.offsets)]


def make(inputs: DrafterInputs) -> FeatureDrafter:
    """The engine's EAGLE head of any generation, loaded."""
    return FeatureDrafter(
        load_head(inputs), inputs.draft_shape(), inputs.limits.max_batch_size, inputs.limits.max_seq_len
    )


def load_head(inputs: DrafterInputs) -> FeatureHead:
    """The head that the method of a run config names."""
    return load_feature_head(
        inputs.speculation.method, inputs.draft_dir, inputs.target, inputs.target_dir, inputs.limits.slot_len
    )
