"""Writes docs/schemas/, the JSON Schemas of what commands write. `make docs` runs it; a test compares."""

from __future__ import annotations

import json
from pathlib import Path

from trt_spec.clients.trace import Trace
from trt_spec.equivalence.certificate import Certificate, Judged
from trt_spec.gate.result import GateResult
from trt_spec.report.schema import json_schema

DIRECTORY = Path(__file__).parents[2] / "docs" / "schemas"
REPORTS = {"certificate": Judged | Certificate, "gate": GateResult, "trace": Trace}  # file name to what is written


def text_of(name: str) -> str:
    """The schema of a report as its file has it."""
    return json.dumps(json_schema(REPORTS[name]), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in REPORTS:
        (DIRECTORY / f"{name}.json").write_text(text_of(name), encoding="utf-8")
