"""Writes the generated blocks of the documents and the dashboard again, for `make docs`: `-m scripts.docs.update`."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from scripts.docs import dashboard, tables, trtllm_tables
from trt_spec import methods
from trt_spec.bench.methods import MethodsResult
from trt_spec.checkpoints.families import NATIVE_FAMILIES
from trt_spec.cli import views
from trt_spec.config import capabilities, loader
from trt_spec.config.explain import known_keys
from trt_spec.config.schema import RunConfig
from trt_spec.engines.builder import plan_run
from trt_spec.report import reference
from trt_spec.serve.openai import fields
from trt_spec.triton import contract, metrics
from trt_spec.triton.compat import tensors as compat_tensors

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/config.md", "docs/tensorrt_llm.md", "docs/serving.md", "docs/openai.md")
SPEEDUPS = ROOT / "docs" / "speedups.json"  # what `make speedups` measured
DRY_RUN = "llama-3.3-70b-draft-1b"


def blocks() -> dict[str, str]:
    """Name of a block to its content; each is in one of the documents."""
    return {
        "methods": reference.methods_table(capabilities.TABLE, methods.ACCEPTANCE) + "\n" + families(),
        "inputs": tables.inputs_table(contract.INPUTS),
        "outputs": tables.outputs_table(contract.OUTPUTS),
        "compat-inputs": tables.compat_inputs_table(compat_tensors.INPUTS),
        "compat-outputs": tables.compat_outputs_table(compat_tensors.OUTPUT_DOCS, compat_tensors.OUTPUTS),
        "speedups": MethodsResult.from_json(SPEEDUPS.read_text(encoding="utf-8")).markdown(),
        "metrics": metrics_table(),
        "openai-fields": tables.openai_fields_table(fields.HONOURED, fields.IGNORED, fields.ONLY),
        "config": reference.config_reference(known_keys()),
        "deployments": trtllm_tables.deployments_table(runs()),
        "exactness": trtllm_tables.exactness_table(capabilities.TABLE),
        "impossible": trtllm_tables.impossible_table(),
        "dry-run": f"    trt-spec plan {DRY_RUN}\n\n```\n{dry_run()}```\n",
    }


def metrics_table() -> str:
    """The series of the torch engine."""
    return tables.metrics_table(metrics.PREFIX, (*metrics.COMMON, *metrics.TORCH))


def families() -> str:
    """The families that the torch target runs, in a sentence."""
    names = ", ".join(f"`{name}`" for name in NATIVE_FAMILIES)
    return f"Models that the `torch` target runs, by `model_type` in config.json: {names} (SmolLM2 is `llama`).\n"


def runs() -> dict[str, RunConfig]:
    """File name to run, for every config that the project ships."""
    return {path.name: loader.load(path) for path in sorted((ROOT / "configs").glob("*.yaml"))}


def dry_run() -> str:
    """What `trt-spec plan` prints of a run whose checkpoints are not there."""
    config = loader.load(ROOT / "configs" / f"{DRY_RUN}.yaml")
    with _empty_directory():
        planned = plan_run(config, run=DRY_RUN)
    console = Console(file=io.StringIO(), width=120, highlight=False)
    for note in planned.notes:
        console.print(note, markup=False, soft_wrap=True)
    console.print(views.plan(planned), crop=False)  # commands are never cut off
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


@contextmanager
def _empty_directory() -> Iterator[None]:
    """Checkpoints are looked up from the working directory; here there are none, whatever a machine has."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            yield
        finally:
            os.chdir(before)


def update(document: str) -> str:
    """`document` with every generated block that is in it as it should be."""
    for name, content in blocks().items():
        if f"<!-- {name} -->" in document:
            document = tables.replace_block(document, name, content)
    return document


if __name__ == "__main__":
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
    text = json.dumps(dashboard.dashboard(), indent=1, ensure_ascii=False)
    (ROOT / "docs" / "grafana.json").write_text(f"{text}\n", encoding="utf-8")
