"""The schemas in docs/schemas/ are those of the dataclasses, and what is written keeps them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from pydantic import TypeAdapter, ValidationError

from scripts.docs import schemas
from tests import tiny
from trt_spec.checkpoints.detect import inspect
from trt_spec.clients.trace import Trace
from trt_spec.engines.manifest import Limits, Manifest
from trt_spec.gate.result import GateResult
from trt_spec.report.schema import json_schema


def test_every_schema_is_written_and_no_other():
    texts = {path.stem: path.read_text(encoding="utf-8") for path in schemas.DIRECTORY.glob("*.json")}
    assert texts == {name: schemas.text_of(name) for name in schemas.REPORTS}, "run: make docs"


def test_what_the_gate_writes_keeps_its_schema():
    text = (schemas.DIRECTORY.parents[1] / "tests" / "gate" / "data" / "gate.json").read_text(encoding="utf-8")
    schema = json_schema(GateResult)
    assert set(schema["required"]) == set(json.loads(text)) == set(schema["properties"])
    assert TypeAdapter(GateResult).validate_json(text).loads[0].ratios["speedup"].low > 1
    with pytest.raises(ValidationError, match="verdict"):
        TypeAdapter(GateResult).validate_json(text.replace('"verdict": "pass"', '"verdict": "passed"', 1))


def test_what_inspect_prints_keeps_its_schema(tmp_path):
    """One checkpoint of every layout: nothing beside what the schema names, and all that it requires."""
    schema = json.loads(schemas.text_of("inspection"))
    target = tiny.llama_checkpoint(tmp_path / "target")
    drafts = {
        "ModelDetails": tiny.llama_checkpoint(tmp_path / "model", num_hidden_layers=1),
        "MedusaDetails": tiny.save_draft(tmp_path / "medusa", tiny.medusa_shapes()),
        "EagleDetails": tiny.save_draft(tmp_path / "eagle", tiny.eagle_shapes(hidden=16)),
    }
    for layout, path in drafts.items():
        printed, details = inspect(path, target).as_dict(), schema["$defs"][layout]
        assert {*schema["required"], *details["required"]} <= set(printed)
        assert set(printed) <= {*schema["properties"], *details["properties"]}
        assert all(set(problem) == set(schema["$defs"]["Problem"]["required"]) for problem in printed["problems"])
    assert printed["problems"]


def test_what_is_recorded_of_an_engine_keeps_its_schema():
    schema, limits = json_schema(Manifest), json_schema(Limits)
    assert set(schema["required"]) | {"format"} == set(schema["properties"])
    common = Limits("ngram", "rejection", 4, 8, 128, "float32", 5)
    assert set(common.as_dict()) == set(limits["required"])
    assert set(replace(common, drafter_placement="one_model").as_dict()) <= set(limits["properties"])


def test_what_a_schema_says_of_a_trace():
    schema = json_schema(Trace)
    assert set(schema["required"]) < set(schema["properties"]) == set(Trace.__dataclass_fields__)
    assert schema["properties"]["num_output_tokens"]["type"] == "integer"
    assert {"type": "null"} in schema["properties"]["drafts"]["anyOf"]
    written = json.loads(json.dumps(asdict(Trace(0, 1, (2, 3), (1, 1), 4, 2))))
    assert TypeAdapter(Trace).validate_python(written).chunk_ns == (2, 3)
    with pytest.raises(ValidationError, match="due_ns"):
        TypeAdapter(Trace).validate_python({name: value for name, value in written.items() if name != "due_ns"})
