"""Runs on tiny checkpoints, for tests of the build and of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import tiny
from trt_spec.config import loader
from trt_spec.config.schema import RunConfig


def tiny_run(root: Path, method: str = "ngram", *, dtype: str = "float32", **target: Any) -> RunConfig:
    """A run whose checkpoints are under `root`: target/, and draft/ for draft_model (one layer less, other weights)."""
    if not (root / "target").exists():
        tiny.llama_checkpoint(root / "target", **target)
    speculation: dict[str, Any] = {"method": method}
    if method == "draft_model":
        if not (root / "draft").exists():
            tiny.llama_checkpoint(root / "draft", seed=1, num_hidden_layers=1)
        speculation["checkpoint"] = str(root / "draft")
    return RunConfig(
        name=f"tiny-{method}",
        target={"checkpoint": str(root / "target"), "dtype": dtype},
        speculation=speculation,
        build={"max_batch_size": 4, "max_seq_len": 128, "device": "cpu"},
    )


def write_run(root: Path, config: RunConfig) -> Path:
    """The config as a file under `root`."""
    path = root / f"{config.name}.yaml"
    path.write_text(loader.dump(config), encoding="utf-8")
    return path
