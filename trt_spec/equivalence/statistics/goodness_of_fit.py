"""Counts against a known law, or against other counts: G tests with pooling, Holm's correction, and their power.

For Monte Carlo with the real generators, where one context is sampled many times. Each test states its false-alarm
probability and, by `min_detectable_tv`, the smallest effect that it can see.
Sources: Wilks 1938 (G), Cochran 1954 (expected counts of 5), Holm 1979, Patnaik 1949 (noncentral χ²).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
MIN_EXPECTED = 5.0


@dataclass(frozen=True)
class Fit:
    """A G test: 2 Σ observed · log(observed/expected) over pooled cells."""

    statistic: float
    degrees: int
    pvalue: float
    num_samples: int


def chi2_sf(statistic: float, degrees: float) -> float:
    """P(χ² with that many degrees ≥ statistic)."""
    if degrees <= 0:
        return 1.0
    half = torch.tensor([degrees / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def pooled_cells(expected: Array, min_expected: float = MIN_EXPECTED) -> NDArray[np.int64]:
    """Cell of every symbol: the largest ones keep their own, the others share cells of at least `min_expected`."""
    cells, cell, mass = np.empty(len(expected), dtype=np.int64), 0, 0.0
    for symbol in np.argsort(-expected, kind="stable"):
        cells[symbol] = cell
        mass += expected[symbol]
        if mass >= min_expected:
            cell, mass = cell + 1, 0.0
    if 0 < mass < min_expected and cell > 0:
        cells[cells == cell] = cell - 1
    return cells


def one_sample(counts: Array, probs: Array) -> Fit:
    """Whether counts [V] come from the law probs [V]. A token with probability 0 gives p-value 0."""
    counts, total = np.asarray(counts, dtype=np.float64), float(np.sum(counts))
    if counts[probs <= 0].sum() > 0:
        return Fit(math.inf, 0, 0.0, int(total))
    inside = probs > 0
    expected = probs[inside] * total
    cells = pooled_cells(expected)
    observed, expected = np.bincount(cells, counts[inside]), np.bincount(cells, expected)
    seen = observed > 0
    statistic = 2 * float((observed[seen] * np.log(observed[seen] / expected[seen])).sum())
    return Fit(statistic, len(expected) - 1, chi2_sf(statistic, len(expected) - 1), int(total))


def two_sample(one: Array, other: Array) -> Fit:
    """Whether two count vectors [V] come from one law."""
    table = np.stack([one, other]).astype(np.float64)
    totals = table.sum(1, keepdims=True)
    cells = pooled_cells(table.sum(0) * totals.min() / totals.sum())
    table = np.stack([np.bincount(cells, row) for row in table])
    expected = totals * table.sum(0) / totals.sum()
    seen = table > 0
    statistic = 2 * float((table[seen] * np.log(table[seen] / expected[seen])).sum())
    return Fit(statistic, table.shape[1] - 1, chi2_sf(statistic, table.shape[1] - 1), int(totals.sum()))


def holm(pvalues: Sequence[float]) -> list[float]:
    """Adjusted p-values: rejecting those at most α keeps the chance of any false alarm at α."""
    order = np.argsort(pvalues, kind="stable")
    adjusted, largest = [0.0] * len(pvalues), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(pvalues) - rank) * pvalues[index]))
        adjusted[index] = largest
    return adjusted


def min_detectable_tv(num_samples: int, num_cells: int, alpha: float, power: float = 0.95) -> float:
    """The TV that a one-sample test over equally likely cells sees with this power, when it is spread over all cells.

    χ² is then noncentral with n · (2 TV)² ; its tail by Patnaik's approximation.
    """
    degrees = num_cells - 1
    limit = _bisect(lambda x: alpha - chi2_sf(x, degrees), 0.0, 10.0 * (degrees + 50))

    def missing(noncentrality: float) -> float:
        spread = (degrees + 2 * noncentrality) / (degrees + noncentrality)
        return chi2_sf(limit / spread, (degrees + noncentrality) ** 2 / (degrees + 2 * noncentrality)) - power

    return math.sqrt(_bisect(missing, 0.0, 100.0 * (degrees + 50)) / num_samples) / 2


def _bisect(function, low: float, high: float) -> float:
    """The zero of a function that rises from below 0."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2
