"""What is installed into NVIDIA's images is enough for what runs there, and no more than pyproject.toml asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from trt_spec.config.image import REQUIREMENTS

ROOT = Path(__file__).parents[2]
OF_THE_IMAGE = {"torch", "numpy", "tokenizers", "transformers"}  # TensorRT-LLM's own dependencies
NOT_NEEDED_THERE = {"tritonclient", "httpx2", "scipy"}  # ask servers, and judge; nothing that builds or serves does
# What `build` and `emit` run in a container, and what the emitted models import in the server.
MODULES = (
    "trt_spec.cli.app",
    "trt_spec.engines.tensorrt.builder",
    "trt_spec.engines.llmapi.builder",
    "trt_spec.triton.repository",
    "trt_spec.triton.trtllm.inflight_batcher",
    "trt_spec.triton.host.hosting",
    "trt_spec.triton.trtllm.worker",
    "trt_spec.triton.trtllm.requests",
    "trt_spec.triton.trtllm.adapter",
    "trt_spec.triton.trtllm.engine_text",
    "trt_spec.triton.trtllm.external_drafts",
    "trt_spec.triton.metrics",
)


def test_every_dependency_is_accounted_for():
    tomllib = pytest.importorskip("tomllib")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    by_name = {Requirement(text).name: Requirement(text) for text in declared}
    installed = {Requirement(text).name: Requirement(text) for text in REQUIREMENTS}
    assert set(by_name) == set(installed) | OF_THE_IMAGE | NOT_NEEDED_THERE
    assert all(by_name[name].specifier == requirement.specifier for name, requirement in installed.items())


def test_it_runs_without_what_is_not_installed():
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in (*NOT_NEEDED_THERE, "gguf", "accelerate"))
    code = f"import sys; {blocked}import {', '.join(MODULES)}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
