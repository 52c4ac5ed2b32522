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
        self, drafter: Drafter, sequences: SequenceOf[Sequence], call: Callable[[slice], SequenceOf[T]]
    ) -> list[T | None]:
        """One answer per sequence, None where the drafter raised, now or earlier.

        Args:
            call: asks for a part of the sequences and returns one answer for each.
        """
        answers: list[T | None] = []
        for is_over, group in groupby(sequences, lambda sequence: sequence.is_drafting_over):
            run = list(group)
            answers += [None] * len(run) if is_over else self._ask(drafter, run, call, len(answers))
        return answers

    def _ask(
        self, drafter: Drafter, sequences: list[Sequence], call: Callable[[slice], SequenceOf[T]], start: int
    ) -> SequenceOf[T | None]:
        """As `ask`, for neighbours that the drafter follows, the first of which has the place `start`."""
        before = [dict(sequence.drafter_states) for sequence in sequences]
        answers = self._try(call, start, len(sequences))
        if answers is not None:
            return answers
        alone: list[T | None] = []
        for place, (sequence, states) in enumerate(zip(sequences, before, strict=True), start):
            sequence.drafter_states = states
            answers = self._try(call, place, 1)
            if answers is None:
                sequence.is_drafting_over = True
                sequence.drafter_states = {}
                for cache in drafter.caches:
                    cache.wipe(sequence.slot)  # a mask does not hide a NaN
            alone += answers or [None]
        return alone

    def _try(self, call: Callable[[slice], SequenceOf[T]], start: int, count: int) -> list[T] | None:
        """The answers of a call; None where it raised or gave too few or too many."""
        try:
            answers = list(call(slice(start, start + count)))
            if len(answers) != count:
                raise ValueError(f"the drafter gave {len(answers)} answers for {count} sequences")
            return answers
        except Exception as error:  # whatever a drafter raises, the requests can be served without drafts
            self.stats.num_drafter_errors += 1
            if self.stats.num_drafter_errors == 1:
                logger.error("the drafter raised; requests go on without drafts where it does so again", exc_info=error)
            return None
