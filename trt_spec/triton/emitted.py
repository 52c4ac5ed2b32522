"""Emitted files. Each model.py imports its class from this package, so that a repository needs no new ones.

What an earlier version emitted holds the class itself, and imports modules that are no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trt_spec.atomic import atomic_directory
from trt_spec.errors import ConfigError, MachineError

MODELS = ("streaming", "llmapi", "unary", "inflight_batcher", "preprocessing", "postprocessing", "bls")


def source(model: str) -> str:
    """The text of a model.py, whose class is in that module of `trt_spec.triton.models`."""
    return (
        '"""Written by `trt-spec emit`. Runs where trt_spec is installed; change the run config, not this file."""\n\n'
        f"from trt_spec.triton.models.{model} import TritonPythonModel\n\n"
        '__all__ = ["TritonPythonModel"]\n'
    )


def write(target: Path, files: Mapping[str, str], what: str) -> None:
    """Writes files by relative path, scripts as executable, all of them or none; raises MachineError."""
    try:
        with atomic_directory(target) as staging:
            for name, text in files.items():
                path = staging / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                if text.startswith("#!"):
                    path.chmod(0o755)
    except OSError as error:
        raise MachineError(
            f"{what} cannot be written",
            where=str(target),
            got=error.strerror or str(error),
            remedy="free space there or make it writable; what was there is unchanged",
        ) from error


def check(repository: Path, run: str) -> None:
    """Raises ConfigError, with the names, where a repository has a model.py that this version does not emit."""
    known = {source(model) for model in MODELS}
    paths = sorted(Path(repository).glob("*/*/model.py"))
    others = [str(path.relative_to(repository)) for path in paths if path.read_text(encoding="utf-8") not in known]
    if others:
        raise outdated(str(repository), run, ", ".join(others))


def outdated(where: str | None = None, run: str = "<run>", got: str | None = None) -> ConfigError:
    """The refusal of what another version of trt_spec emitted."""
    return ConfigError(
        "this model repository was emitted by another version of trt_spec",
        where=where,
        got=got,
        remedy=f"emit it again: trt-spec emit {run}",
    )
