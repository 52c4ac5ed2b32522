"""Confidence bounds on deviations: what is certified is true, and an equivalent server gets its certificate."""

from __future__ import annotations

import numpy as np
import pytest

from tests.equivalence.laws import evidence, positions
from trt_spec.equivalence.statistics.deviation import Deviations


def towards_draft(amount):
    """p moved along p → q to TV = amount, where q is that far away."""

    def served(p, q):
        distance = 0.5 * np.abs(p - q).sum(-1, keepdims=True)
        return p + (q - p) * np.minimum(1, amount / distance)

    return served


def run(seed, num_tokens, served=None, tau=0.1):
    found = evidence(tau=tau)
    found.update(positions(np.random.default_rng(seed), num_tokens, served=served))
    return found.deviations


def test_an_equivalent_server_is_certified():
    """TV 0.1 at α = 1e-3; laws of entropy about 1.5 nats."""
    deviations = run(1, 3000)
    assert deviations.is_excluded(0.1, 1e-3)
    assert deviations.smallest_bound(1e-3) <= 0.1
    needed = deviations.num_tokens_needed(0.1, 1e-3)
    assert needed < 3000


def test_a_deviation_of_tau_is_not_certified():
    """20 runs at exactly τ along one direction, α = 0.05: at most 4 certified (chance of more: 0.003)."""
    certified = sum(run(seed, 2000, towards_draft(0.1)).is_excluded(0.1, 0.05) for seed in range(20))
    assert certified <= 4


def test_a_deviation_is_shown_and_measured():
    deviations = run(2, 4000, towards_draft(0.2))  # 0.16 in the mean, for some drafts are nearer than 0.2
    rows = {row.direction: row for row in deviations.table(1e-3)}
    assert rows["draft"].deviation == pytest.approx(0.16, abs=0.03)
    assert rows["draft"].shown_above >= 0.1
    assert not deviations.is_excluded(0.1, 1e-3)


def test_the_histogram_sees_what_no_alternative_names():
    """The rarer half of the vocabulary gets 10 % of the mass."""

    def served(p, q):
        rare = p < np.median(p, axis=-1, keepdims=True)
        return 0.85 * p + 0.15 * rare / rare.sum(-1, keepdims=True)

    rows = {row.direction: row for row in run(3, 4000, served).table(1e-3)}
    assert abs(rows["histogram by probability"].deviation) > 0.08


def test_a_mean_that_changes():
    """Deviations that cancel in the mean are certified, ones that do not are not: the bound is on the mean."""
    empty = Deviations.empty(("one",), (), 0.1, 8)
    rng = np.random.default_rng(0)
    means = np.where(np.arange(4000) < 2000, 0.15, -0.15)
    y = np.where(rng.random(4000) < 0.5 + means, 0.5, -0.5)[:, None]
    empty.add(y)
    assert empty.is_excluded(0.1, 1e-3)
    first = Deviations.empty(("one",), (), 0.1, 8)
    first.add(y[:2000])
    assert not first.is_excluded(0.1, 1e-3)


@pytest.mark.nightly
def test_wrong_certificates():
    """400 runs at exactly τ, stopped as soon as certified; α = 0.05, so at most 20 expected; 34 has chance 0.1 %."""
    wrong = 0
    for seed in range(400):
        found, rng = evidence(tau=0.1), np.random.default_rng(seed)
        for _ in range(20):
            found.update(positions(rng, 150, served=towards_draft(0.1)))
            if found.deviations.is_excluded(0.1, 0.05):
                wrong += 1
                break
    assert wrong <= 34
