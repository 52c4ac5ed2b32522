"""What a step costs, from measured steps: drafting, the target's forward, and the host's work around them.

    T_step(B, k) = T_draft(B, k) + T_verify(B · rows, context) + T_overhead(B · rows)

Measured, not modelled: a grid of batch sizes, draft lengths and contexts, made monotone, and straight lines between.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trt_spec.config.drafting import CostsConfig

BREAK = 0.05  # a step this much dearer than the last level begins a new level of the staircase


class CostModel(Protocol):
    """What the planner asks. Batch sizes and rows may be fractions: means over steps. Times in milliseconds."""

    def draft_ms(self, batch: float, draft_len: int) -> float:
        """Proposing drafts of this length for all sequences."""

    def verify_ms(self, batch: float, rows: float) -> float:
        """The target's forward with so many rows per sequence, output layer included."""

    def overhead_ms(self, batch: float, rows: float) -> float:
        """All else: scheduling, sampling, acceptance, bookkeeping. It goes by rows too: each is a law to look at."""

    def prefill_ms(self, num_tokens: float) -> float:
        """Reading a prompt of this length."""


def step_ms(costs: CostModel, batch: float, draft_len: int, rows: float | None = None) -> float:
    """T_step. `rows`: mean rows per sequence, where not every step has a full draft."""
    rows = draft_len + 1 if rows is None else rows
    drafting = costs.draft_ms(batch, draft_len) if draft_len else 0.0
    return drafting + costs.verify_ms(batch, rows) + costs.overhead_ms(batch, rows)


@dataclass(frozen=True)
class CostCell:
    """One measured kind of step: medians over steps, in milliseconds."""

    batch: int
    draft_len: int
    context: int
    draft_ms: float
    verify_ms: float
    overhead_ms: float


class MeasuredCosts:
    """Costs from a full grid of cells.

    Args:
        cells: one per combination of the batch sizes, draft lengths and contexts that occur; 0 is one of the lengths.
        context: cached tokens per sequence that the costs are asked at.
        prefill_ms_per_token: of a prompt, read alone.
    """

    def __init__(self, cells: Iterable[CostCell], context: float, prefill_ms_per_token: float = 0.0):
        self.cells, self.context, self.prefill_ms_per_token = tuple(cells), context, prefill_ms_per_token
        by_place = {(cell.batch, cell.draft_len, cell.context): cell for cell in self.cells}
        axes = [sorted(set(places)) for places in zip(*by_place, strict=True)]
        self.batches, self.draft_lens, self.contexts = axes
        found = (by_place[place] for place in itertools.product(*axes))
        times = np.array([(cell.draft_ms, cell.verify_ms, cell.overhead_ms) for cell in found]).reshape(
            *map(len, axes), 3
        )
        self._draft, self._verify, self._overhead = times[..., 0], monotone(times[..., 1]), times[..., 2]

    def verify_ms(self, batch: float, rows: float) -> float:
        return self._at(self._verify, batch, rows)

    def draft_ms(self, batch: float, draft_len: int) -> float:
        return max(0.0, self._at(self._draft, batch, draft_len + 1))

    def overhead_ms(self, batch: float, rows: float) -> float:
        return max(0.0, self._at(self._overhead, batch, rows))

    def prefill_ms(self, num_tokens: float) -> float:
        return self.prefill_ms_per_token * num_tokens

    def staircase(self, batch: int = 1) -> list[tuple[int, float]]:
        """(rows of the step, T_verify) at one batch size, as measured and made monotone."""
        return [((length + 1) * batch, self.verify_ms(batch, length + 1)) for length in self.draft_lens]

    @property
    def section(self) -> CostsConfig:
        """`speculation.costs`: one staircase over all cells nearest to the context, whatever the rows are for."""
        nearest, longest = min(self.contexts, key=lambda context: abs(context - self.context)), self.draft_lens[-1]
        points = isotonic(
            (cell.batch * (cell.draft_len + 1), cell.verify_ms + cell.overhead_ms)
            for cell in self.cells
            if cell.context == nearest
        )
        one = points[0][1]
        step = {rows: round(cost / one, 3) for rows, cost in points}
        return CostsConfig(step=step, draft_level=round(self.draft_ms(1, longest) / longest / one, 4))

    def _at(self, grid: np.ndarray, batch: float, rows: float) -> float:
        axes = (self.batches, [length + 1 for length in self.draft_lens], self.contexts)
        return interpolate(axes, grid, (batch, rows, self.context))


def interpolate(axes: Sequence[Sequence[float]], values: np.ndarray, point: Sequence[float]) -> float:
    """Multilinear between the points of a grid; beyond the last one as between the last two, before the first flat."""
    for axis, place in zip(axes, point, strict=True):
        if len(axis) == 1 or place <= axis[0]:
            values = values[0]
            continue
        upper = min(int(np.searchsorted(axis, place)), len(axis) - 1)
        share = (place - axis[upper - 1]) / (axis[upper] - axis[upper - 1])
        values = values[upper - 1] * (1 - share) + values[upper] * share
    return float(values)


def monotone(values: np.ndarray) -> np.ndarray:
    """The grid without descents along any axis: the mean of its lowest monotone cover and highest monotone floor."""
    cover, floor = values.copy(), values.copy()
    for axis in range(values.ndim):
        cover = np.maximum.accumulate(cover, axis=axis)
        floor = np.flip(np.minimum.accumulate(np.flip(floor, axis), axis=axis), axis)
    return (cover + floor) / 2


def isotonic(points: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """The non-decreasing function nearest to the points in squares; equal x are averaged."""
    from scipy.optimize import isotonic_regression  # slow to import

    sums: dict[int, list[float]] = {}
    for x, y in points:
        sums.setdefault(x, []).append(y)
    xs = sorted(sums)
    means, weights = [np.mean(sums[x]) for x in xs], [len(sums[x]) for x in xs]
    return list(zip(xs, isotonic_regression(means, weights=weights).x.tolist(), strict=True))


def break_points(staircase: Sequence[tuple[int, float]], size: float = BREAK) -> list[int]:
    """Rows at which a staircase leaves a level: dearer than the level's first step by more than `size`."""
    found: list[int] = []
    level = staircase[0][1]
    for rows, cost in staircase[1:]:
        if cost > level * (1 + size):
            found.append(rows)
            level = cost
    return found
