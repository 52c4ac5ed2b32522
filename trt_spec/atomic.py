"""Directories that appear whole or not at all: written to a temporary sibling, then swapped in by one rename.

A reader never sees half an engine or half a model repository, whatever stops the writer: an error, Ctrl-C, SIGTERM or
`kill -9`. The sibling is named `.<name>.tmp-<random>` and its writer holds a file lock on it, which the kernel
releases when the writer dies; the next writer removes siblings that nobody holds.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h


@contextmanager
def atomic_directory(final: Path) -> Iterator[Path]:
    """Yields an empty sibling of `final`; on a clean exit it takes `final`'s place, otherwise it is removed.

    Args:
        final: the directory to create or replace, or a link to it. Its parent is created.

    Raises:
        NotADirectoryError: `final` exists and is not a directory.
    """
    final = Path(os.path.realpath(final))  # what a link leads to is replaced, not the link
    if final.exists() and not final.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "in the way of a directory to be written", str(final))
    final.parent.mkdir(parents=True, exist_ok=True)
    _recover(final)
    remove_stale_siblings(final)
    staging, lock = _locked_sibling(final)
    try:
        yield staging
        _sync_tree(staging)
        _replace(staging, final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)  # after the swap this is the old content
        os.close(lock)


def remove_stale_siblings(final: Path) -> list[Path]:
    """Removes temporary siblings of `final` whose writer no longer runs, and returns what was removed."""
    removed = []
    for sibling in sorted(final.parent.glob(f".{glob.escape(final.name)}.tmp-*")):
        lock = _try_lock(sibling)
        if lock is None:
            continue
        shutil.rmtree(sibling, ignore_errors=True)
        os.close(lock)
        removed.append(sibling)
    return removed


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Turns SIGTERM into KeyboardInterrupt inside the block, so that clean-up runs for it as it does for Ctrl-C.

    Does nothing outside the main thread, where Python installs no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(signum).name)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _locked_sibling(final: Path) -> tuple[Path, int]:
    """A new sibling and the descriptor that locks it; again where a cleaner took it between the two steps."""
    while True:
        sibling = Path(tempfile.mkdtemp(prefix=f".{final.name}.tmp-", dir=final.parent))
        lock = _try_lock(sibling)
        if lock is None:
            continue
        if sibling.exists():
            sibling.chmod(0o755)  # mkdtemp makes it private; an engine is shared like any other output
            return sibling, lock
        os.close(lock)


def _try_lock(directory: Path) -> int | None:
    """A descriptor that holds the directory's lock, or None where another process holds it or it is gone."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sync_tree(directory: Path) -> None:
    """Writes the files through to the disk before the rename names them, so that a power cut shows no empty file."""
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with suppress(OSError):
                _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(staging: Path, final: Path) -> None:
    """Puts `staging` at `final`. Where `final` exists the two change places in one system call."""
    if not final.exists():
        try:
            os.rename(staging, final)
            return
        except OSError:
            if not final.exists():  # else another writer was first
                raise
    if _exchange(staging, final):
        return
    # A file system without exchange (some network and overlay mounts): two renames; `_recover` mends a death between.
    os.rename(final, _aside(final))
    try:
        os.rename(staging, final)
    finally:
        _recover(final)


def _aside(final: Path) -> Path:
    return final.with_name(f".{final.name}.old")


def _recover(final: Path) -> None:
    """Finishes a two-rename replacement: the old content goes back where nothing took its place, else away."""
    aside = _aside(final)
    if final.exists():
        shutil.rmtree(aside, ignore_errors=True)
    elif aside.exists():
        os.rename(aside, final)


def _exchange(first: Path, second: Path) -> bool:
    """Exchanges two paths atomically (Linux renameat2); False where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    return renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0


def write_text(path: Path, text: str) -> None:
    """Writes a file through a temporary sibling and a rename; creates its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling; what was written to it takes the place of `path` on a clean exit."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
