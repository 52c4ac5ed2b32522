"""Carries out the planned steps of a build: does what is not done yet, and compares what was written with the run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from trt_spec.checkpoints.trtllm import normalise
from trt_spec.checkpoints.trtllm.conversion import Conversion
from trt_spec.config.schema import RunConfig
from trt_spec.engines.builder import Advance, Log
from trt_spec.engines.manifest import FileRecord
from trt_spec.engines.tensorrt import engine_config, flags, tool_process
from trt_spec.engines.tensorrt.plan import LOG_DIR
from trt_spec.engines.tensorrt.steps import ToolStep
from trt_spec.engines.tensorrt.work_dir import WorkDir, step_key
from trt_spec.errors import BuildError

_SHOWN_CHARACTERS = 60  # of a tool's last line, behind the name of its step


def run_steps(
    config: RunConfig,
    steps: list[ToolStep],
    conversions: Mapping[str, Conversion],
    inputs: Mapping[str, Mapping[str, FileRecord]],
    work: WorkDir,
    advance: Advance,
    log: Log,
) -> dict[str, float]:
    """Does what is not done yet; returns how long each tool took, at the time when it ran."""
    keys: dict[str, str] = {
        role: step_key("input", {name: record.sha256 for name, record in files.items()})
        for role, files in inputs.items()
    }
    needed = {role: conversion for role, conversion in conversions.items() if conversion.is_needed}
    total = len(needed) + len(steps)
    for done, (role, conversion) in enumerate(needed.items()):
        key = step_key(["normalise", conversion.as_dict()], dict(keys))

        def on_part(part: float, role: str = role, done: int = done) -> None:
            advance((done + part) / total, f"laying out the {role}")

        lay_out = partial(normalise.write, conversion, work.path / role, on_part)
        work.do(f"lay-out-{role}", key, work.path / role, lay_out)
        keys[role] = key
    for done, step in enumerate(steps, len(needed)):
        what = [config.build.tensorrt_llm_version, list(step.command)]  # another version is another tool
        keys[step.name] = step_key(what, {name: keys[name] for name in step.reads})
        label = f"step {done + 1} of {total}"
        advance(done / total, f"{label}, {step.name}")

        def on_line(line: str, label: str = f"{label}, {step.name}", done: int = done) -> None:
            advance(done / total, f"{label}: {line[-_SHOWN_CHARACTERS:]}")
            log(line)

        def run_tool(step: ToolStep = step, label: str = label, on_line: Log = on_line) -> None:
            log(f"{label}: {step.what}")
            log(f"$ {shlex.join(step.command)}")
            tool_process.run(
                step.command,
                work.path / LOG_DIR / f"{step.name}.log",
                on_line,
                name=step.name,
                advice=f"what was finished is kept in {work.path}, and the next build goes on from there",
                descriptors=(work.lock,),
            )
            _check_output(config, step)

        if not work.do(step.name, keys[step.name], Path(step.output_dir), run_tool):
            log(f"{step.name} was done before")
    return {step.name: work.seconds(step.name) for step in steps}


def _check_output(config: RunConfig, step: ToolStep) -> None:
    """Raises BuildError with every difference between what a tool wrote and what it was asked for."""
    output_dir, suffix = Path(step.output_dir), "engine" if step.is_engine else "safetensors"
    ranks = [output_dir / f"rank{rank}.{suffix}" for rank in range(flags.world_size(config))]
    problems = [f"{path.name} is missing" for path in ranks if not path.is_file() or not path.stat().st_size]
    try:
        written = json.loads((output_dir / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append("config.json is missing")
    except ValueError as error:
        problems.append(f"config.json cannot be read: {error}")
    else:
        problems += engine_config.problems(written, config, step.role, is_engine=step.is_engine)
    if problems:
        raise BuildError(
            f"{step.name} ended well and wrote something else than was asked for",
            where=step.output_dir,
            details=problems,
            remedy="build in the container of build.tensorrt_llm_version; trt-spec plan shows the command",
        )
