"""The shell command that carries out a step in a container, for a machine that lacks the tools."""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePosixPath

from trt_spec.config import versions
from trt_spec.config.image import REQUIREMENTS, WORKSPACE
from trt_spec.config.schema import RunConfig


def container_of(config: RunConfig) -> versions.Container:
    """The image of a run: `build.container`, else its version's; raises ConfigError where it names no version."""
    found = versions.container_of(versions.parse(config.build.tensorrt_llm_version or ""))
    if config.build.container is None:
        return found
    return versions.Container(config.build.container, found.examples_dir, found.has_tritonserver)


def examples_dir_of(config: RunConfig) -> str:
    """Where TensorRT-LLM's examples are in the container."""
    return config.build.examples_dir or container_of(config).examples_dir


def docker_command(config: RunConfig, command: str) -> str:
    """`command` (such as "trt-spec build my-run") in the container of a run, started from the project's checkout.

    The working directory is mounted, so what is written stays. Checkpoints with an absolute path are mounted too, for
    reading only.
    """
    paths = (config.target.checkpoint, config.speculation.checkpoint)
    outside = [path for path in dict.fromkeys(filter(None, paths)) if PurePosixPath(path).is_absolute()]
    mounts = [f"-v {shlex.quote(f'{path}:{path}:ro')}" for path in outside]
    needs = " ".join(f"'{requirement}'" for requirement in REQUIREMENTS)
    # What the image has is kept: TensorRT-LLM is built against it, and a pip that would replace it fails instead.
    script = (
        "pip list --format=freeze > /tmp/image.txt"
        f" && pip install -q -c /tmp/image.txt {needs}"
        f" && pip install -q --no-deps . && {command}"
    )
    double_quoted = '"' + re.sub(r'([\\"$`])', r"\\\1", script) + '"'  # so that single quotes inside stay readable
    lines = [
        "docker run --rm -it --gpus all --ipc=host",
        "--ulimit memlock=-1 --ulimit stack=67108864",
        f'-v "$PWD":{WORKSPACE} -w {WORKSPACE}',
        *mounts,
        container_of(config).image,
        f"bash -c {double_quoted}",
    ]
    return " \\\n    ".join(lines)


def mount_problems(config: RunConfig) -> list[str]:
    """`mount_problem` of the run's checkpoints."""
    paths = filter(None, (config.target.checkpoint, config.speculation.checkpoint))
    return [problem for path in paths if (problem := mount_problem(path))]


def mount_problem(path: str) -> str | None:
    """Why a checkpoint's path does not lead to it inside the container; None where it does, or is not there yet."""
    if ".." in PurePosixPath(path).parts:
        return f"{path} leads out of the working directory, which is all that the container sees; give it absolute"
    checkpoint = Path(path)
    mounted = (checkpoint if checkpoint.is_absolute() else Path()).resolve()
    files = sorted(checkpoint.iterdir()) if checkpoint.is_dir() else [checkpoint]
    for file in files:  # as the hub's cache has them, or a directory that is a link as a whole
        if file.exists() and not file.resolve().is_relative_to(mounted):
            return f"{file} is a link to {file.resolve()}, which the container does not see; put the file itself there"
    return None
