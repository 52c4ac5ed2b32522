"""How far drafts survive: the share of steps whose i-th draft token was accepted, with what is known of it.

Steps of one prompt resemble each other, so a prompt is one observation and not its steps: shares are ratios of sums
over prompts, and their intervals come from the spread between prompts (the linearised variance of a ratio of clustered
sums: Cochran, Sampling Techniques, 3rd edition, section 9A; Student's t with one degree of freedom less than prompts).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A number and where it lies, with the confidence of its profile."""

    estimate: float
    low: float
    high: float


# Of one prompt, a cluster: the steps that asked for a draft of full length, each with the tokens that were drafted (0
# where none came) and those of them that were accepted.
PromptSteps = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class AcceptanceProfile:
    """What a step gains by its draft length k, 0 to the longest.

    Attributes:
        survival: by position i, from 1: share of steps that accepted it. Not conditional on the positions before.
        expected_tokens: by k: E_k, tokens of a step, 1 + the survivals up to k.
        drafted_tokens: by k: mean draft tokens that are verified; k where every step has a full draft.
        num_prompts, num_steps: what it rests on; 0 where the numbers were given.
    """

    survival: tuple[Interval, ...]
    expected_tokens: tuple[Interval, ...]
    drafted_tokens: tuple[float, ...]
    num_prompts: int = 0
    num_steps: int = 0

    @property
    def max_draft_len(self) -> int:
        return len(self.survival)

    @property
    def draft_share(self) -> float:
        """Share of steps that had a draft at all."""
        return self.drafted_tokens[1] if self.max_draft_len else 0.0

    @property
    def rates(self) -> tuple[float, ...]:
        """By position, the share that is accepted given that all before it were."""
        known = [1.0, *(interval.estimate for interval in self.survival)]
        return tuple(after / before if before else 0.0 for before, after in itertools.pairwise(known))

    @classmethod
    def given(cls, rates: Sequence[float]) -> AcceptanceProfile:
        """From numbers: by position, the probability to be accepted given that all before it were. No uncertainty."""
        survival = [float(value) for value in np.cumprod(rates)]
        expected = [1.0, *(1.0 + float(value) for value in np.cumsum(survival))]
        exact = [tuple(Interval(value, value, value) for value in values) for values in (survival, expected)]
        return cls(*exact, tuple(map(float, range(len(rates) + 1))))

    @classmethod
    def measured(cls, prompts: Sequence[PromptSteps], max_draft_len: int) -> AcceptanceProfile:
        """From counts; prompts without a step say nothing."""
        counted = [np.array(steps) for steps in prompts if steps]
        sizes = np.array([len(steps) for steps in counted], np.float64)
        reached = np.array([[(steps > i).sum(0) for i in range(max_draft_len)] for steps in counted], np.float64)
        drafted, accepted = np.moveaxis(reached.reshape(-1, max_draft_len, 2), -1, 0)
        upto = np.cumsum(accepted, axis=1)
        total = max(float(sizes.sum()), 1.0)
        expected = [Interval(1.0, 1.0, 1.0)]
        for length in range(1, max_draft_len + 1):
            found = clustered_ratio(upto[:, length - 1], sizes, CONFIDENCE, bound=length)
            expected.append(Interval(1 + found.estimate, 1 + found.low, 1 + found.high))
        return cls(
            survival=tuple(clustered_ratio(column, sizes, CONFIDENCE) for column in accepted.T),
            expected_tokens=tuple(expected),
            drafted_tokens=(0.0, *(float(value) for value in np.cumsum(drafted.sum(0)) / total)),
            num_prompts=len(counted),
            num_steps=int(sizes.sum()),
        )


def clustered_ratio(counts: np.ndarray, sizes: np.ndarray, confidence: float, bound: float = 1.0) -> Interval:
    """Σ counts / Σ sizes with an interval from the spread between clusters, within 0 and `bound`.

    One cluster tells no spread, so its interval is everything. Where all clusters agree to the last count, the interval
    is not nothing: it ends where so many clusters would still all agree with the remaining probability.
    """
    from scipy import stats  # slow to import

    if len(sizes) == 0:
        return Interval(0.0, 0.0, bound)
    ratio = float(counts.sum() / sizes.sum())
    if len(sizes) == 1:
        return Interval(ratio, 0.0, bound)
    num = len(sizes)
    tail = (1 - confidence) / 2
    residuals = counts - ratio * sizes
    error = math.sqrt(num / (num - 1) * float((residuals**2).sum())) / float(sizes.sum())
    if error == 0:
        slack = bound * (1 - tail ** (1 / num))
    else:
        slack = float(stats.t.ppf(1 - tail, num - 1)) * error
    return Interval(ratio, max(0.0, ratio - slack), min(bound, ratio + slack))
