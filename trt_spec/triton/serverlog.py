"""What of a Triton server's log helps: why a model did not load, without the noise of a machine without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

# "E1129 18:59:24.527031 6852 main.cc:245] " before each entry.
_HEAD = re.compile(r"^(?P<level>[IWEF])\d{4} [\d:.]+\s+\d+ \S+?:\d+\]\s*")
# Said on every machine without a GPU, about nothing that is missing.
_HARMLESS = ("CudaDriverHelper", "CUDA driver version", "Failed to initialize NVML", "DCGM", "unable to create stream")
_TABLE = ("+--", "| ")
_CRASH = "Signal ("  # of the server itself; its stack follows
_STACK = "At:"  # what follows is where in the Python code; the log has it
_MAX_LINES = 30


def useful_lines(log: str, max_lines: int = _MAX_LINES) -> list[str]:
    """The lines of all error entries, or the last lines where there are none.

    Args:
        log: the whole log.
        max_lines: how many lines at most; the last ones are kept.
    """
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
