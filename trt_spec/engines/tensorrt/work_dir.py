"""Where a build of several steps keeps its parts, so that a stopped one goes on after the last that is done.

It lies beside the engine as `.<run>.work`. `state.json` says which steps are done, from what, and what they wrote; it
is replaced as a whole after each step. A step is done again when its command or anything that it reads has changed, or
when a file that it wrote is not as it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trt_spec.engines.manifest import FileRecord
from trt_spec.errors import MachineError

STATE_FILE = "state.json"
LOCK_FILE = "lock"
_FORMAT = 1


class WorkDir:
    """An open work directory; `opened` makes and locks it.

    A tool inherits the descriptor `lock`, so one that outlives its build keeps the next build away from what it writes.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock
        self._state = _read_state(path / STATE_FILE)

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator[WorkDir]:
        """Makes the directory and holds its lock; raises MachineError where another process is building this run."""
        path.mkdir(parents=True, exist_ok=True)
        with (path / LOCK_FILE).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise MachineError(
                    "another build of this run is at work",
                    where=str(path),
                    remedy="wait for it, or end it and the tool that it runs; what it has finished is kept",
                ) from None
            yield cls(path, lock.fileno())

    @staticmethod
    def known_files(path: Path, role: str, checkpoint: str) -> dict[str, FileRecord]:
        """Digests of an input's files from an earlier time, where they were of the same checkpoint."""
        kept = _read_state(path / STATE_FILE)["inputs"].get(role, {})
        if kept.get("path") != checkpoint:
            return {}
        return {name: FileRecord(**record) for name, record in kept["files"].items()}

    def keep_files(self, role: str, checkpoint: str, files: Mapping[str, FileRecord]) -> None:
        """Remembers digests, so that a build that goes on does not read large files again."""
        self._state["inputs"][role] = {
            "path": checkpoint,
            "files": {name: asdict(record) for name, record in files.items()},
        }
        self._write()

    def remove(self) -> None:
        """Removes the directory; the engine is in place."""
        shutil.rmtree(self.path, ignore_errors=True)

    def do(self, name: str, key: str, output_dir: Path, act: Callable[[], None]) -> bool:
        """Carries a step out, into an empty directory, and records it; whether it had to be.

        It was done before where it was finished from the same inputs (`key`), and what it wrote is still there.
        """
        steps, found = self._state["steps"], self._state["steps"].get(name)
        if found is not None and found["key"] == key and found["outputs"] == _sizes(output_dir):
            return False
        started = time.monotonic()
        steps.pop(name, None)
        self._write()
        shutil.rmtree(output_dir, ignore_errors=True)
        output_dir.mkdir(parents=True)
        act()
        steps[name] = {"key": key, "outputs": _sizes(output_dir), "seconds": round(time.monotonic() - started, 1)}
        self._write()
        return True

    def seconds(self, name: str) -> float:
        """How long a finished step took."""
        return self._state["steps"][name]["seconds"]

    def _write(self) -> None:
        staging = self.path / f".{STATE_FILE}.tmp"
        with staging.open("w", encoding="utf-8") as file:
            json.dump(self._state, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staging, self.path / STATE_FILE)


def step_key(command: Any, reads: Mapping[str, Any]) -> str:
    """Identity of a step: SHA-256 over what it runs and the digests or keys of what it reads, all JSON-ready."""
    canonical = json.dumps({"format": _FORMAT, "command": command, "reads": reads}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _sizes(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): path.stat().st_size for path in sorted(directory.rglob("*")) if path.is_file()
    }


def _read_state(path: Path) -> dict[str, Any]:
    empty: dict[str, Any] = {"format": _FORMAT, "inputs": {}, "steps": {}}
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return empty
    is_sound = isinstance(state, dict) and state.get("format") == _FORMAT
    return state if is_sound else empty
