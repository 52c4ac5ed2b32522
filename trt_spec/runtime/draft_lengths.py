"""How long each request's next draft may be: as long as it pays, and not at all where it does not.

A step of B sequences costs C(rows), nearly flat while the hardware idles and rising after that. Position j of a draft
adds one row and, with an acceptance of a per position, a^j expected tokens. So the positions of all requests compete
for the rows of one step: they are taken in falling order of what they promise, up to where expected tokens per cost are
most. With few requests that drafts long; with many it drafts only where nearly everything is accepted, and is plain
decoding otherwise.

The choice depends on counts alone, never on a clock, so that equal requests give equal outputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

DECAY = 0.85  # of older steps in a request's acceptance
PRIOR_ACCEPTED, PRIOR_JUDGED = 3.0, 4.0  # before anything is known: worth a try
PROBE_INTERVAL = 16  # steps after which a request that drafts nothing tries one token again
HYSTERESIS = 8  # steps for which a larger number of sequences is remembered
MIN_GAIN = 1.02  # drafting has to promise this much over plain decoding

# Relative time of a step by rows, for engines whose build did not time it: SmolLM2-135M in bfloat16 on two CPU cores.
DEFAULT_STEP = {1: 1.0, 2: 1.12, 4: 1.27, 8: 1.6, 16: 2.25, 32: 3.2, 64: 5.0, 128: 8.2}


@dataclass(frozen=True)
class StepCosts:
    """Relative times; the unit is a step of one row.

    Attributes:
        step: rows of a step to its time. Between them it is linear, beyond them it goes on as at the end.
        level: drafting one level for all sequences.
    """

    step: Mapping[int, float] = field(default_factory=lambda: dict(DEFAULT_STEP))
    level: float = 0.0

    def at(self, rows: np.ndarray) -> np.ndarray:
        """Time of steps of so many rows."""
        known = np.array(sorted(self.step.items()), dtype=np.float64)
        found = np.interp(rows, known[:, 0], known[:, 1])
        if len(known) > 1:
            slope = (known[-1, 1] - known[-2, 1]) / (known[-1, 0] - known[-2, 0])
            found = found + np.maximum(rows - known[-1, 0], 0) * slope
        return found


@dataclass
class Acceptance:
    """What became of one request's drafts lately.

    Attributes:
        accepted, judged: decayed counts of accepted draft tokens, and of those that were accepted or rejected.
        num_steps_without: steps in which it could have drafted and did not, since it last did.
    """

    accepted: float = PRIOR_ACCEPTED
    judged: float = PRIOR_JUDGED
    num_steps_without: int = 0

    @property
    def rate(self) -> float:
        return self.accepted / self.judged

    def asked(self) -> None:
        """A draft was asked for."""
        self.num_steps_without = 0

    def judge(self, depth: int, num_accepted: int) -> None:
        """Of a draft of this depth, so many tokens were accepted."""
        self.accepted = DECAY * self.accepted + num_accepted
        self.judged = DECAY * self.judged + min(depth, num_accepted + 1)


class Drafted(Protocol):
    """A sequence, as far as this module knows it."""

    acceptance: Acceptance


class DraftLengths:
    """The policy of one engine.

    Args:
        schedule: number of sequences in a step to the longest draft, from that number on; None for no such bound.
        costs: None for drafts of full length, else the costs to weigh.
        rows_per_level: rows that one level of a draft adds, above 1 for trees.
    """

    def __init__(self, schedule: Mapping[int, int] | None, costs: StepCosts | None, rows_per_level: float = 1.0):
        self.schedule = sorted(schedule.items()) if schedule else []
        self.costs, self.rows_per_level = costs, rows_per_level
        self._recent: deque[int] = deque(maxlen=HYSTERESIS)

    def choose(self, sequences: Sequence[Drafted], limits: Sequence[int], num_sequences: int) -> list[int]:
        """Draft length of each sequence, at most its limit.

        Args:
            sequences: those that may draft. num_sequences: all that decode in this step.
            limits: tokens that each may draft, at most; 0 where its drafter has nothing to propose.
        """
        self._recent.append(num_sequences)
        if self.schedule:
            most = max(self._recent)
            cap = next((length for count, length in reversed(self.schedule) if count <= most), max(limits, default=0))
            limits = [min(limit, cap) for limit in limits]
        if self.costs is None or not any(limits):
            return list(limits)
        lengths = self._most_per_cost(sequences, limits, num_sequences)
        for index, sequence in enumerate(sequences):
            if lengths[index] == 0 and limits[index]:
                sequence.acceptance.num_steps_without += 1
                if sequence.acceptance.num_steps_without >= PROBE_INTERVAL:
                    lengths[index] = 1
        return lengths

    def _most_per_cost(self, sequences: Sequence[Drafted], limits: Sequence[int], num_sequences: int) -> list[int]:
        """The lengths with the most expected tokens per cost."""
        rate = np.array([sequence.acceptance.rate for sequence in sequences])[:, None]
        plain = num_sequences / float(self.costs.at(np.array([num_sequences]))[0])
        best_gain, best = MIN_GAIN, np.zeros(len(sequences), dtype=np.int64)
        # Levels are paid for once, by all: with a price on them, every depth is worth a look of its own.
        for num_levels in range(1 if self.costs.level else max(limits), max(limits) + 1):
            depth = np.arange(1, num_levels + 1)
            is_allowed = depth <= np.array(limits)[:, None]
            promise = np.where(is_allowed, rate**depth, -1.0)
            order = np.argsort(-promise, axis=None, kind="stable")[: int(is_allowed.sum())]
            owner = order // num_levels
            tokens = num_sequences + np.cumsum(promise.reshape(-1)[order])
            rows = num_sequences + np.arange(1, len(order) + 1) * self.rows_per_level
            gain = tokens / (self.costs.at(rows) + self.costs.level * num_levels) / plain
            index = int(gain.argmax())
            if gain[index] >= best_gain:
                best_gain, best = gain[index], np.bincount(owner[: index + 1], minlength=len(sequences))
        return best.tolist()
