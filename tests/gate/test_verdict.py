"""The gate's verdicts on simulated machines, with seeds: how often it is wrong, and what it can see.

Simulated noise: every block takes its true time multiplied by exp(0.02 · normal), and every request likewise, which is
a quiet machine's; 2 % of requests are held up by half their time.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from tests.gate.fakes import record
from trt_spec.errors import UsageError
from trt_spec.gate import verdict as gate
from trt_spec.gate.bootstrap import Interval
from trt_spec.gate.metrics import Slo
from trt_spec.gate.verdict import ALPHA, Blocks, Check, Demands, compare, judge_speedup, judge_ttft

NUM_RUNS = 200
NUM_PAIRS = 20


def blocks(generator, slower: float = 1.0, ttft: float = 1.0, *, noise=0.02, held_up=0.02, drift=0.0) -> Blocks:
    """One arm's blocks of 8 requests; `slower` multiplies its times, and `ttft` its times to first token."""
    shape = (NUM_PAIRS, 8)
    block = np.exp(noise * generator.standard_normal(NUM_PAIRS) + drift)
    request = np.exp(noise * generator.standard_normal(shape)) * (1 + 0.5 * (generator.random(shape) < held_up))
    tpot = 10 * slower * block[:, None] * request
    seconds = slower * block * (1 + 0.1 * generator.random(NUM_PAIRS))
    return Blocks(np.full(NUM_PAIRS, 800.0), seconds, np.full(NUM_PAIRS, 8.0), 30 * ttft * tpot / slower, tpot)


def verdicts(seed: int, slower: float, floor: float, *, num_checks: int = 2, **options) -> Counter:
    generator, seen = np.random.default_rng(seed), Counter()
    for _ in range(NUM_RUNS):
        found = compare(blocks(generator), blocks(generator, slower, **options), ALPHA / num_checks, generator)
        seen[judge_speedup("load", found.ratios["speedup"], found.noise["speedup"], floor).verdict] += 1
    return seen


@pytest.fixture
def quick(monkeypatch):
    """1000 resamples of the judged ratios, for time; the tail at 2.5 % then rests on a dozen of them."""
    draw = gate.bootstrap.draw
    monkeypatch.setattr(gate.bootstrap, "draw", lambda num_pairs, generator: draw(num_pairs, generator, 1000))
    monkeypatch.setattr(gate, "RATIOS", {name: gate.RATIOS[name] for name in ("speedup", "ttft_p99")})


simulated = pytest.mark.usefixtures("quick")


@simulated
def test_an_arm_that_is_five_percent_slower_is_rejected():
    """Smallest visible effect: 5 % at 2 % noise is seen in at least 95 of 100 runs, and never passes."""
    seen = verdicts(1, slower=1.05, floor=1.0)
    assert seen["fail"] >= 0.95 * NUM_RUNS, seen
    assert seen["pass"] == 0


@simulated
def test_equal_arms_do_not_fail():
    """A/A against floor 1: the stated rate is ALPHA / 2 = 2.5 % for one check of two; 200 runs: 5, and under 12 by 3
    sigma. A wrong pass is as rare."""
    seen = verdicts(2, slower=1.0, floor=1.0)
    assert seen["fail"] < 12, seen
    assert seen["pass"] < 12, seen
    assert seen["inconclusive"] > 0.9 * NUM_RUNS


@simulated
def test_an_arm_above_its_floor_passes():
    seen = verdicts(3, slower=1 / 1.4, floor=1.3)
    assert seen["pass"] >= 0.95 * NUM_RUNS, seen
    assert seen["fail"] == 0


@simulated
def test_noise_makes_a_run_inconclusive():
    """8 % noise hides 5 %: neither verdict may be given often."""
    generator, seen = np.random.default_rng(4), Counter()
    for _ in range(NUM_RUNS):
        found = compare(blocks(generator, noise=0.08), blocks(generator, 1.05, noise=0.08), ALPHA / 2, generator)
        seen[judge_speedup("load", found.ratios["speedup"], found.noise["speedup"], 1.0).verdict] += 1
    assert seen["inconclusive"] > 0.6 * NUM_RUNS, seen
    assert seen["pass"] == 0


@simulated
def test_a_drift_of_the_machine_is_not_taken_for_an_effect():
    """The machine becomes 30 % slower over the run; the arms are equal."""
    generator, failures, bias = np.random.default_rng(5), 0, []
    drift = np.linspace(0, 0.3, 2 * NUM_PAIRS)  # over blocks in the order of time: ABBA, BAAB, ...
    order = [arm for _, arm in gate_order(NUM_PAIRS)]
    plain_drift = drift[[i for i, arm in enumerate(order) if arm == "plain"]]
    other_drift = drift[[i for i, arm in enumerate(order) if arm != "plain"]]
    for _ in range(NUM_RUNS):
        arms = [blocks(generator, drift=each) for each in (plain_drift, other_drift)]
        found = compare(*arms, ALPHA / 2, generator)
        failures += judge_speedup("load", found.ratios["speedup"], found.noise["speedup"], 1.0).verdict == "fail"
        bias.append(math.log(found.ratios["speedup"].estimate))
    assert failures < 12
    assert abs(np.mean(bias)) < 3 * np.std(bias) / math.sqrt(NUM_RUNS)


def gate_order(num_pairs):
    from trt_spec.gate.measure import abba

    return list(abba(num_pairs))


def guard_verdicts(seed: int, ttft: float, held_up: float) -> Counter:
    generator, seen = np.random.default_rng(seed), Counter()
    for _ in range(NUM_RUNS):
        arms = blocks(generator, held_up=held_up), blocks(generator, ttft=ttft, held_up=held_up)
        found = compare(*arms, ALPHA / 2, generator)
        seen[judge_ttft("load", found.ratios["ttft_p99"], found.noise["ttft_p99"], 1.05).verdict] += 1
    return seen


