"""The arguments file of an `llmapi` engine, and what a build does with a checkpoint. Pure."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML

from trt_spec.checkpoints.trtllm import normalise
from trt_spec.config import versions
from trt_spec.config.schema import RunConfig
from trt_spec.engines.llmapi.args import version_of
from trt_spec.engines.plan import PlannedFile, Step
from trt_spec.engines.sources import Source

ARGUMENTS_FILE = "llm_args.yaml"


def arguments_text(config: RunConfig, made: Mapping[str, Any]) -> str:
    """The content of llm_args.yaml."""
    head = (
        f"# Arguments of tensorrt_llm.LLM {version_of(config)} for the run {config.name}, written by trt-spec build.\n"
        "# Paths are relative to this directory. Change the run config, not this file.\n"
    )
    stream = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(made, stream)
    return head + stream.getvalue()


def checkpoint_step(role: str, source: Source) -> Step:
    """A checkpoint laid out anew where the version needs it, else linked."""
    listing, conversion = source.listing, source.conversion
    if conversion is not None and conversion.is_needed:
        written = [*conversion.files, "config.json", normalise.RECORD_FILE, *conversion.copied]
        files = tuple(PlannedFile(f"{role}/{name}", f"{listing.path}, converted") for name in sorted(written))
        return Step(f"convert the {role}: " + "; ".join(conversion.changes), files)
    if listing.is_assumed and role == "draft":
        files = (PlannedFile(f"{role}/", f"{listing.path}, linked or converted"),)
        return Step("link the draft where TensorRT-LLM reads it as it is, else convert it", files)
    files = tuple(PlannedFile(f"{role}/{name}", f"{listing.path}/{name}, linked") for name in listing.inputs)
    return Step(f"link the {role}, which TensorRT-LLM reads as it is", files)


def serving_notes(config: RunConfig) -> list[str]:
    """Which image serves the engine."""
    image = versions.container_of(version_of(config))
    where = config.build.container or image.image
    notes = [f"TensorRT-LLM loads it when the server starts, in {where}; nothing of it runs in a build"]
    if config.build.container is None and not image.has_tritonserver:
        notes.append(
            f"no Triton image has exactly TensorRT-LLM {version_of(config)}, and that one has no tritonserver: name "
            f"one that has both with build.container ({versions.DEFAULT_VERSION['llmapi']} has one)"
        )
    return notes
