"""Calls to a drafter, so that what it raises costs drafts and never a request.

Drafts are guesses: a step without one is plain decoding, and probabilities travel with the tokens drawn from them. So
an engine that loses a draft, or gets it on a second try, stays lossless under every lossless rule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from itertools import groupby
from typing import TypeVar

from trt_spec.runtime.acceptance import Draft
from trt_spec.runtime.drafters.base import Drafter
from trt_spec.runtime.sequence import Sequence
from trt_spec.runtime.stats import EngineStats

logger = logging.getLogger(__name__)
T = TypeVar("T")


def check_draft(draft: Draft, longest: int, vocab_size: int) -> None:
    """Raises ValueError where a draft would read past the target's embedding, or write past its slot."""
    tokens = draft.token_ids.tolist()
    if len(tokens) > longest:
        raise ValueError(f"a draft of {len(tokens)} tokens in an engine for at most {longest}")
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise ValueError(f"draft tokens {tokens} for a target with ids from 0 to {vocab_size - 1}")


class DrafterGuard:
    """Asks the drafter of an engine.

    A call that raises is taken back and made again for each of its sequences alone, so that one of them costs its
    neighbours nothing. A sequence for which the drafter raises again is not drafted for any more: the drafter may have
    missed tokens or features of it that nobody tells it twice.

    Args:
        stats: counts what was raised; the first time is logged, with its traceback.
    """

    def __init__(self, stats: EngineStats):
        self.stats = stats

    def ask(
        self, drafter: Drafter, sequences: SequenceOf[Sequence], call: Callable[[int, int], SequenceOf[T]]
    ) -> list[T | None]:
        """One answer per sequence, None where the drafter raised, now or earlier.

        Args:
            call: call(start, end) asks for the sequences in [start, end) and returns one answer for each.
        """
        answers: list[T | None] = []
        for is_over, group in groupby(sequences, lambda sequence: sequence.is_drafting_over):
            run = list(group)
            answers += [None] * len(run) if is_over else self._ask(drafter, run, call, len(answers))
        return answers

    def _ask(
        self, drafter: Drafter, sequences: list[Sequence], call: Callable[[int, int], SequenceOf[T]], start: int
    ) -> list[T | None]:
        """As `ask`, for neighbours that the drafter follows, the first of which has the place `start`."""
        before: list[object] = []
        try:
            before += [drafter.snapshot(sequence) for sequence in sequences]
            answers = list(call(start, start + len(sequences)))
            if len(answers) != len(sequences):
                raise ValueError(f"the drafter gave {len(answers)} answers for {len(sequences)} sequences")
            return answers
        except Exception as error:  # whatever it is, the requests can be served without drafts
            self._count(error)
        answers = []
        for index, sequence in enumerate(sequences):
            try:
                drafter.restore(sequence, before[index])
                [answer] = call(start + index, start + index + 1)
            except Exception as error:
                self._count(error)
                self._end(drafter, sequence)
                answer = None
            answers.append(answer)
        return answers

    def tell(self, drafter: Drafter, sequences: SequenceOf[Sequence], call: Callable[[int, int], None]) -> None:
        """As `ask`, for what has no answer."""
        self.ask(drafter, sequences, lambda start, end: [call(start, end)] * (end - start))

    def release(self, drafter: Drafter, sequence: Sequence) -> None:
        """Tells the drafter that a sequence is gone, a second time where it raises."""
        for _ in range(2):
            try:
                return drafter.release(sequence)
            except Exception as error:
                self._count(error)

    def _end(self, drafter: Drafter, sequence: Sequence) -> None:
        """Drops what the drafter has of a sequence, its slots included: a mask does not hide a NaN."""
        sequence.is_drafting_over = True
        for cache in drafter.caches:
            cache.wipe(sequence.slot)
        self.release(drafter, sequence)

    def _count(self, error: Exception) -> None:
        self.stats.num_drafter_errors += 1
        if self.stats.num_drafter_errors == 1:
            logger.error("the drafter raised; requests go on without drafts where it does so again", exc_info=error)
