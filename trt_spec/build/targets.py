"""The module that plans and builds for each build target; torch is imported only for the one that needs it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_spec.config import capabilities
from trt_spec.config.schema import RunConfig

if TYPE_CHECKING:
    from trt_spec.build.plan import BuildPlan
    from trt_spec.build.torch_engine import BuildResult

PLANNERS = {
    "torch": "trt_spec.build.sources",
    "tensorrt": "trt_spec.build.tensorrt",
    "llmapi": "trt_spec.build.llmapi",
}
BUILDERS = {
    "torch": "trt_spec.build.torch_engine",
    "tensorrt": "trt_spec.build.tensorrt_runner",
    "llmapi": "trt_spec.build.llmapi",
}


def plan_run(config: RunConfig, *, engines_dir: str = "engines", run: str = "") -> BuildPlan:
    """What `build` would do, from what is on the disk; what is not there yet is assumed, and the plan says so.

    Raises:
        CapabilityError: the combination is not offered.
        CheckpointError: a checkpoint that is there cannot be used.
    """
    capabilities.check(config)
    return _module(PLANNERS, config).plan_run(config, engines_dir=engines_dir, run=run)


def build(
    config: RunConfig,
    *,
    engines_dir: Path = Path("engines"),
    run: str = "",
    advance: Callable[[float | None, str | None], None] | None = None,
    log: Callable[[str], None] | None = None,
) -> BuildResult:
    """Builds engines/<run>/, or finds that an equal one is there.

    Args:
        config: the run.
        engines_dir: where engines are kept.
        run: how the user named the run on the command line.
        advance: called with (part done or None, what is being done).
        log: called with each line that another's tool prints; only tensorrt runs any.

    Raises:
        TrtSpecError: as the module of the build target says.
    """
    capabilities.check(config)
    further = {"log": log} if config.build.target == "tensorrt" else {}
    module = _module(BUILDERS, config)
    return module.build(config, engines_dir=engines_dir, run=run, advance=advance, **further)


def _module(names: dict[str, str], config: RunConfig) -> Any:
    return importlib.import_module(names[config.build.target])
