"""The result of the latency gate, for terminals, machines and pull requests: JSON, JSONL, JUnit, one HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from trt_spec.gate.page import page
from trt_spec.report import page as files
from trt_spec.report.tables import table, titled

COLOURS = {"pass": "green", "fail": "red", "inconclusive": "yellow"}
Found = Mapping[str, Any]


def write(found: Found, records: str, directory: Path) -> list[Path]:
    """Writes gate.json, records.jsonl, junit.xml and index.html into a directory, and returns their paths."""
    texts = {
        "gate.json": json.dumps(found, indent=2, ensure_ascii=False) + "\n",
        "records.jsonl": records,
        "junit.xml": junit(found),
        "index.html": page(found),
    }
    return files.write(directory, texts)


def junit(found: Found) -> str:
    """One test suite with a case per check; an inconclusive one is a failure too, for nothing is shown."""
    cases = [
        (check["name"], None if check["verdict"] == "pass" else f"{check['verdict']}: {check['words']}")
        for check in found["checks"]
    ]
    return files.junit(f"latency of {found['run']}", f"gate.{found['run']}", cases)


def view(found: Found) -> RenderableType:
    """The verdict for a terminal."""
    verdict = found["verdict"]
    rows = []
    for load in found["loads"]:
        arms, ratios = load["arms"], load["ratios"]
        rows.append(
            (
                load["load"],
                _pair(arms, "output_token_throughput_per_s", 1),
                _ratio(ratios["speedup"]),
                "-" if load["floor"] is None else f"{load['floor']:g}",
                "-" if load["noise"]["speedup"] is None else f"{load['noise']['speedup']:.1%}",
                _pair(arms, "tpot_p50_ms", 1),
                _pair(arms, "ttft_p99_ms", 0),
                _ratio(ratios["ttft_p99"]),
                f"[{COLOURS[load['verdict']]}]{load['verdict']}[/]",
            )
        )
    header = ("", "tokens/s", "speed-up", "floor", "A/A", "TPOT p50", "TTFT p99", "ratio", "")
    notes = (
        f"Plain → speculation, ms; [bounds] at {found['confidence']:.2%}; A/A: how far plain against plain spreads.\n"
        f"{found['num_pairs']} pairs of blocks per load, ABBA; {found['workload']}, {found['max_tokens']} tokens each."
    )
    return Group(
        Text(f"{found['run']}: {verdict}", style=f"bold {COLOURS[verdict]}"),
        Text(found["reason"]),
        Text(),
        titled("Latency gate", table(header, rows, numeric=(1, 2, 3, 4, 5, 6, 7)), Text(notes, style="dim")),
    )


def _pair(arms: Found, key: str, digits: int) -> str:
    return " → ".join(f"{arms[arm][key]:.{digits}f}" for arm in ("plain", "speculation"))


def _ratio(ratio: Found | None) -> str:
    return "-" if ratio is None else f"{ratio['estimate']:.2f} \\[{ratio['low']:.2f}, {ratio['high']:.2f}]"
