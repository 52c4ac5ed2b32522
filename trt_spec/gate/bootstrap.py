"""Paired bootstrap: intervals of a ratio of two arms, by drawing pairs of blocks with replacement.

The plain percentile interval is too narrow for few pairs. Here its tails are widened as if a mean were estimated:
tail = Φ(sqrt(n / (n − 1)) · t(level; n − 1)), the expanded percentile interval of Hesterberg, "What Teachers Should
Know About the Bootstrap" (The American Statistician 69, 2015), section 5.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 10_000
_CHUNK = 500  # resamples at once, so that pooled quantiles stay within some tens of megabytes

# From rows [R, n] of pair numbers to one value per row.
Statistic = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Interval:
    """An estimate and its bounds, each missed with the probability that was asked for."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Of the logarithm."""
        return (math.log(self.high) - math.log(self.low)) / 2


def expanded_tail(tail: float, num_pairs: int) -> float:
    """The percentile of the bootstrap distribution that is taken for a bound missed with probability `tail`."""
    from scipy import stats  # slow to import

    return float(stats.norm.cdf(math.sqrt(num_pairs / (num_pairs - 1)) * stats.t.ppf(tail, num_pairs - 1)))


def draw(num_pairs: int, generator: np.random.Generator, num_resamples: int = NUM_RESAMPLES) -> np.ndarray:
    """Pair numbers of every resample: [num_resamples, num_pairs]."""
    return generator.integers(0, num_pairs, (num_resamples, num_pairs))


def interval(statistic: Statistic, rows: np.ndarray, tail: float) -> Interval | None:
    """The interval of a positive statistic.

    Args:
        statistic: evaluated on the pairs as they are, and on each row of `rows`.
        rows: from `draw`.
        tail: probability with which each of the two bounds is missed.

    Returns:
        None where the statistic is not positive and finite on some resample.
    """
    num_pairs = rows.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = float(statistic(np.arange(num_pairs)[None])[0])
        values = np.concatenate([statistic(rows[i : i + _CHUNK]) for i in range(0, len(rows), _CHUNK)])
    if not (np.isfinite(values).all() and values.min() > 0 and math.isfinite(estimate) and estimate > 0):
        return None
    share = expanded_tail(tail, num_pairs)
    low, high = np.quantile(values, [share, 1 - share])
    return Interval(estimate, float(low), float(high))
