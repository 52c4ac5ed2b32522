"""The policy of draft lengths against an enumeration of all choices, and its behaviour over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest

from trt_spec.runtime.draft_lengths import (
    DEFAULT_STEP,
    HYSTERESIS,
    MIN_GAIN,
    PROBE_INTERVAL,
    Acceptance,
    DraftLengths,
    StepCosts,
)


@dataclass
class Fake:
    acceptance: Acceptance = field(default_factory=Acceptance)


def fakes(*rates):
    return [Fake(Acceptance(accepted=10 * rate, judged=10)) for rate in rates]


def gain(rates, lengths, num_sequences, costs, rows_per_level=1.0):
    tokens = num_sequences + sum(
        rate**j for rate, length in zip(rates, lengths, strict=True) for j in range(1, length + 1)
    )
    rows = np.array([num_sequences + rows_per_level * sum(lengths), num_sequences], dtype=float)
    spent, plain = costs.at(rows)
    return (tokens / (spent + costs.level * max(lengths))) / (num_sequences / plain)


@pytest.mark.parametrize("level", [0.0, 0.2])
@pytest.mark.parametrize("others", [0, 5])
@pytest.mark.parametrize("rates", [(0.9,), (0.3, 0.8), (0.6, 0.61, 0.05)])
def test_no_choice_promises_more(rates, others, level):
    """Convex costs: taking positions in falling order is best, as an enumeration of all lengths shows."""
    costs = StepCosts({1: 1.0, 4: 1.1, 8: 1.3, 16: 2.1, 32: 4.5}, level)
    num = len(rates) + others
    chosen = DraftLengths(None, costs).choose(fakes(*rates), [3] * len(rates), num)
    best = max(gain(rates, lengths, num, costs) for lengths in product(range(4), repeat=len(rates)))
    mine = gain(rates, chosen, num, costs)
    if best < MIN_GAIN:
        assert not any(chosen)
    else:
        assert mine >= best * (1 - 1e-9)


def test_few_requests_draft_long_and_many_only_where_it_pays():
    policy = DraftLengths(None, StepCosts())
    assert policy.choose(fakes(0.6), [8], 1)[0] >= 3
    crowd = policy.choose(fakes(*[0.3] * 15, 0.97), [8] * 16, 16)
    assert crowd[-1] == 8
    assert max(crowd[:-1]) <= 1
    assert not any(policy.choose(fakes(*[0.1] * 32), [8] * 32, 32))


def test_lengths_stay_within_their_limits():
    assert DraftLengths(None, StepCosts()).choose(fakes(0.99, 0.99), [1, 3], 2) == [1, 3]
    assert DraftLengths(None, None).choose(fakes(0.0, 0.0), [1, 3], 2) == [1, 3]


def test_a_tree_has_more_rows_per_level():
    chain, tree = DraftLengths(None, StepCosts()), DraftLengths(None, StepCosts(), rows_per_level=8)
    assert sum(tree.choose(fakes(*[0.5] * 8), [4] * 8, 8)) < sum(chain.choose(fakes(*[0.5] * 8), [4] * 8, 8))


def test_who_has_nothing_to_propose_costs_nothing_and_is_not_counted_as_off():
    policy, requests = DraftLengths(None, StepCosts({1: 1.0, 4: 1.1, 8: 1.7, 20: 4.0})), fakes(*[0.8] * 4)
    everybody = policy.choose(requests, [4] * 4, 4)
    alone = policy.choose(requests, [4, 0, 0, 0], 4)
    assert alone[1:] == [0] * 3
    assert alone[0] > max(everybody)
    assert [one.acceptance.num_steps_without for one in requests] == [int(length == 0) for length in everybody]


def test_off_is_tried_again():
    policy, [request] = DraftLengths(None, StepCosts({1: 1.0, 2: 2.0})), fakes(0.1)
    asked = [policy.choose([request], [4], 1)[0] for _ in range(2 * PROBE_INTERVAL)]
    assert asked[: PROBE_INTERVAL - 1] == [0] * (PROBE_INTERVAL - 1)
    assert asked[PROBE_INTERVAL - 1] == 1
    request.acceptance.asked()
    assert request.acceptance.num_steps_without == 0


def test_acceptance_follows_what_happens_and_forgets():
    seen = Acceptance()
    for _ in range(30):
        seen.judge(4, 0)
    assert seen.rate < 0.05
    for _ in range(30):
        seen.judge(4, 4)
    assert seen.rate > 0.95
    exact = Acceptance(0.0, 1e-9)
    exact.judge(8, 2)  # two accepted, the third rejected, five never looked at
    assert exact.rate == pytest.approx(2 / 3)


def test_the_schedule_bounds_at_once_and_lets_go_slowly():
    policy = DraftLengths({1: 5, 4: 2, 8: 0}, None)
    assert policy.choose(fakes(0.5), [5], 1) == [5]
    assert policy.choose(fakes(0.5), [5], 8) == [0]
    assert [policy.choose(fakes(0.5), [5], 3)[0] for _ in range(HYSTERESIS)] == [0] * (HYSTERESIS - 1) + [5]
    assert policy.choose(fakes(0.5), [1], 4) == [1]


def test_costs_between_and_beyond_the_known_rows():
    costs = StepCosts({1: 1.0, 3: 2.0, 5: 6.0})
    assert costs.at(np.array([1, 2, 4, 7])).tolist() == [1.0, 1.5, 4.0, 10.0]
    assert StepCosts({1: 1.0}).at(np.array([9])).tolist() == [1.0]
    assert list(DEFAULT_STEP.values()) == sorted(DEFAULT_STEP.values())
