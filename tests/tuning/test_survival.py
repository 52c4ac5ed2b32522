"""Shares and their intervals: against scipy, by hand, and by simulating prompts that differ."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from trt_spec.tuning.survival import AcceptanceProfile, Interval, clustered_ratio


def test_given_rates_multiply_up_to_survival():
    profile = AcceptanceProfile.given([0.8, 0.5, 0.5])
    assert [one.estimate for one in profile.survival] == pytest.approx([0.8, 0.4, 0.2])
    assert [one.low for one in profile.expected_tokens] == pytest.approx([1, 1.8, 2.2, 2.4])
    assert profile.drafted_tokens == (0, 1, 2, 3)
    assert profile.rates == pytest.approx((0.8, 0.5, 0.5))


def test_counts_by_hand():
    """Two prompts: 4 steps that accept 2, 1, 0 and 0 of 2 tokens, and 2 steps of which one had no draft."""
    first, second = [(2, 2), (2, 1), (2, 0), (2, 0)], [(1, 1), (0, 0)]
    profile = AcceptanceProfile.measured([first, second, []], 2)
    assert [one.estimate for one in profile.survival] == pytest.approx([3 / 6, 1 / 6])
    assert [one.estimate for one in profile.expected_tokens] == pytest.approx([1, 1.5, 1 + 4 / 6])
    assert profile.drafted_tokens == pytest.approx((0, 5 / 6, 9 / 6))
    assert (profile.num_prompts, profile.num_steps) == (2, 6)


def test_equal_clusters_have_the_interval_of_a_mean():
    """Where all clusters have the same size the ratio is a mean, and its interval that of Student for it."""
    counts, sizes = np.array([3.0, 5, 8, 4, 6]), np.full(5, 10.0)
    found = clustered_ratio(counts, sizes, 0.9)
    low, high = stats.t.interval(0.9, 4, loc=0.52, scale=stats.sem(counts / 10))
    assert astuple(found) == pytest.approx((0.52, low, high), rel=1e-4)


def prompts_that_differ(rng, num_prompts):
    """Counts and sizes of prompts whose acceptance is drawn from Beta(3, 2): mean 0.6."""
    sizes = rng.integers(20, 60, num_prompts).astype(float)
    return rng.binomial(sizes.astype(int), rng.beta(3, 2, num_prompts)).astype(float), sizes


def test_intervals_hold_what_they_promise_where_prompts_differ():
    """2000 runs of 12 prompts, nominally 95 %: covers at least 91 %. Steps taken as independent would cover under 60 %.

    The standard error of a coverage of 0.95 over 2000 runs is 0.005, so a right 0.93 fails in less than 1 of 1000.
    """
    rng = np.random.default_rng(7)
    covered = naive = 0
    for _ in range(2000):
        counts, sizes = prompts_that_differ(rng, 12)
        covered += (found := clustered_ratio(counts, sizes, 0.95)).low <= 0.6 <= found.high
        half = 1.96 * np.sqrt(found.estimate * (1 - found.estimate) / sizes.sum())
        naive += abs(found.estimate - 0.6) <= half
    assert covered / 2000 >= 0.91
    assert naive / 2000 < 0.6


def test_agreement_and_single_prompts_are_no_certainty():
    assert clustered_ratio(np.array([3.0]), np.array([4.0]), 0.95) == Interval(0.75, 0, 1)
    all_of_six = clustered_ratio(np.full(6, 9.0), np.full(6, 9.0), 0.95)
    assert all_of_six.high == 1
    assert all_of_six.low == pytest.approx(0.025 ** (1 / 6))  # Clopper and Pearson's for 6 of 6
    assert clustered_ratio(np.array([]), np.array([]), 0.95) == Interval(0, 0, 1)
