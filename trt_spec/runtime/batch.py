"""The packed batch of one forward: rows of many sequences, and how attention groups them.

Rows of one sequence are neighbours, and so are the sequences of one segment. A segment is a run of neighbouring slots
that share one attention call, padded to its longest sequence. Prompts get segments of their own, and so do sequences
with drafts where they would pad too many others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trt_spec.runtime.tree import DraftTree

MAX_PADDED_ROWS = 24  # padding that two runs of slots may need to share one attention call; measured on CPU
MAX_GROUPED_ROWS = 64  # a sequence with more rows than this is a prompt chunk and gets its own segment


@dataclass(frozen=True)
class Rows:
    """What one sequence feeds: committed tokens that are not cached yet, then nodes of its draft tree.

    Attributes:
        slot: row block of the KV cache.
        start: tokens of the sequence that are already cached; the first row gets this position.
        token_ids: the committed tokens, then the tokens of the nodes that are fed now.
        parents: one entry per node of the tree, −1 for the last committed token.
        num_cached_nodes: nodes at the front of the tree that earlier forwards have cached; the others are fed now.
    """

    slot: int
    start: int
    token_ids: Sequence[int]
    parents: Sequence[int] = ()
    num_cached_nodes: int = 0

    @cached_property
    def tree(self) -> DraftTree:
        return DraftTree.of(self.parents)

    @property
    def is_causal(self) -> bool:
        """Whether each row sees exactly what lies before it: prompts, and chains that are fed whole or node by node."""
        return self.tree.is_chain

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def num_committed(self) -> int:
        return len(self.token_ids) - (len(self.parents) - self.num_cached_nodes)

    @property
    def first_node(self) -> int:
        """Position of the tree's first level, and where its nodes lie in the slot."""
        return self.start + self.num_committed

    @property
    def length(self) -> int:
        """Tokens of the slot that are in use after this step."""
        return self.first_node + len(self.parents)

    def positions(self) -> list[int]:
        """Position of every row: consecutive for committed tokens, then by depth in the tree."""
        depths = self.tree.depths[self.num_cached_nodes :]
        return [*range(self.start, self.first_node), *(self.first_node + depth for depth in depths)]

    def places(self) -> list[int]:
        """Where in the slot every row is written."""
        return [*range(self.start, self.first_node), *range(self.first_node + self.num_cached_nodes, self.length)]


@dataclass(frozen=True)
class Segment:
    """One attention call: slots [slot_start, slot_end), R rows each after padding, L cached tokens visible at most.

    Attributes:
        row_start, row_end: the packed rows of this segment.
        num_rows: R, rows of its longest sequence.
        length: L, tokens of the longest sequence including this step's rows.
        mask: additive [slots, 1, R, L], 0 where a row sees a token and −inf elsewhere; None where every row sees
            everything.
        pad: [slots · R] packed row for each padded place, None where nothing is padded.
        unpad: [row_end − row_start] padded place of each packed row, None where nothing is padded.
    """

    slot_start: int
    slot_end: int
    row_start: int
    row_end: int
    num_rows: int
    length: int
    mask: Tensor | None
    pad: Tensor | None
    unpad: Tensor | None

    @property
    def num_slots(self) -> int:
        return self.slot_end - self.slot_start


@dataclass(frozen=True)
class Visibility:
    """What each of N rows attends to, as the compiled kernels take it: a run of tokens, and others behind it.

    Attributes:
        slot_starts: [N] int64, cache row of the sequence's first token.
        prefixes: [N] int32, a row sees the first `prefix` tokens of its slot ...
        extra_starts: [N + 1] int32, ... and those at `extras[extra_starts[i] : extra_starts[i + 1]]`, ascending.
        extras: int32, places in the slot.
    """

    slot_starts: Tensor
    prefixes: Tensor
    extra_starts: Tensor
    extras: Tensor


@dataclass(frozen=True)
class Batch:
    """N packed rows. `offsets[i]` is the first row of the i-th sequence, `offsets[-1]` is N.

    Attributes:
        token_ids: [N] int64.
        positions: [N] int64, for the rotary embedding.
        cache_rows: [N] int64, where each row's keys and values go.
    """

    token_ids: Tensor
    positions: Tensor
    cache_rows: Tensor
    offsets: list[int]
    rows: list[Rows]
    slot_len: int
    dtype: torch.dtype

    @cached_property
    def segments(self) -> list[Segment]:
        """How torch's attention groups the rows."""
        device = self.token_ids.device
        return [_segment(self.rows[a:b], self.offsets[a], self.dtype, device) for a, b in _runs(self.rows)]

    @cached_property
    def visibility(self) -> Visibility:
        """What the rows see, for the compiled kernels."""
        starts: list[int] = []
        prefixes: list[int] = []
        extras: list[int] = []
        ends = [0]
        for item in self.rows:
            places = item.places()
            starts += [item.slot * self.slot_len] * len(places)
            causal = len(places) if item.is_causal else item.num_committed
            prefixes += [place + 1 for place in places[:causal]]
            ends += [len(extras)] * causal
            if causal < len(places):
                prefixes += [item.first_node] * (len(places) - causal)
                for ancestors in item.tree.mask()[item.num_cached_nodes :]:
                    extras += (ancestors.nonzero()[:, 0] + item.first_node).tolist()
                    ends.append(len(extras))
        as_int32 = [torch.tensor(values, dtype=torch.int32) for values in (prefixes, ends, extras)]
        return Visibility(torch.tensor(starts), *as_int32)


