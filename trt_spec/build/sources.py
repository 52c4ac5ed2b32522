"""The checkpoints that a build reads: opened, inspected, and refused where they are unsound or do not fit."""

from __future__ import annotations

from dataclasses import dataclass

from trt_spec.build.plan import COMPANION_FILES, Listing
from trt_spec.checkpoints.detect import Inspection, inspect
from trt_spec.checkpoints.safetensors_dir import CheckpointDir
from trt_spec.config.schema import RunConfig
from trt_spec.errors import CheckpointError, PairError


@dataclass(frozen=True)
class Sources:
    """The opened input checkpoints by role (`target`, maybe `draft`), and their listings for the plan."""

    checkpoints: dict[str, CheckpointDir]
    inspections: dict[str, Inspection]
    listings: dict[str, Listing]


def open_sources(config: RunConfig) -> Sources:
    """Opens and inspects the checkpoints of a run, and refuses them where they are unsound or do not fit.

    Raises:
        CheckpointError, PairError: with every problem found and its remedy.
    """
    paths = {"target": config.target.checkpoint}
    if config.speculation.checkpoint is not None:
        paths["draft"] = config.speculation.checkpoint
    checkpoints = {role: CheckpointDir.open(path) for role, path in paths.items()}
    inspections = {"target": inspect(paths["target"])}
    if "draft" in paths:
        inspections["draft"] = inspect(paths["draft"], target=paths["target"])
    for role, inspection in inspections.items():
        _refuse_problems(role, inspection, paths[role])
    listings = {role: list_checkpoint(paths[role], checkpoint) for role, checkpoint in checkpoints.items()}
    return Sources(checkpoints, inspections, listings)


def list_checkpoint(path: str, checkpoint: CheckpointDir) -> Listing:
    """What a plan needs to know of an opened checkpoint; `path` is how the config names it."""
    weights = tuple(sorted({info.file for info in checkpoint.tensors.values()}))
    companions = tuple(name for name in COMPANION_FILES if (checkpoint.folder / name).is_file())
    return Listing(path, weights, companions)


def _refuse_problems(role: str, inspection: Inspection, path: str) -> None:
    if not inspection.problems:
        return
    kind = PairError if role == "draft" else CheckpointError
    first = inspection.problems[0]
    raise kind(
        f"the {role} checkpoint cannot be used",
        where=path,
        details=[problem.message for problem in inspection.problems],
        remedy=first.remedy,
        code=first.code,
    )
