"""Runs for the `tensorrt` target on tiny checkpoints, built with the stand-ins for TensorRT-LLM's tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests import tiny
from trt_spec.config.schema import RunConfig


def checkpoints(root: Path, method: str) -> dict[str, str]:
    """Directories of the checkpoints of a method under `root`, made where they are not there."""
    target, draft = root / "target", root / "draft"
    if not target.exists():
        tiny.llama_checkpoint(target)
    if method in ("none", "lookahead"):
        return {"target": str(target)}
    if not draft.exists():
        if method == "draft_model":
            tiny.llama_checkpoint(draft, seed=1, num_hidden_layers=1)
        elif method == "medusa":
            tiny.save_draft(draft, tiny.medusa_shapes(num_heads=5, num_blocks=2), medusa_num_heads=5)
        elif method == "eagle":
            tiny.save_draft(draft, tiny.eagle_shapes(), **tiny.llama_config(num_hidden_layers=1))
        elif method == "redrafter":
            draft.mkdir()
            tensors = tiny.random_tensors({"input_proj.weight": (4, 4)}, 0, torch.float16)
            save_file(tensors, draft / "model.safetensors")
            (draft / "config.json").write_text(json.dumps({"num_draft_layers": 2, "hidden_size": 32}), encoding="utf-8")
    return {"target": str(target), "draft": str(draft)}


def trtllm_run(root: Path, method: str, stand_ins: Any = None, *, speculation: Any = None, **build: Any) -> RunConfig:
    """A run for the `tensorrt` target; with the stand-ins' version and examples where they are given."""
    paths = checkpoints(root, method)
    section = {"method": method, **({"checkpoint": paths["draft"]} if "draft" in paths else {}), **(speculation or {})}
    if stand_ins is not None:
        build = {"tensorrt_llm_version": stand_ins.version, "examples_dir": str(stand_ins.examples), **build}
    return RunConfig.model_validate(
        {
            "name": f"tiny-{method}",
            "target": {"checkpoint": paths["target"], "dtype": "float16"},
            "speculation": section,
            "build": {"target": "tensorrt", "max_batch_size": 4, "max_seq_len": 128, **build},
        }
    )
