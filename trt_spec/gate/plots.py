"""Plots of the latency gate: speed-ups with their floors, pairs in the order of time, distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from trt_spec.gate.result import LoadResult
from trt_spec.report.plots import Frame, number, ticks

_STYLE_OF = {"pass": "range good", "fail": "range bad"}


def speedups(loads: Sequence[LoadResult]) -> str:
    """One column per load: the interval of the speed-up, its floor, and the spread of A/A around 1."""
    ratios = [load.ratios["speedup"] for load in loads]
    values = [1.0, *(bound for ratio in ratios if ratio for bound in (ratio.low, ratio.high))]
    values += [load.floor for load in loads if load.floor]
    edge = 0.08 * (max(values) - min(values)) + 0.02
    frame = Frame((0, len(loads)), (min(values) - edge, max(values) + edge), 640, 260)
    frame.axes("", has_x_ticks=False)
    frame.line([(0, 1.0), (len(loads), 1.0)], "grid strong")
    for index, (load, ratio) in enumerate(zip(loads, ratios, strict=True)):
        middle = index + 0.5
        frame.text(frame.x(middle), frame.height - 12, load.load, "middle")
        if load.floor:
            frame.line([(index + 0.15, load.floor), (index + 0.85, load.floor)], "limit")
        noise = load.noise["speedup"]
        if noise is not None:
            _box(frame, index + 0.2, index + 0.3, 1 - noise, 1 + noise, "two", f"A/A: 1 ± {noise:.3f}")
        if ratio is None:
            continue
        title = f"{load.load}: {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        style = _STYLE_OF.get(load.verdict, "range")
        _box(frame, middle - 0.06, middle + 0.06, ratio.low, ratio.high, style, title)
        x, y = frame.x(middle), frame.y(ratio.estimate)
        frame.parts.append(f'<circle class="dot" cx="{x}" cy="{y}" r="4.5"><title>{escape(title)}</title></circle>')
        frame.text(x + 14, y + 4, f"{ratio.estimate:.2f}")
    return frame.svg("speed-up per load, with intervals and floors")


def pairs(per_pair: Sequence[float], floor: float | None) -> str:
    """The speed-up of each pair of blocks, in the order of time: a drift or a hiccup shows here."""
    values = [1.0, *per_pair, *([floor] if floor else [])]
    frame = Frame((0, len(per_pair) + 1), (min(values) - 0.05, max(values) + 0.05), 380, 190)
    frame.axes("pair of blocks")
    frame.line([(0, 1.0), (len(per_pair) + 1, 1.0)], "grid strong")
    if floor:
        frame.line([(0, floor), (len(per_pair) + 1, floor)], "limit")
    for index, value in enumerate(per_pair, 1):
        dot = f'<circle class="dot" cx="{frame.x(index)}" cy="{frame.y(value)}" r="3">'
        frame.parts.append(f"{dot}<title>pair {index}: {value:.3f}</title></circle>")
    return frame.svg("speed-up of every pair")


def distributions(curves: Mapping[str, Sequence[float]], label: str) -> str:
    """Cumulative distributions, plain orange and speculation blue.

    Args:
        curves: by arm, quantiles from 0 to 1 in equal steps, in milliseconds.
    """
    low, high = min(min(values) for values in curves.values()), max(max(values) for values in curves.values())
    frame = Frame((low, high if high > low else low + 1), (0, 1), 380, 190)
    frame.axes(f"{label}, ms", has_x_ticks=False)
    for value in ticks(*frame.x_range, 4):
        frame.text(frame.x(value), frame.height - 15, number(round(value, 6)), "middle")
    for arm, style in (("plain", "two"), ("speculation", "one")):
        values = curves[arm]
        frame.line([(value, index / (len(values) - 1)) for index, value in enumerate(values)], style)
    return frame.svg(f"distribution of {label}")


def _box(frame: Frame, left: float, right: float, low: float, high: float, style: str, title: str) -> None:
    """A rectangle from low to high."""
    x, y = frame.x(left), frame.y(high)
    size = f'width="{frame.x(right) - x:.1f}" height="{max(frame.y(low) - y, 1):.1f}" rx="3"'
    frame.parts.append(f'<rect class="{style}" x="{x}" y="{y}" {size}><title>{escape(title)}</title></rect>')
