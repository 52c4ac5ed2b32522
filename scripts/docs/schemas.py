"""Writes docs/schemas/, the JSON Schemas of what commands write. `make docs` runs it; a test compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trt_spec.checkpoints.inspection import Inspection
from trt_spec.clients.trace import Trace
from trt_spec.engines.manifest import Manifest
from trt_spec.equivalence.certificate import Certificate, Judged
from trt_spec.gate.result import GateResult
from trt_spec.report.schema import json_schema

DIRECTORY = Path(__file__).parents[2] / "docs" / "schemas"
REPORTS = {  # file name to what is written
    "certificate": Judged | Certificate,
    "gate": GateResult,
    "inspection": Inspection,
    "manifest": Manifest,
    "trace": Trace,
}
_UNWRITTEN = ("about", "limits_only", "setting")  # of a problem


def text_of(name: str) -> str:
    """The schema of a report as its file has it."""
    schema = json_schema(REPORTS[name])
    schema = as_printed(schema) if name == "inspection" else schema
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def as_printed(schema: dict[str, Any]) -> dict[str, Any]:
    """An inspection's: the details of its layout stand beside the rest, and a problem has what people read."""
    properties = {name: value for name, value in schema["properties"].items() if name != "details"}
    problem = schema["$defs"]["Problem"]
    problem["properties"] = {name: value for name, value in problem["properties"].items() if name not in _UNWRITTEN}
    required = [name for name in schema["required"] if name != "details"]
    layouts = schema["properties"]["details"]["anyOf"]
    return {**schema, "properties": properties, "required": required, "anyOf": layouts}


if __name__ == "__main__":
    for name in REPORTS:
        (DIRECTORY / f"{name}.json").write_text(text_of(name), encoding="utf-8")
