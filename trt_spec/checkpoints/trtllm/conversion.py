"""What a conversion does, as data and in words."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.streaming import Piece
from trt_spec.checkpoints.trtllm.layouts import Layout


@dataclass(frozen=True)
class Conversion:
    """What a version reads in place of a checkpoint: a `Layout`, and where it comes from.

    Attributes:
        method: what it is: medusa, eagle, eagle3, or none for a whole model.
        version: of TensorRT-LLM.
        copied: files that are copied as they are.
        changes: what differs from the checkpoint, in words; empty where it is read as it is.
        files, config, notes, facts: as in `Layout`.
    """

    source: Path
    method: str
    build_target: str
    version: str
    files: dict[str, list[Piece]] = field(repr=False)
    config: dict[str, Any]
    copied: tuple[str, ...]
    changes: tuple[str, ...]
    notes: list[str]
    facts: dict[str, Any]

    @property
    def is_needed(self) -> bool:
        """Whether the version reads anything other than what is there."""
        return bool(self.changes)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: what `trt-spec convert --json` prints and conversion.json holds."""
        return {
            "source": str(self.source),
            "method": self.method,
            "build_target": self.build_target,
            "tensorrt_llm_version": self.version,
            "is_needed": self.is_needed,
            "files": {name: len(pieces) for name, pieces in self.files.items()},
            "changes": list(self.changes),
            "notes": self.notes,
            "facts": self.facts,
        }


def changes(checkpoint: CheckpointDir, layout: Layout) -> list[str]:
    """How the layout differs from what is there, in words; layouts without files are read as they are."""
    if not layout.files:
        return []
    found = []
    stored = {(checkpoint.folder / info.file, info.stored_name): info.file for info in checkpoint.tensors.values()}
    for name, pieces in layout.files.items():
        files = sorted({stored[key] for item in pieces if (key := (item.file, item.stored_name)) in stored})
        if files != [name]:
            found.append(f"{', '.join(files)} becomes {name}")
        seen: set[tuple[Path | None, str]] = set()
        for item in pieces:
            origin = (item.file, item.stored_name)
            if item.file is None:
                found.append(f"{item.name} is written, as zeros")
            elif origin not in stored:
                found.append(f"{item.name} is taken from {item.file.parent}, where it is {item.stored_name}")
            elif origin in seen:
                found.append(f"{item.name} is written out; it was tied to {item.stored_name}")
            elif item.name != item.stored_name:
                found.append(f"{item.stored_name} becomes {item.name}")
            seen.add(origin)
    written = {(item.file, item.stored_name) for pieces in layout.files.values() for item in pieces}
    found += [f"{name} is left out" for (file, name) in stored if (file, name) not in written]
    for key in sorted({*checkpoint.config, *layout.config}):
        before, after = checkpoint.config.get(key), layout.config.get(key)
        if before != after:
            found.append(f"config.json: {key} is {_short(after)}, was {_short(before)}")
    return found


def _short(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
