"""Which sequences run in the next step, and in which slots.

Slots are kept dense: the i-th running sequence lives in slot i, decoding ones first, so that a step's attention is
one call over neighbouring slots. When a sequence leaves, others move into the hole.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from trt_spec.runtime.sequence import Sequence


@dataclass
class Work:
    """One step: sequences that decode, and prompts with the number of tokens to prefill now."""

    decoding: list[Sequence] = field(default_factory=list)
    prefills: list[tuple[Sequence, int]] = field(default_factory=list)


class Scheduler:
    """First come, first served: decoding first, then prompts, in chunks of what is left of the step's token budget.

    Prompts take the budget in slot order, so they also finish in slot order and decoding sequences stay in front.

    Args:
        move: called as move(source_slot, destination_slot, sequence) before a sequence changes its slot.
    """

    def __init__(self, max_batch_size: int, max_num_tokens: int, move: Callable[[int, int, Sequence], None]):
        self.max_batch_size, self.max_num_tokens = max_batch_size, max_num_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._move = move

    def schedule(self, rows_per_decode: int) -> Work:
        """Admits what fits and plans a step in which each decoding sequence takes up to `rows_per_decode` rows."""
        while self.waiting and len(self.running) < self.max_batch_size:
            sequence = self.waiting.popleft()
            sequence.slot = len(self.running)
            sequence.first_scheduled_time_ns = time.time_ns()
            self.running.append(sequence)
        work = Work(decoding=[sequence for sequence in self.running if sequence.is_decoding])
        budget = max(self.max_num_tokens - rows_per_decode * len(work.decoding), 1)
        for sequence in self.running[len(work.decoding) :]:
            num_tokens = min(budget, sequence.num_pending_tokens)
            budget -= num_tokens
            if num_tokens:
                work.prefills.append((sequence, num_tokens))
        return work

    def release(self, sequence: Sequence) -> None:
        """Takes a sequence out and closes the hole. Call it after all tokens of the step are appended."""
        if sequence.slot < 0:
            self.waiting.remove(sequence)
            return
        if sequence.is_decoding:
            last_decoding = [other for other in self.running if other.is_decoding][-1]
            self._fill(sequence, last_decoding)
        self._fill(sequence, self.running[-1])
        self.running.pop()
        sequence.slot = -1

    def _fill(self, leaving: Sequence, other: Sequence) -> None:
        """Moves `other` into the leaving sequence's slot; the hole is then where `other` was."""
        hole, source = leaving.slot, other.slot
        if hole == source:
            return
        self._move(source, hole, other)
        self.running[hole], self.running[source] = other, leaving
        other.slot, leaving.slot = hole, source
