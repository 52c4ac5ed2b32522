"""Drafting on the target's features: EAGLE-1, EAGLE-2, EAGLE-3 and MTP layers that are applied again and again.

A head reads pairs: (feature of position t, token t + 1) → token t + 2. The target gives the features of committed
positions; below them the head goes on with its own. Sources: EAGLE (Li et al. 2024), EAGLE-3 (Li et al. 2025),
DeepSeek-V3 (2024), section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from trt_spec.runtime.acceptance import Draft, Verdict
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.drafters.autoregressive import AutoregressiveDrafter
from trt_spec.runtime.drafters.growth import GrowingTree, Growth
from trt_spec.runtime.heads.base import FeatureHead
from trt_spec.runtime.models import Hidden
from trt_spec.runtime.sequence import Sequence


class FeatureDrafter(AutoregressiveDrafter):
    """Keeps the features that the head has not read yet, and the head's own KV cache.

    The pair of position t is cached in row t, so after reading all of n committed tokens the head has n − 1 rows;
    that count is the sequence's `num_draft_cached_tokens`.
    """

    def __init__(self, head: FeatureHead, growth: Growth, num_slots: int, max_seq_len: int):
        self.head, self.growth, self.capture = head, growth, head.capture
        self.max_positions = head.max_positions
        self.cache = head.make_cache(num_slots, max_seq_len + growth.max_fed)
        self.caches = (self.cache,)
        self._unread: dict[str, list[Tensor]] = {}  # features [n, F] of the positions after the cached ones
        self._roots: dict[str, Tensor] = {}  # the head's output [F] at the last committed pair
        self._outputs: dict[str, list[Tensor]] = {}  # the head's outputs [F] at the nodes fed in this step

    def observe(self, prompts: SequenceOf[tuple[Sequence, Rows]], hidden: Hidden) -> None:
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

    def release(self, sequence: Sequence) -> None:
        for kept in (self._unread, self._roots, self._outputs):
            kept.pop(sequence.request.request_id, None)

    def snapshot(self, sequence: Sequence) -> object:
        key = sequence.request.request_id
        return sequence.num_draft_cached_tokens, list(self._unread.get(key, ())), self._roots.get(key)

    def restore(self, sequence: Sequence, snapshot: object) -> None:
        self.release(sequence)
        sequence.num_draft_cached_tokens, unread, root = snapshot
        if unread:
            self._unread[sequence.request.request_id] = unread
        if root is not None:
            self._roots[sequence.request.request_id] = root

    def _follows(self, sequence: Sequence) -> bool:
        limit = self.max_positions
        return sequence.speculates and (limit is None or len(sequence.token_ids) <= limit)

    def _keep(self, sequence: Sequence, features: Tensor) -> None:
        self._unread.setdefault(sequence.request.request_id, []).append(features)

    def _read(self, sequences: SequenceOf[Sequence]) -> Tensor:
        self._read_pairs(sequences)
        return self.head.logits(torch.stack([self._roots[sequence.request.request_id] for sequence in sequences]))

    def _read_pairs(self, sequences: SequenceOf[Sequence]) -> None:
        """Feeds every pair whose token is known, and keeps the output at the last one."""
        readers, rows, features = [], [], []
        for sequence in sequences:
            unread = torch.cat(self._unread.pop(sequence.request.request_id, [torch.empty(0)]))
            start = sequence.num_draft_cached_tokens
            tokens = sequence.token_ids[start + 1 : start + 1 + len(unread)]
            if len(tokens) < len(unread):
                self._keep(sequence, unread[len(tokens) :].clone())  # a view would hold the whole chunk
            if tokens:
                readers.append(sequence)
                rows.append(Rows(sequence.slot, start, tokens))
                features.append(unread[: len(tokens)])
        if not readers:
            return
        outputs, offsets = self._forward(rows, torch.cat(features))
        for sequence, row, end in zip(readers, rows, offsets[1:], strict=True):
            sequence.num_draft_cached_tokens += row.num_rows
            self._roots[sequence.request.request_id] = outputs[end - 1].clone()

    def _extend(self, trees: SequenceOf[GrowingTree]) -> Tensor:
        features = torch.stack([self._feature_above(tree, node) for tree in trees for node in tree.frontier])
        rows = [tree.rows(tree.sequence.num_draft_cached_tokens) for tree in trees]
        outputs, offsets = self._forward(rows, features)
        for tree, start, end in zip(trees, offsets, offsets[1:], strict=False):
            self._outputs.setdefault(tree.sequence.request.request_id, []).extend(outputs[start:end])
        return self.head.logits(outputs)

    def _feature_above(self, tree: GrowingTree, node: int) -> Tensor:
        """The head's output at the node's parent, which it has fed already."""
        parent, request_id = tree.parents[node], tree.sequence.request.request_id
        return self._roots[request_id] if parent < 0 else self._outputs[request_id][tree.fed.index(parent)]

    def _forget(self) -> None:
        self._outputs.clear()

    def _forward(self, rows: SequenceOf[Rows], features: Tensor) -> tuple[Tensor, list[int]]:
        """Runs packed rows, given in slot order, with one feature each."""
        batch = pack(rows, self.cache.slot_len, self.head.dtype, self.head.device)
        return self.head.forward(features, batch, self.cache), batch.offsets
