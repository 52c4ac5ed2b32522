"""The checkpoints that a build for the `tensorrt` target reads: opened, inspected, refused where they do not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trt_spec.checkpoints.detect import inspect
from trt_spec.checkpoints.inspection import Inspection
from trt_spec.checkpoints.method import max_draft_levels, refuse_deep_drafts, refuse_other_method, refuse_problems
from trt_spec.checkpoints.safetensors_dir import CheckpointDir
from trt_spec.checkpoints.trtllm.conversion import Conversion
from trt_spec.config.schema import RunConfig
from trt_spec.engines import manifest as manifests
from trt_spec.engines.manifest import FileRecord, Manifest
from trt_spec.engines.plan import Listing
from trt_spec.engines.tensorrt import plan as tensorrt
from trt_spec.engines.tensorrt.work_dir import WorkDir
from trt_spec.errors import CheckpointError

REDRAFTER_FILES = ("config.json", "model.safetensors", "model.pt")  # its converter reads the first of the last two


@dataclass(frozen=True)
class Sources:
    """The input checkpoints by role: where they are, what they are, and what is laid out anew for the converter."""

    listings: dict[str, Listing]
    inspections: dict[str, Inspection]
    conversions: dict[str, Conversion]
    files: dict[str, tuple[Path, tuple[str, ...]]]  # folder, names


def open_sources(config: RunConfig) -> Sources:
    """Opens and inspects the checkpoints, and refuses them where they are unsound or do not fit.

    Raises:
        CheckpointError, PairError, CapabilityError: with what is wrong and what to do.
    """
    listings, inspections, conversions, files = {}, {}, {}, {}
    paths = tensorrt.checkpoint_paths(config)
    for role, path in paths.items():
        if role == "draft" and config.speculation.method == "redrafter":
            files[role] = _redrafter_files(Path(path))
            listings[role] = Listing(path)
            continue
        checkpoint = CheckpointDir.open(path)
        listings[role] = tensorrt.list_checkpoint(config, role)
        files[role] = (checkpoint.folder, listings[role].inputs)
        inspections[role] = inspect(path, paths["target"] if role == "draft" else None)
        if (conversion := tensorrt.conversion_of(config, role)) is not None:
            conversions[role] = conversion
        else:
            _refuse(role, inspections[role])
    if inspections["target"].role != "target":
        raise CheckpointError(
            "the target checkpoint is no whole model",
            where=paths["target"],
            got=f"{inspections['target'].role}, method {inspections['target'].method}",
            remedy="give the large model as target, and this one as the draft",
        )
    refuse_other_method(config.speculation.method, inspections["target"], inspections.get("draft"))
    levels = max_draft_levels(config.speculation.method, inspections["target"], inspections.get("draft"))
    refuse_deep_drafts(config.speculation, levels)
    _refuse_without_tokenizer(files["target"][0])
    return Sources(listings, inspections, conversions, files)


def _refuse(role: str, inspection: Inspection) -> None:
    """Problems of a checkpoint; what only the torch runtime does not compute is the converter's to judge."""
    problems = tuple(problem for problem in inspection.problems if problem.limits_only != "torch")
    refuse_problems(role, replace(inspection, problems=problems))


def _redrafter_files(folder: Path) -> tuple[Path, tuple[str, ...]]:
    names = tuple(name for name in REDRAFTER_FILES if (folder / name).is_file())
    if "config.json" not in names or len(names) < 2:
        raise CheckpointError(
            "this is no ReDrafter checkpoint as its converter reads it",
            where=str(folder),
            got=", ".join(names) or "none of its files",
            expected="config.json, and model.safetensors or model.pt",
            remedy="give the directory that the ReDrafter training wrote",
        )
    return folder, names


def _refuse_without_tokenizer(folder: Path) -> None:
    known = ("tokenizer.json", "tokenizer.model", "vocab.json")
    if not any((folder / name).is_file() for name in known):
        raise CheckpointError(
            "the target has no tokenizer, which the served model needs",
            where=str(folder),
            expected="one of " + ", ".join(known),
            remedy="put the tokenizer's files beside the weights",
        )


def digest_inputs(sources: Sources, work: WorkDir) -> dict[str, dict[str, FileRecord]]:
    records = {}
    for role, (folder, names) in sources.files.items():
        there = [name for name in names if (folder / name).is_file()]
        records[role] = manifests.digest_files(folder, there, work.known_files(role, str(folder)))
        work.keep_files(role, str(folder), records[role])
    return records


def is_current(config: RunConfig, engine_dir: Path, old: Manifest, sources: Sources) -> bool:
    """Whether the engine that is there was built from this config and these files, and is whole."""
    records = {}
    for role, (folder, names) in sources.files.items():
        before = old.inputs.get(role)
        if before is None:
            return False
        known = before.files if before.path == sources.listings[role].path else {}
        records[role] = manifests.digest_files(folder, [name for name in names if (folder / name).is_file()], known)
    digest = manifests.build_digest(config.model_dump(mode="json", exclude_none=True), records)
    return digest == old.digest and manifests.is_whole(engine_dir, old)
