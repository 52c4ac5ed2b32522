"""What the builders of all targets share: the result, and what is and what is left at an engine's place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trt_spec.engines import manifest as manifests
from trt_spec.engines.manifest import Manifest
from trt_spec.errors import BuildError, CheckpointError


@dataclass(frozen=True)
class BuildResult:
    """An engine in place; `is_reused` where an equal one was there already."""

    engine_dir: Path
    manifest: Manifest
    is_reused: bool
    seconds: float


def existing_engine(engine_dir: Path) -> Manifest | None:
    """The manifest of what is there, or None where there is nothing usable; then it is replaced.

    Raises:
        BuildError: what is there was never an engine, and is not ours to replace.
    """
    if engine_dir.is_dir() and any(engine_dir.iterdir()) and not (engine_dir / manifests.FILE_NAME).exists():
        raise BuildError(
            "there is something else at the engine's place",
            where=str(engine_dir),
            expected=f"nothing, or an engine with its {manifests.FILE_NAME}",
            remedy="move it away, or give the run another name (--set name=...)",
        )
    try:
        return manifests.read(engine_dir)
    except CheckpointError:
        return None


def what_is_left(engine_dir: Path, old: Manifest | None) -> str:
    """What an interruption left at the engine's place; it may have come after the rename."""
    if not engine_dir.exists():
        return "nothing is left behind"
    is_old = existing_engine(engine_dir) == old
    return "the engine that was there is untouched" if is_old else "the new engine is in place"


def signal_name(interrupt: KeyboardInterrupt) -> str:
    """Ctrl-C raises it bare; `terminate_as_interrupt` puts the signal's name into it."""
    return str(interrupt) or "SIGINT"
