"""What a build would do, as data: the steps in order, the files it writes and the commands that do it. Pure.

Each build target's `Builder.plan_of` makes it from what is known of the checkpoints; it writes and runs nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any


@dataclass(frozen=True)
class PlannedFile:
    """One file that a build writes; `path` is relative to the engine directory, `source` says what it comes from."""

    path: str
    source: str


@dataclass(frozen=True)
class Step:
    """One thing that a build does: in words, the files that it writes, and the command where another's tool does it."""

    what: str
    files: tuple[PlannedFile, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Size:
    """One size of an engine: what is asked for, what the builder makes of it, and why."""

    name: str
    asked: int
    built: int
    why: str = ""


@dataclass(frozen=True)
class BuildPlan:
    """Everything that `build` would do for one run.

    Attributes:
        engine_dir: the directory that appears at the end, whole.
        commands: the shell commands from here to a served model.
        notes: what the plan had to assume.
        container: the image that has the tools of the steps with a command; empty where none is needed.
        container_command: the shell command that builds in it.
        sizes: what the builder makes of the sizes that are asked for, where it changes any.
        texts: name and content of files that are written from the run config alone, for reading.
    """

    run: str
    build_target: str
    engine_dir: str
    steps: tuple[Step, ...]
    commands: tuple[str, ...]
    notes: tuple[str, ...] = ()
    container: str = ""
    container_command: str = ""
    sizes: tuple[Size, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """Every file that the build writes, in the order in which they are written."""
        return tuple(file for step in self.steps for file in step.files)

    @property
    def tools(self) -> list[tuple[int, str]]:
        """Number and shell command of every step that runs another's tool."""
        return [(number, shell_lines(step.command)) for number, step in enumerate(self.steps, 1) if step.command]

    def as_dict(self) -> dict[str, Any]:
        """The plan for JSON: steps in words, files by themselves, and tools with the number of their step."""
        tools = [{"step": number, "command": command} for number, command in self.tools]
        steps, files = [step.what for step in self.steps], [asdict(file) for file in self.files]
        made = {**asdict(self), "steps": steps, "files": files, "tools": tools, "texts": dict(self.texts)}
        optional = ("container", "container_command", "sizes", "tools", "texts")
        return {key: value for key, value in made.items() if value or key not in optional}


@dataclass(frozen=True)
class Listing:
    """What a plan needs to know of a checkpoint directory on disk.

    Attributes:
        path: the directory, as the config names it.
        weights: the files that hold tensors, in order.
        companions: the files beside them that an engine needs and that are there: tokenizer, chat template, licence.
        is_assumed: nothing is there yet, and the names are a guess.
        model_type: config.json's word for the architecture; None where it is not known.
        num_heads: Medusa heads, where they were counted.
        num_blocks: residual blocks of each.
    """

    path: str
    weights: tuple[str, ...] = ("model.safetensors",)
    companions: tuple[str, ...] = ("tokenizer.json", "tokenizer_config.json")
    is_assumed: bool = False
    model_type: str | None = None
    num_heads: int | None = None
    num_blocks: int | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Every file that a build reads."""
        return ("config.json", *self.weights, *self.companions)

    @property
    def outputs(self) -> dict[str, str]:
        """Input weight file -> safetensors file that is written for it."""
        return {name: f"{PurePosixPath(name).stem}.safetensors" for name in self.weights}


def shell_lines(command: Sequence[str]) -> str:
    """A command for a shell, each flag on a line of its own with its value."""
    text = ""
    for word in command:
        starts_line = word.startswith("--") and text
        text += (" \\\n    " if starts_line else " " if text else "") + shlex.quote(word)
    return text


def commands(run: str, build_target: str = "torch") -> tuple[str, ...]:
    """The shell commands from a config to a served model; `run` is quoted where the shell needs it.

    What TensorRT-LLM serves is served in a container, for which `deploy` writes the files.
    """
    quoted = " ".join(shlex.quote(word) for word in shlex.split(run))
    last = "serve" if build_target == "torch" else "deploy"
    return tuple(f"trt-spec {command} {quoted}" for command in ("build", "emit", last))
