"""Counts against known probabilities: G tests over pooled cells, Holm's correction, and what such a test can see.

Sources: Wilks 1938 (G), Cochran 1954 (expected counts of 5), Holm 1979.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats

MIN_EXPECTED = 5.0


def pooled_cells(expected, min_expected=MIN_EXPECTED):
    """[V] cell of every symbol: the largest ones keep their own, the others share cells of at least `min_expected`."""
    cells, cell, mass = np.empty(len(expected), dtype=np.int64), 0, 0.0
    for symbol in np.argsort(-expected, kind="stable"):
        cells[symbol] = cell
        mass += expected[symbol]
        if mass >= min_expected:
            cell, mass = cell + 1, 0.0
    if 0 < mass < min_expected and cell > 0:
        cells[cells == cell] = cell - 1
    return cells


def g_test(counts, probs):
    """p-value of counts [V] under probs [V]; 0 where a token of probability 0 came."""
    inside = probs > 0
    if counts[~inside].sum() > 0:
        return 0.0
    expected = probs[inside] / probs[inside].sum() * counts.sum()
    cells = pooled_cells(expected)
    observed, expected = np.bincount(cells, counts[inside]), np.bincount(cells, expected)
    return stats.power_divergence(observed, expected, lambda_="log-likelihood").pvalue


def holm(pvalues):
    """Adjusted p-values: rejecting those at most α keeps the chance of any false alarm at α."""
    order = np.argsort(pvalues, kind="stable")
    steps = np.array(pvalues)[order] * np.arange(len(pvalues), 0, -1)
    adjusted = np.empty(len(pvalues))
    adjusted[order] = np.maximum.accumulate(steps).clip(max=1)
    return adjusted.tolist()


def min_detectable_tv(num_samples, num_cells, alpha, power=0.95):
    """The TV, spread over equally likely cells, that the test sees with this power: χ² with noncentrality n (2 TV)²."""
    degrees = num_cells - 1
    limit = stats.chi2.isf(alpha, degrees)
    noncentrality = optimize.brentq(lambda x: stats.ncx2.sf(limit, degrees, x) - power, 1e-9, 100.0 * (degrees + 50))
    return (noncentrality / num_samples) ** 0.5 / 2
