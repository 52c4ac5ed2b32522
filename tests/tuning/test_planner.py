"""The planner against closed forms and against looking at every schedule there is."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from trt_spec.tuning.cost_model import CostCell, MeasuredCosts, break_points, interpolate, isotonic, monotone, step_ms
from trt_spec.tuning.open_loop import Load, operating_points
from trt_spec.tuning.planner import MIN_GAIN, Planner, as_schedule, draft_len_at
from trt_spec.tuning.survival import AcceptanceProfile, Interval


@dataclass
class Linear:
    """A step costs `fixed` and `row` for each row; each drafted token of the batch costs `draft`."""

    fixed: float = 10.0
    row: float = 0.0
    draft: float = 0.0

    def draft_ms(self, batch, draft_len):
        return self.draft * draft_len

    def verify_ms(self, batch, rows):
        return self.fixed + self.row * batch * rows

    def overhead_ms(self, batch, rows):
        return 0.0

    def prefill_ms(self, num_tokens):
        return 0.0


# ---- closed loop ----


@pytest.mark.parametrize(("alpha", "length", "cost"), [(0.75, 7, 0.02), (0.62, 5, 0.11), (0.9, 3, 0.0)])
def test_the_speedup_is_that_of_the_closed_form(alpha, length, cost):
    """(1 − α^(γ+1)) / ((1 − α)(γ c + 1)), theorem 3.8 of Leviathan et al. 2023: rows are free, drafts cost c each."""
    planner = Planner(Linear(draft=10 * cost), AcceptanceProfile.given([alpha] * length))
    expected = (1 - alpha ** (length + 1)) / ((1 - alpha) * (length * cost + 1))
    assert planner.forecast(1, length).speedup == pytest.approx(expected)


def test_a_position_is_added_exactly_where_it_pays():
    """s_{k+1} · T / E_k > ΔT, position by position, on costs without jumps."""
    survival = np.cumprod([0.8] * 8)
    planner = Planner(Linear(row=0.9), AcceptanceProfile.given([0.8] * 8))
    length = planner.best(planner.forecasts(1)).draft_len
    for k in range(8):
        pays = survival[k] * planner.step_ms(1, k) / (1 + survival[:k].sum()) > 0.9
        assert pays == (k < length)


def test_drafting_with_a_price_of_its_own_is_seen_past_its_first_token():
    """One drafted token does not earn the jump, four do: the first fall of S is not where to stop."""

    class Jump(Linear):
        def overhead_ms(self, batch, rows):
            return 10.0 if rows > 1 else 0.0

    planner = Planner(Jump(), AcceptanceProfile.given([0.9] * 4))
    assert planner.forecast(1, 1).speedup < 1
    assert planner.best(planner.forecasts(1)).draft_len == 4


def test_the_lower_bound_decides():
    wide = AcceptanceProfile(
        (Interval(0.5, 0.02, 0.9),), (Interval(1, 1, 1), Interval(1.5, 1.02, 1.9)), (0.0, 1.0), 3, 30
    )
    planner = Planner(Linear(), wide)
    assert planner.forecast(1, 1).speedup == 1.5
    assert planner.best(planner.forecasts(1)).draft_len == 0
    assert as_schedule(planner.plan([1, 2])) == {}


def test_steps_without_a_draft_cost_no_rows():
    """Lookup that finds something in half of the steps: 1.5 rows on average."""
    half = AcceptanceProfile((Interval(0.4, 0.4, 0.4),), (Interval(1, 1, 1), Interval(1.4, 1.4, 1.4)), (0.0, 0.5))
    assert Planner(Linear(row=2.0), half).forecast(3, 1).step_ms == pytest.approx(10 + 2 * 3 * 1.5)


def test_a_staircase_is_averaged_and_not_asked_at_the_average():
    """Rows 2, 3, 4 cost 10, 16, 17; of two sequences none, one or both have a draft with 1/4, 1/2 and 1/4."""

    class Stairs(Linear):
        def verify_ms(self, batch, rows):
            return {2: 10.0, 3: 16.0, 4: 17.0}[round(batch * rows)]

    half = AcceptanceProfile((Interval(0.4, 0.4, 0.4),), (Interval(1, 1, 1), Interval(1.4, 1.4, 1.4)), (0.0, 0.5))
    assert Planner(Stairs(), half).step_ms(2, 1) == pytest.approx(10 / 4 + 16 / 2 + 17 / 4)


def random_problem(seed):
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.2, 0.95, 3)
    costs = {(b, k): 0.0 for b in range(1, 5) for k in range(4)}
    for batch in range(1, 5):
        costs[batch, 0] = rng.uniform(5, 15)
        for length in range(1, 4):
            costs[batch, length] = costs[batch, length - 1] + rng.exponential(2.0 * batch ** rng.uniform(0, 1.5))

    class Table(Linear):
        def verify_ms(self, batch, rows):
            return costs[batch, round(rows) - 1]

    return Planner(Table(), AcceptanceProfile.given(rates)), rates, costs


@pytest.mark.parametrize("seed", range(60))
def test_no_schedule_is_better(seed):
    """Every assignment of lengths 0 to 3 to batches 1 to 4 that a schedule can hold, worth computed from scratch."""
    planner, rates, costs = random_problem(seed)
    survival = np.cumprod(rates)

    def gain(batch, length):
        return (1 + survival[:length].sum()) * costs[batch, 0] / costs[batch, length]

    best = 0.0
    for lengths in itertools.product(range(4), repeat=4):
        gains = [gain(batch, length) for batch, length in zip(range(1, 5), lengths, strict=True)]
        starts_longest = max(lengths) == lengths[0]
        pays = all(length == 0 or value >= MIN_GAIN for length, value in zip(lengths[1:], gains[1:], strict=True))
        if any(lengths) and starts_longest and pays and max(gains) >= MIN_GAIN:
            best = max(best, sum(map(math.log, gains)))
    plan = planner.plan([1, 2, 3, 4])
    found = sum(math.log(gain(one.batch, one.draft_len)) for one in plan)
    assert found == pytest.approx(best)


def test_the_random_problems_are_of_all_kinds():
    schedules = [tuple(as_schedule(random_problem(seed)[0].plan([1, 2, 3, 4])).items()) for seed in range(60)]
    assert () in schedules
    assert any(len(steps) == 1 for steps in schedules)
    assert any(len(steps) >= 3 for steps in schedules)


def test_schedules_hold_steps_and_are_read_back():
    planner = Planner(Linear(row=0.6), AcceptanceProfile.given([0.7] * 5))
    plan = planner.plan(range(1, 33))
    schedule = as_schedule(plan)
    assert next(iter(schedule)) == 1
    assert list(schedule.values()) == sorted(schedule.values(), reverse=True)
    assert schedule[max(schedule)] == 0
    assert [draft_len_at(schedule, one.batch) for one in plan] == [one.draft_len for one in plan]


# ---- open loop ----


def test_the_fixed_point_of_linear_costs():
    """B = λ N (a + b B) / E has the solution λ N a / (E − λ N b)."""
    planner = Planner(Linear(fixed=10, row=0.5), AcceptanceProfile.given([0.5]))
    load = Load(requests_per_s=2, output_tokens=100)
    [point] = operating_points(planner, {1: 0}, load, 64).points
    assert point.batch == pytest.approx(0.2 * 10 / (1 - 0.2 * 0.5))
    assert point.is_stable
    [drafting] = operating_points(planner, {1: 1}, load, 64).points
    assert drafting.batch == pytest.approx(0.2 * 10 / (1.5 - 0.2 * 0.5 * 2))
    assert drafting.tpot_ms == pytest.approx((10 + 0.5 * 2 * drafting.batch) / 1.5)


def test_prompts_take_time_from_all():
    """λ T_prefill of every second is gone, so the rest has to do."""
    planner = Planner(Linear(fixed=10), AcceptanceProfile.given([0.5]))
    [point] = operating_points(planner, {1: 0}, Load(2, 100, prefill_ms=100), 64).points
    assert point.batch == pytest.approx(2 * 100 * 0.010 / (1 - 0.2))
    assert operating_points(planner, {1: 0}, Load(10, 100, prefill_ms=100), 64).is_overloaded


class Convex(Linear):
    def verify_ms(self, batch, rows):
        return 10 + 0.25 * (batch * rows) ** 2


def test_both_fixed_points_are_told_and_which_one_holds():
    """B = c (10 + B²/4) with c = λ N / 1000: the roots of a parabola, the lower one stable."""
    planner = Planner(Convex(), AcceptanceProfile.given([0.5]))
    found = operating_points(planner, {1: 0}, Load(2, 100), 64)
    assert [point.batch for point in found.points] == pytest.approx(sorted(np.roots([0.2 / 4, -1, 2]).real))
    assert [point.is_stable for point in found.points] == [True, False]
    assert found.is_overloaded  # from a full engine of 64 it does not come back
    assert not operating_points(planner, {1: 0}, Load(2, 100), 16).is_overloaded  # the edge is at 17.7
    assert operating_points(planner, {1: 0}, Load(6, 100), 64).points == ()  # the parabola has no roots


def test_turning_drafts_off_makes_an_edge_of_its_own():
    """Twice as fast with drafts below 5: it settles at 4 or at 8, by where it comes from, and 5 is the edge."""
    planner = Planner(Linear(), AcceptanceProfile.given([1.0]))
    found = operating_points(planner, {1: 1, 5: 0}, Load(8, 100), 64)
    assert [(point.batch, point.is_stable, point.draft_len) for point in found.points] == [
        (pytest.approx(4), True, 1),
        (5, False, 0),
        (pytest.approx(8), True, 0),
    ]
    assert not found.is_overloaded


@pytest.mark.parametrize("schedule", [{1: 2}, {1: 2, 5: 1, 9: 0}, {1: 0}])
@pytest.mark.parametrize("rate", [1.0, 3.0, 5.0, 8.0])
def test_simulated_load_settles_where_the_points_say(schedule, rate):
    """dB/dt = λ − B / (N T / E), from an empty and a full engine, ends at a stable point or leaves the range."""
    planner = Planner(Linear(fixed=8, row=0.4), AcceptanceProfile.given([0.7, 0.5]))
    load = Load(rate, 50)
    found = operating_points(planner, schedule, load, 32)
    stable = [point.batch for point in found.points if point.is_stable]
    for start in (0.0, 32.0):
        batch = start
        for _ in range(40_000):
            length = draft_len_at(schedule, max(batch, 1.0))
            seconds = (
                50
                * planner.step_ms(max(batch, 1.0), length)
                / planner.acceptance.expected_tokens[length].estimate
                / 1e3
            )
            batch = min(max(batch + 0.002 * (rate - batch / seconds), 0.0), 32.0)
        if batch >= 32.0:
            assert found.is_overloaded
        else:
            assert min(abs(batch - point) for point in stable) < 0.1


# ---- costs ----


def grid(verify):
    return [
        CostCell(batch, length, context, 0.5 * length, verify(batch, length, context), 1.0)
        for batch in (1, 4, 16)
        for length in (0, 2, 6)
        for context in (64, 256)
    ]


def test_a_grid_gives_back_its_points_and_straight_lines_between():
    costs = MeasuredCosts(grid(lambda b, k, c: 10 + b * (k + 1) + c / 64), context=160, prefill_ms_per_token=0.5)
    assert costs.verify_ms(4, 3) == pytest.approx(10 + 12 + 2.5)
    assert costs.verify_ms(2, 2) == pytest.approx(10 + 4 + 2.5)  # bilinear in batch and rows, as this cost is
    assert costs.verify_ms(32, 7) == pytest.approx(10 + 32 * 7 + 2.5)  # beyond the last batch as before it
    assert costs.draft_ms(3, 4) == pytest.approx(2.0)
    assert costs.prefill_ms(100) == 50
    assert step_ms(costs, 4, 2) == pytest.approx(1.0 + 10 + 12 + 2.5 + 1.0)
    assert step_ms(costs, 4, 2, rows=2.0) == pytest.approx(1.0 + 10 + 8 + 2.5 + 1.0)


def test_noise_never_makes_more_rows_cheaper():
    rng = np.random.default_rng(3)
    costs = MeasuredCosts(grid(lambda b, k, c: 10 + 0.1 * b * k + rng.normal(0, 2)), context=64)
    found = [[costs.verify_ms(b, k + 1) for k in (0, 2, 6)] for b in (1, 4, 16)]
    assert (np.diff(found, axis=0) >= -1e-12).all()
    assert (np.diff(found, axis=1) >= -1e-12).all()


def test_monotone_leaves_what_is_monotone_and_lies_between_its_covers():
    rng = np.random.default_rng(1)
    rising = np.cumsum(np.cumsum(rng.random((4, 5)), 0), 1)
    assert monotone(rising) == pytest.approx(rising)
    noisy = rising + rng.normal(0, 1, rising.shape)
    found = monotone(noisy)
    for index in np.ndindex(noisy.shape):
        below = noisy[: index[0] + 1, : index[1] + 1].max()
        above = noisy[index[0] :, index[1] :].min()
        assert found[index] == pytest.approx((below + above) / 2)


def test_isotonic_is_the_nearest_non_decreasing_function():
    """Against the min-max formula: the value at i is max over a ≤ i of min over b ≥ i of the mean of a..b."""
    rng = np.random.default_rng(2)
    values = rng.normal(0, 1, 9) + np.arange(9) * 0.2
    expected = [max(min(values[a : b + 1].mean() for b in range(i, 9)) for a in range(i + 1)) for i in range(9)]
    assert [cost for _, cost in isotonic(enumerate(values))] == pytest.approx(expected)
    assert isotonic([(2, 4.0), (1, 1.0), (2, 6.0)]) == [(1, 1.0), (2, 5.0)]


def test_break_points_of_a_staircase():
    stairs = [(1, 10.0), (2, 10.2), (4, 10.4), (8, 12.0), (16, 12.3), (32, 20.0)]
    assert break_points(stairs) == [8, 32]


def test_interpolation_before_the_first_point_is_flat():
    assert interpolate(([2, 4],), np.array([1.0, 3.0]), (1,)) == 1.0
    assert interpolate(([2, 4],), np.array([1.0, 3.0]), (6,)) == 5.0
