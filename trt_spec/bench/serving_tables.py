"""The tables of `trt-spec bench --what serving`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from trt_spec.report.tables import table, titled


def serving(result: Mapping[str, Any]) -> RenderableType:
    """What `serving_benchmark.serving` returns."""
    return Group(_overhead(result), Text(""), _load(result))


def _overhead(result: Mapping[str, Any]) -> RenderableType:
    rows = [
        (
            speculation,
            arm,
            f"{figures['tpot_ms']:.2f}",
            f"{figures['ttft_ms']:.1f}",
            f"{figures['tpot_ratio']:.3f}",
            f"{figures['lowest']:.3f} to {figures['highest']:.3f}",
        )
        for speculation, arms in result["overhead"].items()
        for arm, figures in arms.items()
    ]
    title = (
        f"One stream: {result['dtype']}, greedy, {result['num_tokens']} tokens out, "
        f"{result['num_prompts']} prompts, {result['num_rounds']} rounds in turns"
    )
    header = ("drafts", "stream from", "TPOT ms", "TTFT ms", "TPOT over engine", "range")
    return titled(title, table(header, rows, numeric=(2, 3, 4, 5)))


def _load(result: Mapping[str, Any]) -> RenderableType:
    rows = [
        (
            str(row["concurrency"]),
            str(row["num_requests"]),
            f"{row['requests_per_s']:.2f}",
            f"{row['tokens_per_s']:.1f}",
            _pair(row["ttft_ms"], 0),
            _pair(row["tpot_ms"], 1),
            ", ".join(f"{count} {code}" for code, count in row["errors"].items()) or "0",
        )
        for row in result["load"]
    ]
    title = f"Load on Triton over gRPC, streaming: {result['method']} drafts, closed loop"
    header = ("clients", "requests", "requests/s", "tokens/s", "TTFT ms p50 / p95", "TPOT ms p50 / p95", "errors")
    return titled(title, table(header, rows, numeric=(0, 1, 2, 3, 4, 5)))


def _pair(values: Mapping[str, float] | None, digits: int) -> str:
    return "–" if values is None else f"{values['p50']:.{digits}f} / {values['p95']:.{digits}f}"
