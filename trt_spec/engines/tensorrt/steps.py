"""The runs of converters and of trtllm-build that make an engine, in order, as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from trt_spec.checkpoints.trtllm.conversion import Conversion
from trt_spec.config.schema import RunConfig
from trt_spec.engines.plan import Listing
from trt_spec.engines.tensorrt import flags
from trt_spec.engines.tensorrt.flags import Paths


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


def tool_steps(
    config: RunConfig,
    target: Listing,
    draft: Listing | None,
    paths: Paths,
    conversions: Mapping[str, Conversion] | None = None,
) -> list[ToolStep]:
    """Every run of a converter or of trtllm-build, in order. Pure.

    Args:
        config: the run, which `capabilities.check` has passed.
        target, draft: the checkpoints.
        paths: of the build.
        conversions: by role, what is laid out anew before the converter reads it; it is then read from `<work>/<role>`.

    Raises:
        CapabilityError: no converter takes the target's architecture.
    """
    method = config.speculation.method
    model_type = target.model_type or "llama"
    flags.check_head_target(config, model_type)
    sources = {
        role: _source_dir(role, listing, paths, conversions or {})
        for role, listing in (("target", target), ("draft", draft))
        if listing is not None
    }
    steps = []
    if method == "redrafter" and flags.splits_redrafter(config):
        steps.append(_convert_model_step(config, "base", model_type, sources["target"], paths))
    if method in flags.HEAD_TARGETS:
        assert draft is not None
        steps.append(_convert_heads_step(config, model_type, sources, draft, paths))
    else:
        steps.append(_convert_model_step(config, "target", model_type, sources["target"], paths))
    steps.append(_build_step(config, "target", paths))
    if method == "draft_model" and draft is not None:
        steps.append(_convert_model_step(config, "draft", draft.model_type or model_type, sources["draft"], paths))
        steps.append(_build_step(config, "draft", paths))
    return steps


def _source_dir(role: str, listing: Listing, paths: Paths, conversions: Mapping[str, Conversion]) -> str:
    """The directory that a converter reads; a checkpoint may be named by its one file."""
    if role in conversions and conversions[role].is_needed:
        return f"{paths.work}/{role}"
    is_file = PurePosixPath(listing.path).suffix in (".pt", ".pth", ".bin", ".safetensors")
    return str(PurePosixPath(listing.path).parent) if is_file else listing.path


def _convert_model_step(config: RunConfig, role: str, model_type: str, model_dir: str, paths: Paths) -> ToolStep:
    output_dir = paths.checkpoint(role)
    # The draft of an external drafter keeps its own type: it is small, and calibrating it is another decision.
    command = flags.convert_model(config, model_type, model_dir, output_dir, paths, is_quantised=role != "draft")
    reads = ("draft",) if role == "draft" else ("target",)
    return ToolStep(f"convert-{role}", _convert_words(config, role), command, output_dir, role, False, reads)


def _convert_words(config: RunConfig, role: str) -> str:
    build = config.build
    kept = build.quantization in (None, "none") or role == "draft"
    stored = config.target.dtype if kept else f"{config.target.dtype} and {build.quantization}"
    return f"convert the {'target' if role == 'base' else role} to a TensorRT-LLM checkpoint in {stored}"


def _convert_heads_step(
    config: RunConfig, model_type: str, sources: Mapping[str, str], draft: Listing, paths: Paths
) -> ToolStep:
    method, output_dir = config.speculation.method, paths.checkpoint("target")
    model_dir, draft_dir = sources["target"], sources["draft"]
    reads: tuple[str, ...] = ("target", "draft")
    if method == "medusa":
        num_heads = draft.num_heads or config.speculation.max_draft_len
        num_blocks = draft.num_blocks or 1
        command = flags.convert_medusa(
            config, model_type, model_dir, draft_dir, num_heads, num_blocks, output_dir, paths
        )
    elif method == "eagle":
        command = flags.convert_eagle(config, model_dir, draft_dir, output_dir, paths)
    else:
        if flags.splits_redrafter(config):
            model_dir, reads = paths.checkpoint("base"), ("convert-base", "draft")
        command = flags.convert_redrafter(config, model_dir, draft_dir, output_dir, paths)
    what = f"convert the target and its {method} draft to one TensorRT-LLM checkpoint"
    return ToolStep("convert-target", what, command, output_dir, "target", False, reads)


def _build_step(config: RunConfig, role: str, paths: Paths) -> ToolStep:
    output_dir = paths.engine(role)
    command = flags.build_engine(config, paths.checkpoint(role), output_dir, paths, role)
    ranks = flags.world_size(config)
    what = f"build the engine of the {role}" + (f", one file for each of {ranks} GPUs" if ranks > 1 else "")
    return ToolStep(f"build-{role}", what, command, output_dir, role, True, (f"convert-{role}",))
