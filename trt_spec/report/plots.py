"""Small plots as inline SVG, for pages that are one file. Colours are classes of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 12, 30


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from low to high."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A tick's label: 12k, 0.05, -3."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.10g}"


class Frame:
    """Axes of a plot: from data to pixels, and the parts collected so far."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], width: int = _WIDTH, height: int = _HEIGHT):
        self.x_range, self.y_range, self.width, self.height = x, y, width, height
        self.parts: list[str] = []

    def x(self, value: float) -> float:
        low, high = self.x_range
        return round(_LEFT + (value - low) / ((high - low) or 1) * (self.width - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return round(self.height - _BOTTOM - (value - low) / ((high - low) or 1) * (self.height - _TOP - _BOTTOM), 1)

    def axes(self, x_label: str, *, has_x_ticks: bool = True) -> None:
        """Grid lines, tick labels and the name of the x axis."""
        for value in ticks(*self.y_range, 4):
            y = self.y(value)
            self.parts.append(f'<line class="grid" x1="{_LEFT}" x2="{self.width - _RIGHT}" y1="{y}" y2="{y}"/>')
            self.text(_LEFT - 6, y + 4, number(value), "end")
        for value in ticks(*self.x_range) if has_x_ticks else ():
            self.text(self.x(value), self.height - _BOTTOM + 15, number(value), "middle")
        self.text((self.width + _LEFT) / 2, self.height - 2, x_label, "middle")

    def text(self, x: float, y: float, words: str, anchor: str = "start", style: str = "label") -> None:
        self.parts.append(f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>')

    def line(self, points: Sequence[tuple[float, float]], style: str) -> None:
        path = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)
        self.parts.append(f'<polyline class="{style}" points="{path}"/>')

    def bar(self, left: float, right: float, top: float, style: str, title: str = "") -> None:
        """From y = 0 (or the lower edge) up to `top`, between two x values."""
        x, y, base = self.x(left), self.y(top), self.y(max(0.0, self.y_range[0]))
        size = f'width="{self.x(right) - x:.1f}" height="{max(base - y, 0):.1f}"'
        self.parts.append(f'<rect class="{style}" x="{x}" y="{y}" {size}><title>{escape(title)}</title></rect>')

    def svg(self, label: str) -> str:
        body = "".join(self.parts)
        return f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(label)}">{body}</svg>'


def e_value_path(arms: Sequence[tuple[str, Sequence[Sequence[float]]]], limit: float) -> str:
    """log e over tokens, one line per arm, and the limit at which equality is rejected.

    Args:
        arms: style class and points (tokens, log e, …).
    """
    last = max((points[-1][0] for _, points in arms if points), default=1)
    values = [point[1] for _, points in arms for point in points]
    low, high = min([0.0, *values]), max([limit * 1.15, *values])
    if low < -limit:
        low = -limit  # how far below is no news
    frame = Frame((0, last), (low, high))
    frame.axes("tokens")
    frame.line([(0, limit), (last, limit)], "limit")
    frame.text(frame.width - _RIGHT, frame.y(limit) - 5, f"rejected above {limit:.1f}", "end")
    for style, points in arms:
        frame.line([(0, 0.0), *((point[0], max(point[1], low)) for point in points)], style)
    return frame.svg("log e-value over tokens")


def histogram(shares: Sequence[float], style: str, label: str) -> str:
    """Shares of tokens per bin, beside the uniform law that they should have."""
    total, count = sum(shares) or 1.0, len(shares)
    heights = [share / total * count for share in shares]
    frame = Frame((0, count), (0, max(1.6, *heights)), 300, 170)
    frame.axes(label, has_x_ticks=False)
    for index, height in enumerate(heights):
        frame.bar(index + 0.06, index + 0.94, height, style, f"bin {index + 1}: {height:.3f} of uniform")
    frame.line([(0, 1), (count, 1)], "limit")
    return frame.svg(f"PIT histogram by {label}")


def profile(rates: Sequence[float], style: str) -> str:
    """Share of drafts whose i-th token was accepted."""
    frame = Frame((0, max(len(rates), 1)), (0, 1), 300, 170)
    frame.axes("draft position", has_x_ticks=False)
    for index, rate in enumerate(rates):
        frame.bar(index + 0.1, index + 0.9, rate, style, f"position {index + 1}: {rate:.3f}")
        frame.text(frame.x(index + 0.5), frame.height - _BOTTOM + 14, str(index + 1), "middle")
    return frame.svg("acceptance rate per draft position")


def deviations(rows: Sequence[Any], tau: float) -> str:
    """One line per direction: the mean deviation seen, and the interval outside of which it is excluded.

    Args:
        rows: with `direction`, `deviation` and `excluded_above`, see `certificate.Direction`.
    """
    row_height, top = 17, 20
    height = top + row_height * len(rows) + 26
    edge = 1.5 * max([tau, *(abs(row.deviation) for row in rows)])
    left, right = 200, 640 - 14
    place = lambda value: round(left + (max(-edge, min(edge, value)) + edge) / (2 * edge) * (right - left), 1)  # noqa: E731
    parts = []
    for value, style in ((-tau, "limit"), (0.0, "grid"), (tau, "limit")):
        x = place(value)
        parts.append(f'<line class="{style}" x1="{x}" x2="{x}" y1="{top - 6}" y2="{height - 24}"/>')
        parts.append(f'<text class="label" x="{x}" y="{height - 10}" text-anchor="middle">{value:+.3g}</text>')
    for index, row in enumerate(rows):
        y = top + row_height * index + 6
        words = escape(row.direction)
        parts.append(f'<text class="label" x="{left - 8}" y="{y + 4}" text-anchor="end">{words}</text>')
        bound = row.excluded_above
        ends = (-edge, edge) if bound is None else (-bound, bound)
        is_good = bound is not None and bound <= tau * (1 + 1e-9)
        style = "range good" if is_good else "range"
        x = place(ends[0])
        parts.append(f'<rect class="{style}" x="{x}" y="{y - 4}" width="{place(ends[1]) - x:.1f}" height="8" rx="4"/>')
        title = f"seen {row.deviation:+.4f}, excluded above {bound if bound is not None else 'nothing yet'}"
        dot = f'<circle class="dot" cx="{place(row.deviation)}" cy="{y}" r="4">'
        parts.append(f"{dot}<title>{escape(title)}</title></circle>")
    return f'<svg viewBox="0 0 640 {height}" role="img" aria-label="deviations per direction">{"".join(parts)}</svg>'


def speedups(kinds: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str:
    """Throughput over plain decoding against concurrency, as a file of its own: a line per prompts and drafts."""
    colours = ("#2563b0", "#e08a1e", "#1a7f4b", "#8e44ad")
    ratios = {
        (kind, arm): [(count, figures[arm] / figures["plain"]) for count, figures in by_count.items()]
        for kind, by_count in kinds.items()
        for arm in ("fixed", "adaptive")
    }
    places = {count: index for index, count in enumerate(next(iter(kinds.values())))}
    values = [value for points in ratios.values() for _, value in points]
    frame = Frame((0, max(len(places) - 1, 1)), (min(0.6, *values), max(1.2, *values) * 1.05), 640, 330)
    frame.axes("concurrent requests", has_x_ticks=False)
    for count, index in places.items():
        frame.text(frame.x(index), frame.height - _BOTTOM + 15, str(count), "middle")
    frame.line([(0, 1), (max(len(places) - 1, 1), 1)], "limit")
    frame.text(frame.x(0) + 4, frame.y(1) + 14, "plain decoding")
    for index, ((kind, arm), points) in enumerate(ratios.items()):
        path = " ".join(f"{frame.x(places[count])},{frame.y(value)}" for count, value in points)
        dash = ' stroke-dasharray="6 4"' if arm == "fixed" else ""
        stroke = f'stroke="{colours[index // 2 % len(colours)]}" stroke-width="2.2" fill="none"{dash}'
        frame.parts.append(f'<polyline {stroke} points="{path}"/>')
        frame.text(frame.width - 190, _TOP + 14 + 16 * index, f"{kind}, {arm}{' (dashed)' if dash else ''}")
        frame.parts[-1] = frame.parts[-1].replace("<text ", f'<text fill="{colours[index // 2 % len(colours)]}" ', 1)
    style = (
        "<style>.label{font:12px system-ui,sans-serif}.grid{stroke:#ddd}.limit{stroke:#888;stroke-dasharray:5 4;"
        "fill:none}</style>"
    )
    svg = frame.svg("throughput over plain decoding against concurrency")
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", ">" + style, 1)
