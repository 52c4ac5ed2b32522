"""Carries out the planned steps of a build: does what is not done yet, and compares what was written with the run."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trt_spec.checkpoints.trtllm import normalise
from trt_spec.checkpoints.trtllm.conversion import Conversion
from trt_spec.config.schema import RunConfig
from trt_spec.engines.manifest import FileRecord
from trt_spec.engines.tensorrt import engine_config, flags, tool_process
from trt_spec.engines.tensorrt.plan import LOG_DIR
from trt_spec.engines.tensorrt.steps import ToolStep
from trt_spec.engines.tensorrt.work_dir import WorkDir, step_key
from trt_spec.errors import BuildError

Advance = Callable[[float | None, str | None], None]
Log = Callable[[str], None]
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
    total, done = len(steps) + len(needed), 0
    for role, conversion in needed.items():
        key = step_key(["normalise", conversion.as_dict()], dict(keys))

        def on_part(part: float, role: str = role, done: int = done) -> None:
            advance((done + part) / total, f"laying out the {role}")

        _normalise(role, conversion, key, work, on_part)
        keys[role] = key
        done += 1
    seconds = {}
    for step in steps:
        what = [config.build.tensorrt_llm_version, list(step.command)]  # another version is another tool
        keys[step.name] = step_key(what, {name: keys[name] for name in step.reads})
        label = f"step {done + 1} of {total}, {step.name}"
        advance(done / total, label)

        def on_line(line: str, label: str = label, done: int = done) -> None:
            advance(done / total, f"{label}: {line[-_SHOWN_CHARACTERS:]}")
            log(line)

        if work.is_done(step.name, keys[step.name], Path(step.output_dir)):
            log(f"{step.name} was done before")
        else:
            log(f"step {done + 1} of {total}: {step.what}")
            log(f"$ {shlex.join(step.command)}")
            _run_step(config, step, keys[step.name], work, on_line)
        seconds[step.name] = work.seconds(step.name) or 0.0
        done += 1
    return seconds


def _normalise(role: str, conversion: Conversion, key: str, work: WorkDir, advance: Callable[[float], None]) -> None:
    name, output_dir = f"lay-out-{role}", work.path / role
    if work.is_done(name, key, output_dir):
        return
    started = time.monotonic()
    work.start(name, output_dir)
    normalise.write(conversion, output_dir, advance)
    work.finish(name, key, output_dir, time.monotonic() - started)


def _run_step(config: RunConfig, step: ToolStep, key: str, work: WorkDir, on_line: Log) -> None:
    started, output_dir = time.monotonic(), Path(step.output_dir)
    work.start(step.name, output_dir)
    tool_process.run(
        step.command,
        work.path / LOG_DIR / f"{step.name}.log",
        on_line,
        name=step.name,
        advice=f"what was finished is kept in {work.path}, and the next build goes on from there",
        descriptors=(work.lock,),
    )
    _check_output(config, step)
    work.finish(step.name, key, output_dir, time.monotonic() - started)


def _check_output(config: RunConfig, step: ToolStep) -> None:
    """Compares what a tool wrote with what it was asked for.

    Raises:
        BuildError: with every difference.
    """
    output_dir, suffix = Path(step.output_dir), "engine" if step.is_engine else "safetensors"
    ranks = [f"rank{rank}.{suffix}" for rank in range(flags.world_size(config))]
    problems = [f"{name} is missing" for name in ranks if not _is_filled(output_dir / name)]
    problems += _config_problems(config, step, output_dir / "config.json")
    if problems:
        raise BuildError(
            f"{step.name} ended well and wrote something else than was asked for",
            where=step.output_dir,
            details=problems,
            remedy="build in the container of build.tensorrt_llm_version; trt-spec plan shows the command",
        )


def _is_filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _config_problems(config: RunConfig, step: ToolStep, path: Path) -> list[str]:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ["config.json is missing"]
    except ValueError as error:
        return [f"config.json cannot be read: {error}"]
    compare = engine_config.config_problems if step.is_engine else engine_config.checkpoint_problems
    return compare(written, config, step.role)
