"""A Triton server's log: a file for each server, and what of it helps, without the noise of a machine without a GPU."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from trt_spec.errors import MachineError

# "E1129 18:59:24.527031 6852 main.cc:245] " before each entry.
_HEAD = re.compile(r"^(?P<level>[IWEF])\d{4} [\d:.]+\s+\d+ \S+?:\d+\]\s*")
# Said on every machine without a GPU, about nothing that is missing.
_HARMLESS = ("CudaDriverHelper", "CUDA driver version", "Failed to initialize NVML", "DCGM", "unable to create stream")
_TABLE = ("+--", "| ")
_CRASH = "Signal ("  # of the server itself; its stack follows
_STACK = "At:"  # what follows is where in the Python code; the log has it
_MAX_LINES = 30


def open_log(path: Path, otherwise: Path) -> tuple[IO[bytes], Path]:
    """An empty log of one's own, and where it is: at `otherwise` where another server writes to `path`.

    The file is locked; a server that inherits it keeps the lock while it runs, so that no other one empties it.

    Raises:
        MachineError: it cannot be written, or other servers write to both.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for choice in (path, otherwise):
            log = choice.open("ab")
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.close()
            else:
                log.truncate(0)
                return log, choice
    except OSError as error:
        raise MachineError(
            "the server's log cannot be written",
            where=str(path),
            got=error.strerror,
            remedy="make that directory writable, or copy the model repository to one that is",
        ) from None
    raise MachineError(
        "other servers write to this server's log", where=f"{path}, {otherwise}", remedy="stop them, or move the log"
    )


def useful_lines(log: str, max_lines: int = _MAX_LINES) -> list[str]:
    """The lines of all error entries, or of all entries where there are none; the last of them."""
    errors = [line for level, text in _entries(log) if level in "EF" for line in _lines_of(text)]
    lines = errors or [line for _, text in _entries(log) for line in _lines_of(text)]
    # An error is told by each layer that it passes; what differs is the first line of each.
    return list(dict.fromkeys(lines))[-max_lines:]


def last_words(log: str) -> str:
    """The last line that says anything, without its head."""
    lines = [line for _, text in _entries(log[-10_000:]) for line in _lines_of(text)]
    return lines[-1] if lines else ""


def _entries(log: str) -> Iterator[tuple[str, str]]:
    """Level and text of each entry; lines without a head belong to the entry before them, tables to none."""
    level, lines = "I", []
    for line in log.splitlines():
        if line.startswith(_TABLE):
            continue
        head = _HEAD.match(line)
        if head is not None or line.startswith(("error: ", _CRASH)):
            yield level, "\n".join(lines)
            level, lines = (head["level"] if head else "F" if line.startswith(_CRASH) else "I"), []
        lines.append(_HEAD.sub("", line))
    yield level, "\n".join(lines)


def _lines_of(text: str) -> list[str]:
    """The lines of an entry that say something: quotes and escapes undone, the stack left out."""
    if any(noise in text for noise in _HARMLESS):
        return []
    unquoted = text.strip().removeprefix('"').removesuffix('"').replace("\\n", "\n").replace('\\"', '"')
    lines = []
    for line in unquoted.splitlines():
        if line.strip() == _STACK:
            break
        if line.strip() not in ("", '"'):
            lines.append(line.strip())
    return lines
