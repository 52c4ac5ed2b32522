"""The checkpoints that a build reads: opened, inspected, and refused where they are unsound or do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trt_spec.checkpoints.detect import inspect
from trt_spec.checkpoints.families import NATIVE_FAMILIES
from trt_spec.checkpoints.inspection import Inspection
from trt_spec.checkpoints.method import max_draft_levels, refuse_deep_drafts, refuse_other_method, refuse_problems
from trt_spec.checkpoints.safetensors_dir import CheckpointDir
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.config.schema import RunConfig
from trt_spec.engines.plan import COMPANION_FILES, BuildPlan, Listing, plan
from trt_spec.errors import CheckpointError


@dataclass(frozen=True)
class Sources:
    """The opened input checkpoints by role (`target`, maybe `draft`), and their listings for the plan."""

    checkpoints: dict[str, CheckpointDir]
    inspections: dict[str, Inspection]
    listings: dict[str, Listing]


def checkpoint_paths(config: RunConfig) -> dict[str, str]:
    """Role to checkpoint directory, as the config names it."""
    paths = {"target": config.target.checkpoint, "draft": config.speculation.checkpoint}
    return {role: path for role, path in paths.items() if path is not None}


def plan_run(config: RunConfig, *, engines_dir: str = "engines", run: str = "") -> BuildPlan:
    """The plan of a build from what is on the disk; what is not there yet is assumed, and the plan says so.

    Raises:
        CapabilityError: the combination of method and build target is not offered.
        CheckpointError: a checkpoint that is there cannot be opened.
    """
    listings = {}
    for role, path in checkpoint_paths(config).items():
        is_there = Path(path).exists()
        listings[role] = list_checkpoint(path, CheckpointDir.open(path)) if is_there else Listing(path, is_assumed=True)
    return plan(config, **listings, engines_dir=engines_dir, run=run)


def open_sources(config: RunConfig) -> Sources:
    """Opens and inspects the checkpoints of a run, and refuses them where they are unsound or do not fit.

    Raises:
        CheckpointError, PairError: with every problem found and its remedy; a target without a usable tokenizer.
        ConfigError: longer drafts are asked for than the draft can make.
    """
    paths = checkpoint_paths(config)
    checkpoints = {role: CheckpointDir.open(path) for role, path in paths.items()}
    inspections = {"target": inspect(paths["target"])}
    if "draft" in paths:
        inspections["draft"] = inspect(paths["draft"], target=paths["target"])
    for role, inspection in inspections.items():
        refuse_problems(role, inspection)
    _refuse_wrong_kind(config, inspections)
    levels = max_draft_levels(config.speculation.method, inspections["target"], inspections.get("draft"))
    refuse_deep_drafts(config.speculation, levels)
    Tokenizer.load(checkpoints["target"].folder)  # before anything is written; a draft's is compared with it above
    listings = {role: list_checkpoint(paths[role], checkpoint) for role, checkpoint in checkpoints.items()}
    return Sources(checkpoints, inspections, listings)


def list_checkpoint(path: str, checkpoint: CheckpointDir) -> Listing:
    """What a plan needs to know of an opened checkpoint; `path` is how the config names it."""
    weights = tuple(sorted({info.file for info in checkpoint.tensors.values()}))
    companions = tuple(name for name in COMPANION_FILES if (checkpoint.folder / name).is_file())
    return Listing(path, weights, companions)


def _refuse_wrong_kind(config: RunConfig, inspections: dict[str, Inspection]) -> None:
    """Refuses checkpoints that are sound and something else than the config takes them for."""
    target, draft = inspections["target"], inspections.get("draft")
    if target.role != "target":
        raise CheckpointError(
            "the target checkpoint is no whole model",
            where=target.path,
            got=f"{target.role}, method {target.method}",
            remedy="give the large model as target, and this one as the draft",
        )
    refuse_other_method(config.speculation.method, target, draft)
    for inspection in filter(None, (target, draft)):
        if not inspection.is_native:
            raise CheckpointError(
                "the torch target does not run this model family",
                where=inspection.path,
                got=inspection.family,
                remedy="use a model of a native family: " + ", ".join(NATIVE_FAMILIES),
            )
