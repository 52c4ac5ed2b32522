"""One input checkpoint of a build: where it is, what it is, and what of it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.detect import Opened
from trt_spec.checkpoints.inspection import Inspection
from trt_spec.checkpoints.trtllm.conversion import Conversion
from trt_spec.config.schema import RunConfig
from trt_spec.engines.manifest import CheckpointRecord, FileRecord
from trt_spec.engines.plan import Listing

Sources = Mapping[str, "Source"]  # by role: target, and draft where the method has one


@dataclass(frozen=True)
class Source:
    """One input checkpoint.

    Attributes:
        role: target or draft.
        listing: its path as the config names it, and its files.
        opened: None where it is not there yet (in a plan), or only its converter can read it (ReDrafter).
        target: what a draft is inspected for.
        conversion: how it is laid out anew for TensorRT-LLM; None where that is not looked into.
    """

    role: str
    listing: Listing
    opened: Opened | None = None
    target: Opened | None = None
    conversion: Conversion | None = None

    @property
    def inspection(self) -> Inspection | None:
        """What it is; None where it is not opened."""
        return None if self.opened is None else self.opened.inspection_for(self.target)

    @property
    def checkpoint(self) -> CheckpointDir:
        """Its files."""
        assert self.opened is not None  # asked for only where it was opened
        return self.opened.checkpoint

    @property
    def folder(self) -> Path:
        return Path(self.listing.path) if self.opened is None else self.checkpoint.folder

    @property
    def names(self) -> list[str]:
        """The files that a build reads and that are there."""
        return [name for name in self.listing.inputs if (self.folder / name).is_file()]

    def record(self, files: dict[str, FileRecord], method: str) -> CheckpointRecord:
        """What the manifest says of it; `method` is the run's, for a checkpoint that is not opened."""
        found, path = self.inspection, self.listing.path
        if found is None:
            return CheckpointRecord(path, self.role, method, None, 0, 0, {}, files)
        sums = (found.num_tensors, found.num_parameters, found.dtypes)
        return CheckpointRecord(path, self.role, found.method, found.family, *sums, files)


def checkpoint_paths(config: RunConfig) -> dict[str, str]:
    """Role to checkpoint, as the config names it."""
    paths = {"target": config.target.checkpoint, "draft": config.speculation.checkpoint}
    return {role: path for role, path in paths.items() if path is not None}


def inspections(sources: Sources) -> tuple[Inspection, Inspection | None]:
    """What the target is, which is opened, and the draft, where it is."""
    target, draft = sources["target"].inspection, sources.get("draft")
    assert target is not None
    return target, None if draft is None else draft.inspection


def conversions(sources: Sources) -> dict[str, Conversion]:
    """Those that are looked into, by role."""
    return {role: source.conversion for role, source in sources.items() if source.conversion is not None}
