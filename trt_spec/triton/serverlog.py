"""What of a Triton server's log helps: why a model did not load, without the noise of a machine without a GPU."""

from __future__ import annotations

import re

# "E1129 18:59:24.527031 6852 main.cc:245] " before the first line of an entry.
_HEAD = re.compile(r"^(?P<level>[IWEF])\d{4} [\d:.]+\s+\d+ \S+?:\d+\]\s*")
# Said on every machine without a GPU, about nothing that is missing.
_HARMLESS = ("CudaDriverHelper", "CUDA driver version", "Failed to initialize NVML", "DCGM", "unable to create stream")
_TABLE = ("+--", "| ")
_MAX_LINES = 30


def useful_lines(log: str, max_lines: int = _MAX_LINES) -> list[str]:
    """The lines of all error entries, or the last lines where there are none.

    Args:
        log: the whole log.
        max_lines: how many lines at most; the last ones are kept.
    """
    kept: list[str] = []
    is_error = False
    for line in log.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            is_error = head["level"] in "EF" and not any(noise in line for noise in _HARMLESS)
        elif line.startswith(_TABLE):
            is_error = False
        if is_error and line.strip():
            kept.append(_without_head(line))
    if not kept:
        kept = [_without_head(line) for line in log.splitlines() if line.strip() and not line.startswith(_TABLE)]
    return list(dict.fromkeys(kept))[-max_lines:]


def last_words(log: str) -> str:
    """The last line that says anything, without its head."""
    for line in reversed(log.splitlines()):
        if line.strip() and not line.startswith(_TABLE):
            return _without_head(line)
    return ""


def _without_head(line: str) -> str:
    return _HEAD.sub("", line).strip().strip('"')
