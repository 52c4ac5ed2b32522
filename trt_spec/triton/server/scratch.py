"""A directory that lives as long as a server: the server holds a lock on it, which the kernel lets go with the process.

Whoever makes the next one removes those that nobody holds: a server whose starter was killed leaves none for long.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PREFIX = "trt_spec_server_"


@dataclass(frozen=True)
class Scratch:
    """A directory and the descriptor whose lock marks it as in use; a child that inherits it keeps the mark."""

    path: Path
    lock: int

    def release(self) -> None:
        """Gives up this process's hold; one that was inherited stays."""
        os.close(self.lock)


def make_scratch(root: Path | None = None) -> Scratch:
    """A new directory below `root`, or the system's for temporary files; removes those that this user abandoned."""
    root = Path(root or tempfile.gettempdir())
    for abandoned in root.glob(f"{PREFIX}*"):
        lock = _hold(abandoned)
        if lock is not None:
            shutil.rmtree(abandoned, ignore_errors=True)
            os.close(lock)
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        lock = _hold(path)
        if lock is not None and path.exists():  # else another starter took it for abandoned, just now
            return Scratch(path, lock)
        if lock is not None:
            os.close(lock)


def _hold(path: Path) -> int | None:
    """A descriptor with the lock of a directory of ours; None where it is another's, in use, or gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with suppress(OSError):
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    os.close(descriptor)
    return None
