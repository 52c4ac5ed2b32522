#!/usr/bin/env python3
"""Writes the generated tables into README.md again. `make docs` runs it; tests/test_readme.py compares."""

from pathlib import Path

from trt_spec.checkpoints.families import NATIVE_FAMILIES
from trt_spec.config import capabilities
from trt_spec.config.schema import json_schema
from trt_spec.report import reference
from trt_spec.triton import contract


def tables() -> dict[str, str]:
    """Name of a block in README.md to its content."""
    return {
        "methods": reference.methods_table(capabilities.TABLE, capabilities.ACCEPTANCE) + "\n" + families(),
        "versions": reference.versions_table(capabilities.TABLE),
        "inputs": reference.inputs_table(contract.INPUTS),
        "outputs": reference.outputs_table(contract.OUTPUTS),
        "config": reference.config_reference(json_schema()),
    }


def families() -> str:
    """The families that the torch target runs, in a sentence."""
    names = ", ".join(f"`{name}`" for name in NATIVE_FAMILIES)
    return f"Models that the `torch` target runs, by `model_type` in config.json: {names} (SmolLM2 is `llama`).\n"


def update(document: str) -> str:
    """`document` with every generated block as it should be."""
    for name, content in tables().items():
        document = reference.replace_block(document, name, content)
    return document


if __name__ == "__main__":
    path = Path(__file__).parent.parent / "README.md"
    path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
