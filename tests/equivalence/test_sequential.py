"""E-processes: exact means, false alarms by simulation, power, merging. All runs are seeded."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.equivalence.laws import evidence, positions, softmax
from trt_spec.equivalence.statistics.deviation import log_mean_exp
from trt_spec.equivalence.statistics.evidence import Evidence
from trt_spec.equivalence.statistics.sequential import (
    KAPPAS,
    LAMBDAS,
    NUM_BETS,
    Positions,
    bin_shares,
    directed_increments,
    omnibus_increments,
)


def every_symbol(p, r, tolerance):
    """Factor [S, B] of the bet on r for each symbol that could be served."""
    size = len(p)
    rows = Positions(np.tile(p, (size, 1)), np.arange(size), {"r": np.tile(r, (size, 1))}, {})
    return np.exp(directed_increments(rows, ("r",), tolerance)[:, 0])


def worst_in_ball(p, payoff, radius):
    """max of E_p'[payoff] over TV(p', p) ≤ radius, by moving mass from the smallest payoffs to the largest."""
    order, law, left = np.argsort(payoff), p.copy(), radius
    for symbol in order[:-1]:
        moved = min(law[symbol], left)
        law[symbol] -= moved
        left -= moved
    law[order[-1]] += radius - left
    return float(law @ payoff), law


@pytest.mark.parametrize("tolerance", [0.0, 0.001, 0.03])
@pytest.mark.parametrize("seed", range(8))
def test_a_directed_bet_is_fair_or_worse_on_the_whole_ball(seed, tolerance):
    """Exact, over every symbol: at most 1 at the worst law within the tolerance, and 1 at p where it is 0."""
    rng = np.random.default_rng(seed)
    p, r = softmax(rng.normal(size=12) * 2), softmax(rng.normal(size=12) * 2)
    r[3] = 0.0
    factor = every_symbol(p, r / r.sum(), tolerance)
    for index in range(NUM_BETS):
        worst, law = worst_in_ball(p, factor[:, index], tolerance)
        assert worst <= 1 + 1e-12
        assert 0.5 * np.abs(law - p).sum() <= tolerance + 1e-12
        if tolerance == 0:
            assert p @ factor[:, index] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_the_omnibus_bet_is_fair(tolerance):
    rng = np.random.default_rng(1)
    p, counts = softmax(rng.normal(size=9) * 3), rng.random(8) * 50
    rows = Positions(np.tile(p, (9, 1)), np.arange(9), {}, {"p": np.tile(-p, (9, 1))})
    shares = bin_shares(rows, rows.orderings["p"])
    assert shares.sum(-1) == pytest.approx(np.ones(9))
    assert p @ shares == pytest.approx(np.full(8, 1 / 8), abs=1e-12)
    factor = np.exp([omnibus_increments(share[None], counts, tolerance)[0] for share in shares])
    assert worst_in_ball(p, factor, tolerance)[0] <= 1 + 1e-12
    if tolerance == 0:
        assert p @ factor == pytest.approx(1, abs=1e-12)


def test_closed_form_of_one_bet():
    """Two symbols, r/p = 1.6 and 0.4: log(1 + λ(r/p − 1)), and log(1 ± κ(g − p))."""
    rows = Positions(np.array([[0.5, 0.5]]), np.array([0]), {"r": np.array([[0.8, 0.2]])}, {})
    wanted = [1 + x * 0.6 for x in LAMBDAS] + [1 + x * 0.5 for x in KAPPAS] + [1 - x * 0.5 for x in KAPPAS]
    assert directed_increments(rows, ("r",), 0.0)[0, 0] == pytest.approx(np.log(wanted))


def test_no_bet_where_the_alternative_is_the_target():
    rows = positions(np.random.default_rng(0), 5)
    same = Positions(rows.target_probs, rows.tokens, {"draft": rows.target_probs}, {})
    assert directed_increments(same, ("draft", "missing"), 0.0) == pytest.approx(0.0)
    assert directed_increments(same, ("draft",), 0.01) == pytest.approx(0.0)


def test_a_token_that_the_target_excludes_is_decisive():
    """The untruncated law serves a token with p = 0."""
    p = np.array([[0.7, 0.3, 0.0]])
    rows = Positions(p, np.array([2]), {"draft": np.array([[0.6, 0.3, 0.1]])}, {"hash": np.array([[0, 1, 2]])})
    found = Evidence(("draft",), ("hash",), 0.05)
    found.update(rows)
    assert found.is_rejected(1e-3)


def false_alarms(alpha, num_runs, num_tokens, seed, tolerance=0.0, served=None):
    rng = np.random.default_rng(seed)
    rejected = 0
    for _ in range(num_runs):
        found = evidence(tolerance=tolerance)
        found.update(positions(rng, num_tokens, served=served), with_deviations=False)
        rejected += found.is_rejected(alpha)
    return rejected


def test_false_alarms():
    """200 null runs of 300 tokens; at α = 0.05 at most 7 %, at 1e-4 none (expected: at most 10 and 0.02)."""
    assert false_alarms(0.05, 200, 300, seed=5) <= 14
    assert false_alarms(1e-4, 200, 300, seed=6) == 0


@pytest.mark.nightly
def test_false_alarms_long():
    """1000 null runs of 2000 tokens each; looked at after every token."""
    assert false_alarms(0.05, 1000, 2000, seed=7) <= 70
    assert false_alarms(1e-4, 1000, 2000, seed=8) == 0


def test_no_false_alarm_at_the_edge_of_the_tolerance():
    """Every token drawn at TV = ν from p, straight towards an alternative of the bank."""
    tolerance = 0.02

    def served(p, q):
        distance = 0.5 * np.abs(p - q).sum(-1, keepdims=True)
        return p + (q - p) * np.minimum(1, tolerance / distance)

    assert false_alarms(0.05, 60, 1500, seed=9, tolerance=tolerance, served=served) <= 4
    assert false_alarms(0.05, 4, 16000, seed=9, tolerance=0.0, served=served) >= 3  # the point null does reject


MUTANTS = {
    "draft": (lambda p, q: q, 120),
    "half draft": (lambda p, q: (p + q) / 2, 500),
    "argmax": (lambda p, q: np.eye(p.shape[1])[p.argmax(-1)], 150),
    "flatter": (lambda p, q: p**0.8 / (p**0.8).sum(-1, keepdims=True), 2500),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_power(name):
    """Caught at α = 1e-4 within the given number of tokens, also with a small tolerance."""
    served, limit = MUTANTS[name]
    for tolerance in (0.0, 0.002):
        found = evidence(tolerance=tolerance)
        update = found.update(positions(np.random.default_rng(3), 3000, served=served), with_deviations=False)
        needed = int(np.argmax(update.log_e >= np.log(1e4))) + 1
        assert found.is_rejected(1e-4)
        assert needed <= limit


def test_small_deviations_are_seen_beyond_a_tolerance():
    """Four hundredths along one alternative, where the tolerance costs ratios too much."""

    def served(p, q):
        best = np.eye(p.shape[1])[p.argmax(-1)]
        return p + (best - p) * np.minimum(1, 0.04 / (1 - p.max(-1, keepdims=True)))

    found = evidence(tolerance=0.005)
    found.update(positions(np.random.default_rng(6), 6000, served=served), with_deviations=False)
    assert found.is_rejected(1e-4)


def test_parts_give_the_whole():
    """Token by token, in chunks, saved and restored in between: the same evidence."""
    rng = np.random.default_rng(4)
    rows = positions(rng, 60)

    def part(start, end):
        cut = slice(start, end)
        laws = {name: law[cut] for name, law in rows.alternatives.items()}
        orderings = {name: keys[cut] for name, keys in rows.orderings.items()}
        return Positions(rows.target_probs[cut], rows.tokens[cut], laws, orderings)

    whole, pieces = evidence(tolerance=0.001), evidence(tolerance=0.001)
    path = whole.update(rows).log_e
    seen = []
    for start, end in ((0, 1), (1, 1), (1, 30), (30, 60)):
        seen += pieces.update(part(start, end)).log_e.tolist()
        pieces = Evidence.from_dict(json.loads(json.dumps(pieces.as_dict())))
    assert seen == pytest.approx(path)
    assert pieces.log_e == pytest.approx(whole.log_e)
    assert pieces.deviations.sums == pytest.approx(whole.deviations.sums)
    assert pieces.num_tokens == whole.num_tokens == 60


def test_log_mean_exp():
    assert log_mean_exp(np.array([0.0, np.log(3)])) == pytest.approx(np.log(2))
    assert log_mean_exp(np.array([-1e9, 1000.0])) == pytest.approx(1000 - np.log(2))
