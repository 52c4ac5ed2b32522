"""Are the tools of TensorRT-LLM on this machine, and are they of the pinned version?"""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

from trt_spec import provenance
from trt_spec.config.schema import RunConfig
from trt_spec.engines import container
from trt_spec.engines.plan import commands
from trt_spec.engines.tensorrt import engine_config
from trt_spec.errors import MachineError

TOOLS = ("trtllm-build", "python3")
# Where images keep the converters: Triton's, the release image's, a checkout of the sources.
EXAMPLES_DIRS = ("/app/examples", "/app/tensorrt_llm/examples", "/workspace/TensorRT-LLM/examples")


def find_examples(config: RunConfig) -> Path | None:
    """The directory of the converters on this machine: `build.examples_dir`, the image's, or where others keep it."""
    if config.build.examples_dir is not None:
        named = Path(config.build.examples_dir)
        return named if named.is_dir() else None
    candidates = dict.fromkeys((container.container_of(config).examples_dir, *EXAMPLES_DIRS))
    return next((Path(path) for path in candidates if Path(path).is_dir()), None)


def installed_version() -> str | None:
    """The version of the tensorrt_llm package of this interpreter; None where it is not installed."""
    try:
        return importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return None


def missing_tools(config: RunConfig, scripts: tuple[str, ...] = ()) -> list[str]:
    """What a build of the run lacks here, in words; `scripts` are converters, by absolute path."""
    missing = [f"{tool} is not on PATH" for tool in TOOLS if shutil.which(tool) is None]
    if find_examples(config) is None:
        named = config.build.examples_dir
        missing.append(f"{named} is not here" if named else "TensorRT-LLM's examples/ is in none of its usual places")
    if not provenance.hardware().gpus:  # asked before a conversion that takes long, not after
        missing.append("nvidia-smi shows no GPU, and trtllm-build needs one")
    missing += [f"{script} is not here" for script in scripts if not Path(script).is_file()]
    found, pinned = installed_version(), config.build.tensorrt_llm_version or ""
    if found is not None and not engine_config.is_version(found, pinned):
        missing.append(f"TensorRT-LLM {found} is installed, and the run config pins {pinned}")
    return missing


def check(config: RunConfig, run: str, scripts: tuple[str, ...] = ()) -> None:
    """Raises MachineError where tools are missing; with the image that has them and the command that builds in it."""
    missing = missing_tools(config, scripts)
    if not missing:
        return
    command = container.docker_command(config, commands(run or config.name)[0])
    raise MachineError(
        f"the tools of TensorRT-LLM {config.build.tensorrt_llm_version} are not on this machine",
        details=[*missing, *container.mount_problems(config)],
        expected=f"the container {container.container_of(config).image}",
        remedy=f"build in it, from the checkout of this project:\n{command}",
        code="machine-trtllm",
    )
