"""The runs of converters and of trtllm-build that make an engine, in order, as data. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from trt_spec.engines.plan import Listing
from trt_spec.engines.sources import Source, Sources
from trt_spec.engines.tensorrt import flags
from trt_spec.engines.tensorrt.flags import Commands


@dataclass(frozen=True)
class ToolStep:
    """One run of another's tool.

    Attributes:
        name: of the step, stable between versions; names its log.
        what: it does, in words.
        command: with its arguments.
        output_dir: where it writes.
        role: the engine that it is a part of: target, draft, or base for a target before its ReDrafter is added.
        is_engine: whether it writes an engine, and else a converted checkpoint.
        reads: roles of the input checkpoints, and names of earlier steps, whose outputs it reads.
    """

    name: str
    what: str
    command: tuple[str, ...]
    output_dir: str
    role: str
    is_engine: bool
    reads: tuple[str, ...]


def tool_steps(commands: Commands, sources: Sources) -> Iterator[ToolStep]:
    """Every run of a converter or of trtllm-build, in order. Pure.

    Args:
        commands: of a run that `capabilities.check` has passed.
        sources: the checkpoints. One that is laid out anew before the converter reads it is read from `<work>/<role>`.

    Raises:
        CapabilityError: no converter takes the target's architecture.
    """
    config, target, draft = commands.config, sources["target"], sources.get("draft")
    method, model_type = config.speculation.method, target.listing.model_type or "llama"
    flags.check_head_target(config, model_type)
    dirs = {role: _read_from(role, source, commands.work) for role, source in sources.items()}
    splits = method == "redrafter" and flags.splits_redrafter(config)
    if splits:
        yield _convert(commands, "base", commands.convert_model("base", model_type, dirs["target"]))
    if method in flags.HEAD_TARGETS:
        command = _convert_heads(commands, model_type, dirs, draft.listing)
        what = f"convert the target and its {method} draft to one TensorRT-LLM checkpoint"
        reads = ("convert-base" if splits else "target", "draft")
        yield ToolStep("convert-target", what, command, commands.checkpoint("target"), "target", False, reads)
    else:
        yield _convert(commands, "target", commands.convert_model("target", model_type, dirs["target"]))
    yield _build(commands, "target")
    if method == "draft_model" and draft is not None:
        command = commands.convert_model("draft", draft.listing.model_type or model_type, dirs["draft"])
        yield _convert(commands, "draft", command)
        yield _build(commands, "draft")


def _read_from(role: str, source: Source, work: str) -> str:
    """The directory that a converter reads; a checkpoint may be named by its one file."""
    if source.conversion is not None and source.conversion.is_needed:
        return f"{work}/{role}"
    path = PurePosixPath(source.listing.path)
    return str(path.parent) if path.suffix in (".pt", ".pth", ".bin", ".safetensors") else source.listing.path


def _convert(commands: Commands, role: str, command: tuple[str, ...]) -> ToolStep:
    stored, build = commands.config.target.dtype, commands.config.build
    if role != "draft" and build.quantization not in (None, "none"):
        stored += f" and {build.quantization}"
    read = "draft" if role == "draft" else "target"
    what = f"convert the {read} to a TensorRT-LLM checkpoint in {stored}"
    return ToolStep(f"convert-{role}", what, command, commands.checkpoint(role), role, False, (read,))


def _convert_heads(commands: Commands, model_type: str, dirs: dict[str, str], draft: Listing) -> tuple[str, ...]:
    spec = commands.config.speculation
    if spec.method == "medusa":
        counts = draft.num_heads or spec.max_draft_len, draft.num_blocks or 1
        return commands.convert_medusa(model_type, dirs["target"], dirs["draft"], *counts)
    convert = commands.convert_eagle if spec.method == "eagle" else commands.convert_redrafter
    return convert(dirs["target"], dirs["draft"])


def _build(commands: Commands, role: str) -> ToolStep:
    ranks = flags.world_size(commands.config)
    what = f"build the engine of the {role}" + (f", one file for each of {ranks} GPUs" if ranks > 1 else "")
    command, output_dir = commands.build_engine(role), commands.engine(role)
    return ToolStep(f"build-{role}", what, command, output_dir, role, True, (f"convert-{role}",))
