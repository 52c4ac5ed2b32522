"""Open loop: requests come at a rate of their own, so how many run at once is an outcome and not a setting.

A request needs N_out / E steps, each T_step(B, k(B)) long, and its prompt stops the others while it is read. With λ
arrivals a second, Little's law gives the mean number of running requests as the fixed point of

    B = g(B) = λ · N_out · T_step(B, k(B)) / E_{k(B)} / (1 − λ · T_prefill)

Where g is above B more work comes than leaves and B rises. So a crossing from above is where the system settles, and
one from below is the edge beyond which it runs away. There may be several; all are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scipy.optimize import brentq

from trt_spec.tuning.planner import Planner, draft_len_at

_NUM_SAMPLES = 64  # of each stretch of the schedule, between which g is taken to cross B at most once


@dataclass(frozen=True)
class Load:
    """What comes in: requests per second, output tokens of each, and milliseconds that reading its prompt takes."""

    requests_per_s: float
    output_tokens: float
    prefill_ms: float = 0.0


@dataclass(frozen=True)
class OperatingPoint:
    """A fixed point.

    Attributes:
        batch: mean number of running requests; below 1 the engine idles part of the time.
        is_stable: whether the system returns to it.
        tpot_ms: mean time between output tokens of one request, with the prompts of others in between.
    """

    batch: float
    draft_len: int
    is_stable: bool
    tpot_ms: float


@dataclass(frozen=True)
class OpenLoop:
    """All operating points by batch, and whether the queue grows without end from a full engine."""

    points: tuple[OperatingPoint, ...]
    is_overloaded: bool


def operating_points(planner: Planner, schedule: Mapping[int, int], load: Load, max_batch: int) -> OpenLoop:
    """Solves the fixed point for a schedule ({1: 0} is plain decoding); at most `max_batch` requests run at once."""
    busy = load.requests_per_s * load.prefill_ms / 1e3
    if busy >= 1:
        return OpenLoop((), is_overloaded=True)

    def tpot_ms(batch: float, length: int) -> float:
        gain = planner.acceptance.expected_tokens[length].estimate
        return planner.step_ms(max(batch, 1.0), length) / gain / (1 - busy)

    def excess(batch: float, length: int) -> float:
        return load.requests_per_s * load.output_tokens * tpot_ms(batch, length) / 1e3 - batch

    starts = [0.0, *(float(start) for start in sorted(schedule) if 1 < start <= max_batch)]
    ends = [*starts[1:], float(max_batch)]
    points: list[OperatingPoint] = []
    before = 1.0  # g is above 0 at an empty engine
    for start, end in zip(starts, ends, strict=True):
        length = draft_len_at(schedule, max(start, 1.0))
        places = [start + (end - start) * step / _NUM_SAMPLES for step in range(_NUM_SAMPLES + 1)]
        values = [excess(place, length) for place in places]
        if start and before * values[0] < 0:  # the change of length itself is where it crosses
            points.append(OperatingPoint(start, length, before > 0, tpot_ms(start, length)))
        for low, high, first, last in zip(places, places[1:], values, values[1:], strict=False):
            if first * last < 0:
                root = brentq(excess, low, high, args=(length,))
                points.append(OperatingPoint(root, length, first > 0, tpot_ms(root, length)))
        before = values[-1]
    return OpenLoop(tuple(points), is_overloaded=before > 0)