def pack(rows: Sequence[Rows], slot_len: int, dtype: torch.dtype, device: torch.device) -> Batch:
    """Packs the rows of several sequences, in slot order, into one batch."""
    rows = sorted(rows, key=lambda item: item.slot)
    assert all(item.num_cached_nodes == 0 or item.num_committed == 0 for item in rows)
    offsets = [0]
    token_ids: list[int] = []
    positions: list[int] = []
    cache_rows: list[int] = []
    for item in rows:
        token_ids += item.token_ids
        positions += item.positions()
        cache_rows += [item.slot * slot_len + place for place in item.places()]
        offsets.append(offsets[-1] + item.num_rows)
    as_tensor = torch.tensor([token_ids, positions, cache_rows], dtype=torch.int64).to(device)
    return Batch(as_tensor[0], as_tensor[1], as_tensor[2], offsets, rows, slot_len, dtype)


def _runs(rows: Sequence[Rows]) -> list[tuple[int, int]]:
    """Splits sequences into runs of neighbouring slots that one attention call takes.

    A prompt chunk is a run of its own. Others begin as runs of equally many rows; then neighbours join, those first
    that need the fewest rows of padding, while padding is cheaper than one more call.
    """
    runs: list[tuple[int, int]] = []
    for index, item in enumerate(rows):
        if index and _are_alike(rows[index - 1], item):
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    while len(runs) > 1:
        padding = [_padding(rows, first, second) for first, second in itertools.pairwise(runs)]
        at = min(range(len(padding)), key=padding.__getitem__)
        if padding[at] > MAX_PADDED_ROWS:
            break
        runs[at : at + 2] = [(runs[at][0], runs[at + 1][1])]
    return runs


def _are_alike(item: Rows, following: Rows) -> bool:
    return following.slot == item.slot + 1 and item.num_rows == following.num_rows <= MAX_GROUPED_ROWS


def _padding(rows: Sequence[Rows], first: tuple[int, int], second: tuple[int, int]) -> float:
    """Rows that one run in place of two neighbours adds; infinite where they cannot be one."""
    counts = [max(item.num_rows for item in rows[start:end]) for start, end in (first, second)]
    if rows[second[0]].slot != rows[first[1] - 1].slot + 1 or max(counts) > MAX_GROUPED_ROWS:
        return math.inf
    narrow, (start, end) = min(zip(counts, (first, second), strict=True))
    return (max(counts) - narrow) * (end - start)


def _segment(rows: Sequence[Rows], row_start: int, dtype: torch.dtype, device: torch.device) -> Segment:
    counts = [item.num_rows for item in rows]
    widest = max(counts)
    length = max(item.length for item in rows)
    pad = unpad = None
    if min(counts) != widest:
        places = torch.arange(widest).expand(len(rows), widest)
        valid = places < torch.tensor(counts)[:, None]
        unpad = valid.flatten().nonzero()[:, 0].to(device)
        first = torch.tensor([0, *counts[:-1]]).cumsum(0)[:, None]
        pad = (row_start + torch.where(valid, first + places, first)).flatten().to(device)
    sees_all = widest == 1 and all(item.length == length and item.is_causal for item in rows)
    mask = None if sees_all else _mask(rows, widest, length, dtype).to(device)
    return Segment(
        rows[0].slot, rows[-1].slot + 1, row_start, row_start + sum(counts), widest, length, mask, pad, unpad
    )


def _mask(rows: Sequence[Rows], widest: int, length: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [sequences, 1, widest, length]. A padding row sees what row 0 sees, so that no softmax is empty."""
    start = torch.tensor([item.start for item in rows])[:, None, None]
    skipped = torch.tensor([item.num_cached_nodes for item in rows])[:, None, None]
    row = torch.arange(widest)[:, None]
    visible = torch.arange(length) <= start + skipped + row  # [B, R, L]: causal, right for prompts and chains
    for index, item in enumerate(rows):
        if not item.is_causal:
            _show_tree(visible[index], item)
        visible[index, item.num_rows :] = visible[index, :1]
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))[:, None]


def _show_tree(visible: Tensor, item: Rows) -> None:
    """Gives the node rows their ancestors instead of all that lies before them. `visible` is [R, L]."""
    fed = slice(item.num_committed, item.num_rows)
    visible[fed, : item.first_node] = True
    visible[fed, item.first_node :] = False
    visible[fed, item.first_node : item.length] = item.tree.mask()[item.num_cached_nodes :]