@simulated
@pytest.mark.parametrize("held_up", [0.0, 0.02])
def test_equal_times_to_first_token_do_not_fail(held_up):
    """The stated rate is 2.5 %: 5 of 200 runs, and under 12 by 3 sigma. Without hold-ups nearly all of them pass."""
    seen = guard_verdicts(6, 1.0, held_up)
    assert seen["fail"] < 12, seen
    assert seen["pass"] >= (0.95 if held_up == 0 else 0.6) * NUM_RUNS, seen


@simulated
def test_a_longer_time_to_first_token_is_seen():
    """Smallest visible effect without hold-ups: 12 % is seen in 95 of 100 runs. p99 of 160 requests is the second
    largest, so the guard sees less than the speed-up does; with hold-ups (2 % of requests, half as long again), only
    60 % more is seen in 3 of 4 runs."""
    assert guard_verdicts(7, 1.12, 0.0)["fail"] >= 0.95 * NUM_RUNS
    assert guard_verdicts(8, 1.6, 0.02)["fail"] >= 0.75 * NUM_RUNS


@pytest.mark.parametrize(
    ("interval", "noise", "verdict"),
    [
        ((1.4, 1.32, 1.5), 0.02, "pass"),
        ((1.4, 1.28, 1.5), 0.02, "inconclusive"),  # the floor lies inside
        ((1.2, 1.15, 1.29), 0.02, "fail"),
        ((1.2, 1.15, 1.31), 0.02, "inconclusive"),
        ((1.4, 1.32, 1.5), 0.08, "inconclusive"),  # A/A spreads wider than log(1.4 / 1.3)
        ((1.2, 1.15, 1.29), 0.09, "inconclusive"),
    ],
)
def test_the_rule_of_the_speedup(interval, noise, verdict):
    check = judge_speedup("concurrency 1", Interval(*interval), noise, 1.3)
    assert check.verdict == verdict
    assert check.name == "speed-up, concurrency 1"
    assert "floor 1.3" in check.words


@pytest.mark.parametrize(
    ("interval", "noise", "verdict"),
    [
        ((1.04, 0.9, 1.2), 0.1, "pass"),
        ((1.2, 1.1, 1.3), 0.02, "fail"),
        ((1.2, 1.04, 1.3), 0.02, "inconclusive"),
        ((1.2, 1.1, 1.3), 0.2, "inconclusive"),
    ],
)
def test_the_rule_of_the_guard(interval, noise, verdict):
    assert judge_ttft("concurrency 1", Interval(*interval), noise, 1.05).verdict == verdict


def test_one_failed_check_fails_the_run():
    checks = {verdict: Check("x", verdict, "") for verdict in ("pass", "inconclusive", "fail")}
    assert gate.overall(checks.values()) == "fail"
    assert gate.overall([checks["pass"], checks["inconclusive"]]) == "inconclusive"
    assert gate.overall([checks["pass"]]) == gate.overall([]) == "pass"


def records(load="concurrency 1", *, speedup=1.5, num_pairs=NUM_PAIRS, seed=0):
    generator, rows, now = np.random.default_rng(seed), [], 0.0
    for block, (pair, arm) in enumerate(gate_order(num_pairs)):
        for _ in range(4):
            step = 10 / (speedup if arm == "speculation" else 1) * math.exp(0.01 * generator.standard_normal())
            chunks = [now + 20 + step * i for i in range(5)]
            rows.append(record(chunks, [1, 2, 2, 2, 2], now, load=load, arm=arm, block=block, pair=pair))
            now = chunks[-1]
    return rows


def test_everything_is_derived_from_records():
    warm_up = record(load="concurrency 1", arm="plain", pair=-1, due_ms=-9e6)  # does not count
    rows = [*records(), warm_up]
    found = gate.evaluate(rows, Demands({"concurrency 1": 1.1}, slo=Slo(25, None)))
    [load] = found.loads
    truth = (20 + 40) / (20 + 40 / 1.5)
    assert found.verdict == "pass"
    assert load.ratios["speedup"].estimate == pytest.approx(truth, rel=0.01)
    assert load.arms["plain"].num_requests == 4 * NUM_PAIRS
    assert load.arms["plain"].goodput_per_s == pytest.approx(1 / 0.06, rel=0.01)
    assert len(load.per_pair) == NUM_PAIRS
    assert found.num_checks == 2
    assert found.confidence == pytest.approx(1 - 2 * ALPHA / 2)
    assert gate.evaluate(rows, Demands({"concurrency 1": 1.1}, slo=Slo(25, None))) == found
    assert gate.evaluate(rows, Demands({"concurrency 1": 1.6})).verdict == "fail"


def test_no_floor_means_measured_and_not_judged():
    found = gate.evaluate(records(speedup=0.5), Demands())
    assert [check.name for check in found.checks] == ["TTFT p99, concurrency 1"]
    assert found.verdict == "pass"


@pytest.mark.parametrize(
    ("rows", "demands", "words"),
    [
        ([], Demands(), "no blocks"),
        (records(), Demands({"concurrency 4": 1.0}), "no blocks for a floor"),
        (records(num_pairs=18), Demands(), "whole ABBA"),
        ([row for row in records() if row.arm == "plain"], Demands(), "whole ABBA"),
        (records()[:-1], Demands(), "different size"),
    ],
)
def test_records_that_are_not_whole_are_refused(rows, demands, words):
    with pytest.raises(UsageError, match=words):
        gate.evaluate(rows, demands)
