"""How tests wait for what another thread or process does.

A limit is there so that a test that hangs ends; it says nothing of a machine's speed, which others may share.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 300.0  # for what takes seconds at most where nothing else runs


def until(condition: Callable[[], object], *, pause_s: float = 0.005) -> None:
    """Returns once a condition holds; fails after `WAIT_S`. What raises before it holds fails at once."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S:g} s"
        time.sleep(pause_s)
