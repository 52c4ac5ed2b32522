"""Drafting with several MTP layers in turn: layer j predicts the token j + 2 places on, from layer j − 1's features.

Layer j reads pairs (feature of layer j − 1 at position t, token t + 1 + j), so its last j pairs need tokens that are
only drafted. Those rows are run for the draft and run again, with the tokens that were accepted, in the next step.
Source: DeepSeek-V3 (2024), section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from trt_spec.runtime.acceptance import Draft
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.drafters.feature import FeatureDrafter
from trt_spec.runtime.drafters.growth import GrowingTree
from trt_spec.runtime.drafters.inputs import DrafterInputs
from trt_spec.runtime.heads import load_feature_head
from trt_spec.runtime.randomness import Randomness
from trt_spec.runtime.sequence import Sequence


class _Layer:
    """What one layer has read of one sequence: rows in its cache, and features that wait for their tokens [n, F]."""

    def __init__(self) -> None:
        self.num_cached, self.unread = 0, torch.empty(0)

    def keep(self, features: Tensor) -> None:
        self.unread = torch.cat((self.unread, features)) if len(self.unread) else features


class TurnsDrafter(FeatureDrafter):
    """Chains of at most as many tokens as there are layers."""

    def __init__(self, head, growth, num_slots: int, max_seq_len: int):
        super().__init__(head, growth, num_slots, max_seq_len)
        self._layers: dict[str, list[_Layer]] = {}

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self._layers.pop(sequence.request.request_id, None)

    def snapshot(self, sequence: Sequence) -> object:
        layers = self._layers.get(sequence.request.request_id, ())
        return super().snapshot(sequence), [(layer.num_cached, layer.unread) for layer in layers]

    def restore(self, sequence: Sequence, snapshot: object) -> None:
        shared, layers = snapshot
        super().restore(sequence, shared)
        if layers:
            for layer, (num_cached, unread) in zip(self._of(sequence), layers, strict=True):
                layer.num_cached, layer.unread = num_cached, unread

    def _keep(self, sequence: Sequence, features: Tensor) -> None:
        self._of(sequence)[0].keep(features)

    def _of(self, sequence: Sequence) -> list[_Layer]:
        new = [_Layer() for _ in range(self.head.num_turns)]
        return self._layers.setdefault(sequence.request.request_id, new)

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        # Layer j needs j known tokens behind the position it reads, hence no more levels than there are tokens.
        trees = [
            GrowingTree(sequence, min(length, self.growth.max_depth, len(sequence.token_ids)), sequence.stream(source))
            for sequence, length in zip(sequences, max_lens, strict=True)
        ]
        growing, logits = trees, self._read(sequences)
        outputs = [torch.empty(0) for _ in trees]  # of the layer before, at the rows with drafted tokens
        for turn in range(1, self.head.num_turns + 1):
            self._grow(growing, logits)
            outputs = [one for one, tree in zip(outputs, growing, strict=True) if tree.frontier]
            growing = [tree for tree in growing if tree.frontier]
            if not growing:
                break
            outputs, logits = self._run_ahead(growing, outputs, turn)
        return [self.growth.finish(tree) for tree in trees]

    def _run_ahead(
        self, trees: SequenceOf[GrowingTree], outputs: SequenceOf[Tensor], turn: int
    ) -> tuple[list[Tensor], Tensor]:
        """Runs a layer over its rows with drafted tokens: its outputs per sequence, and the logits [trees, V]."""
        rows, features = [], []
        for tree, before in zip(trees, outputs, strict=True):
            layer = self._of(tree.sequence)[turn]
            rows.append(Rows(tree.sequence.slot, layer.num_cached, tree.tokens[:turn]))
            features.append(torch.cat((layer.unread, before)) if len(before) else layer.unread)
        results = self._run(rows, features, turn)
        return results, self.head.logits(torch.stack([one[-1] for one in results]), turn)

    def _read_pairs(self, sequences: SequenceOf[Sequence]) -> None:
        """Lets every layer read what is committed; what one layer gives, the next one reads."""
        for turn in range(self.head.num_turns):
            readers, rows, features = [], [], []
            for sequence in sequences:
                layer = self._of(sequence)[turn]
                start = layer.num_cached
                tokens = sequence.token_ids[start + 1 + turn : start + 1 + turn + len(layer.unread)]
                if tokens:
                    readers.append(sequence)
                    rows.append(Rows(sequence.slot, start, tokens))
                    features.append(layer.unread[: len(tokens)])
                    layer.unread = layer.unread[len(tokens) :]
                    layer.num_cached += len(tokens)
            if not readers:
                return
            for sequence, result in zip(readers, self._run(rows, features, turn), strict=True):
                if turn == 0:
                    self._roots[sequence.request.request_id] = result[-1]
                if turn + 1 < self.head.num_turns:
                    self._of(sequence)[turn + 1].keep(result)

    def _run(self, rows: SequenceOf[Rows], features: SequenceOf[Tensor], turn: int) -> list[Tensor]:
        batch = pack(rows, self.cache.slot_len, self.head.dtype, self.head.device)
        result = self.head.forward(torch.cat(list(features)), batch, self.cache, turn)
        return [result[start:end] for start, end in zip(batch.offsets, batch.offsets[1:], strict=False)]


def make(inputs: DrafterInputs) -> FeatureDrafter:
    """The feature head of the engine, loaded: EAGLE of any generation, or MTP."""
    limits = inputs.limits
    head = load_feature_head(
        inputs.speculation.method, inputs.draft_dir, inputs.target, inputs.target_dir, limits.slot_len
    )
    if head.num_turns == 1:
        return FeatureDrafter(head, inputs.growth(), limits.max_batch_size, limits.max_seq_len)
    return TurnsDrafter(head, inputs.growth(head.num_turns), limits.max_batch_size, limits.max_seq_len)
