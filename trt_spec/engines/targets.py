"""The module that plans and builds for each build target; torch is imported only for the one that needs it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trt_spec.config import capabilities
from trt_spec.config.schema import RunConfig

if TYPE_CHECKING:
    from trt_spec.engines.engine_dir import BuildResult
    from trt_spec.engines.plan import BuildPlan

PLANNERS = {
    "torch": "trt_spec.engines.torch.sources",
    "tensorrt": "trt_spec.engines.tensorrt.plan",
    "llmapi": "trt_spec.engines.llmapi.build",
}
BUILDERS = {
    "torch": "trt_spec.engines.torch.build",
    "tensorrt": "trt_spec.engines.tensorrt.build",
    "llmapi": "trt_spec.engines.llmapi.build",
}


def plan_run(config: RunConfig, *, engines_dir: str = "engines", run: str = "") -> BuildPlan:
    """What `build` would do, from what is on the disk; what is not there yet is assumed, and the plan says so.

    Raises:
        CapabilityError: the combination is not offered.
        CheckpointError: a checkpoint that is there cannot be used.
    """
    capabilities.check(config)
    return _module(PLANNERS, config).plan_run(config, engines_dir=engines_dir, run=run)


def builder(config: RunConfig) -> Callable[..., BuildResult]:
    """The function that builds engines/<run>/ of a run, or finds that an equal one is there; imported, not called.

    It takes `config`, and by keyword `engines_dir`, `run` (how the user named the run), `advance` (called with the part
    done or None and what is being done) and `log` (called with each line that another's tool prints).

    Raises:
        CapabilityError: the combination is not offered.
    """
    capabilities.check(config)
    build = _module(BUILDERS, config).build
    if config.build.target == "tensorrt":
        return build

    def without_log(*arguments: Any, log: Callable[[str], None] | None = None, **options: Any) -> BuildResult:
        return build(*arguments, **options)  # it runs no other tools

    return without_log


def _module(names: dict[str, str], config: RunConfig) -> Any:
    return importlib.import_module(names[config.build.target])
