"""The result of the latency gate, for terminals, machines and pull requests: JSON, JSONL, JUnit, one HTML page."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from trt_spec.gate import plots as gate_plots
from trt_spec.gate.bootstrap import Interval
from trt_spec.gate.records import ARMS
from trt_spec.gate.result import GateResult, LoadResult
from trt_spec.report import page as files
from trt_spec.report import plots
from trt_spec.report.schema import as_json
from trt_spec.report.tables import table, titled

# Name, key of a summary, digits, ratio of the two arms.
METRICS = (
    ("output tokens/s", "output_token_throughput_per_s", 1, "speedup"),
    ("TTFT p50, ms", "ttft_p50_ms", 1, ""),
    ("TTFT p99, ms", "ttft_p99_ms", 1, "ttft_p99"),
    ("TPOT p50, ms", "tpot_p50_ms", 2, "tpot_p50"),
    ("TPOT p99, ms", "tpot_p99_ms", 2, "tpot_p99"),
    ("inter-chunk gap p50, ms", "inter_chunk_gap_p50_ms", 2, ""),
    ("inter-chunk gap p99, ms", "inter_chunk_gap_p99_ms", 2, ""),
    ("tokens per chunk", "tokens_per_chunk", 2, ""),
    ("goodput, requests/s", "goodput_per_s", 3, "goodput"),
)
COLOURS = {"pass": "green", "fail": "red", "inconclusive": "yellow"}


def write(found: GateResult, records: str, directory: Path) -> list[Path]:
    """Writes gate.json, records.jsonl, junit.xml and index.html into a directory, and returns their paths."""
    texts = {
        "gate.json": json.dumps(as_json(found), indent=2, ensure_ascii=False) + "\n",
        "records.jsonl": records,
        "junit.xml": junit(found),
        "index.html": page(found),
    }
    return files.write(directory, texts)


def junit(found: GateResult) -> str:
    """One test suite with a case per check; an inconclusive one is a failure too, for nothing is shown."""
    cases = [
        (check.name, None if check.verdict == "pass" else f"{check.verdict}: {check.words}") for check in found.checks
    ]
    return files.junit(f"latency of {found.run}", f"gate.{found.run}", cases)


def page(found: GateResult) -> str:
    """The whole page."""
    limits = (("TTFT", found.slo.ttft_ms), ("TPOT", found.slo.tpot_ms)) if found.slo else ()
    slo = ", ".join(f"{name} {value:g} ms" for name, value in limits if value)
    metrics = [metric for metric in METRICS if found.slo or metric[1] != "goodput_per_s"]
    return files.render("gate.html", found=found, metrics=metrics, slo=slo, plots=plots, gate_plots=gate_plots)


def view(found: GateResult) -> RenderableType:
    """The verdict for a terminal."""
    rows = []
    for load in found.loads:
        noise = load.noise["speedup"]
        rows.append(
            (
                load.load,
                _pair(load, "output_token_throughput_per_s", 1),
                _ratio(load.ratios["speedup"]),
                "-" if load.floor is None else f"{load.floor:g}",
                "-" if noise is None else f"{noise:.1%}",
                _pair(load, "tpot_p50_ms", 1),
                _pair(load, "ttft_p99_ms", 0),
                _ratio(load.ratios["ttft_p99"]),
                f"[{COLOURS[load.verdict]}]{load.verdict}[/]",
            )
        )
    header = ("", "tokens/s", "speed-up", "floor", "A/A", "TPOT p50", "TTFT p99", "ratio", "")
    notes = (
        f"Plain → speculation, ms; [bounds] at {found.confidence:.2%}; A/A: how far plain against plain spreads.\n"
        f"{found.num_pairs} pairs of blocks per load, ABBA; {found.workload}, {found.max_tokens} tokens each."
    )
    return Group(
        Text(f"{found.run}: {found.verdict}", style=f"bold {COLOURS[found.verdict]}"),
        Text(found.reason),
        Text(),
        titled("Latency gate", table(header, rows, numeric=(1, 2, 3, 4, 5, 6, 7)), Text(notes, style="dim")),
    )


def _pair(load: LoadResult, name: str, digits: int) -> str:
    return " → ".join(f"{getattr(load.arms[arm], name):.{digits}f}" for arm in ARMS)


def _ratio(ratio: Interval | None) -> str:
    return "-" if ratio is None else f"{ratio.estimate:.2f} \\[{ratio.low:.2f}, {ratio.high:.2f}]"
