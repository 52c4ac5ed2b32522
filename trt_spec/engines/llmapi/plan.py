"""What a build for the `llmapi` target would do. Pure."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from trt_spec.checkpoints.trtllm import normalise
from trt_spec.checkpoints.trtllm.conversion import Conversion
from trt_spec.config import versions
from trt_spec.config.schema import RunConfig
from trt_spec.engines.llmapi.args import arguments, version_of
from trt_spec.engines.plan import BuildPlan, Listing, PlannedFile, Step, assumed_notes, commands, last_steps

ARGUMENTS_FILE = "llm_args.yaml"


def arguments_text(config: RunConfig, conversions: Mapping[str, Conversion] | None = None) -> str:
    """The content of llm_args.yaml; `conversions` as for `plan`.

    Raises:
        CapabilityError: the pinned version does not have what the run asks for.
    """
    return as_text(config, arguments(config, _draft_facts(conversions)))


def as_text(config: RunConfig, made: Mapping[str, Any]) -> str:
    """Arguments as llm_args.yaml."""
    from ruamel.yaml import YAML

    head = (
        f"# Arguments of tensorrt_llm.LLM {version_of(config)} for the run {config.name}, written by trt-spec build.\n"
        "# Paths are relative to this directory. Change the run config, not this file.\n"
    )
    stream = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(made, stream)
    return head + stream.getvalue()


def plan(
    config: RunConfig,
    target: Listing,
    draft: Listing | None = None,
    *,
    conversions: Mapping[str, Conversion] | None = None,
    engines_dir: str = "engines",
    run: str = "",
) -> BuildPlan:
    """The steps and files of a build. Pure.

    Args:
        config: the run.
        target, draft: the checkpoints' file names.
        conversions: by role, what changes for the pinned version; none for checkpoints that are not there yet.
        engines_dir: where engines are kept.
        run: how the user named the run on the command line.

    Raises:
        CapabilityError: the pinned version does not have what the run asks for.
    """
    made = arguments(config, _draft_facts(conversions))
    engine_dir = str(PurePosixPath(engines_dir) / config.name)
    container = config.build.container or versions.container_of(version_of(config)).image
    steps = [Step("inspect the target" + (" and the draft, and check that they fit" if draft else ""))]
    for role, listing in (("target", target), ("draft", draft)):
        if listing is not None:
            steps.append(_checkpoint_step(role, listing, (conversions or {}).get(role)))
    steps.append(
        Step(
            f"write the arguments of tensorrt_llm.LLM {version_of(config)}, each checked against its fields",
            (PlannedFile(ARGUMENTS_FILE, ", ".join(made)),),
        )
    )
    steps += last_steps(engine_dir)
    notes = assumed_notes(target, draft)
    notes.append(f"TensorRT-LLM loads it when the server starts, in {container}; nothing of it runs in a build")
    if config.build.container is None and not versions.container_of(version_of(config)).has_tritonserver:
        notes.append(
            f"no Triton image has exactly TensorRT-LLM {version_of(config)}, and that one has no tritonserver: name "
            f"one that has both with build.container ({versions.DEFAULT_VERSION['llmapi']} has one)"
        )
    texts = ((ARGUMENTS_FILE, as_text(config, made)),)
    head = (config.name, config.build.target, engine_dir)
    return BuildPlan(*head, tuple(steps), commands(run or config.name, config.build.target), tuple(notes), texts=texts)


def _draft_facts(conversions: Mapping[str, Conversion] | None) -> Mapping[str, Any]:
    return conversions["draft"].facts if conversions and "draft" in conversions else {}


def _checkpoint_step(role: str, listing: Listing, conversion: Conversion | None) -> Step:
    if conversion is not None and conversion.is_needed:
        written = [*conversion.files, "config.json", normalise.RECORD_FILE, *conversion.copied]
        files = tuple(PlannedFile(f"{role}/{name}", f"{listing.path}, converted") for name in sorted(written))
        return Step(f"convert the {role}: " + "; ".join(conversion.changes), files)
    if listing.is_assumed and role == "draft":
        files = (PlannedFile(f"{role}/", f"{listing.path}, linked or converted"),)
        return Step("link the draft where TensorRT-LLM reads it as it is, else convert it", files)
    files = tuple(PlannedFile(f"{role}/{name}", f"{listing.path}/{name}, linked") for name in listing.inputs)
    return Step(f"link the {role}, which TensorRT-LLM reads as it is", files)
