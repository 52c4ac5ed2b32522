"""The processes of a Triton server: its stubs, read from /proc, whether they live and what they leave; and its end.

A stub outlives a server that crashes, and a server that is killed leaves its shared memory behind; both are ours to
remove. A process is known by its id and its start time, so that a recycled id is never taken for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trt_spec.triton.server import scratch
from trt_spec.triton.server.installation import STUB

SHARED_MEMORY = Path("/dev/shm")
_REGION_PREFIX = "triton_python_backend_shm_region_"
_PATIENCE_S = 2.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Stub:
    """The Python process of one model: its id, its start in clock ticks since boot, its shared memory region."""

    pid: int
    started: int
    model: str
    region: str

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return started(self.pid) == str(self.started) and _stat(self.pid)[0] not in ("Z", "X", "")


def stubs_of(server_pid: int) -> list[Stub]:
    """The stubs that a server has as children right now."""
    return [stub for pid in _all_pids() if _parent(pid) == server_pid and (stub := _stub(pid)) is not None]


def orphaned_stubs() -> list[Stub]:
    """Stubs of this user that were started from a scratch directory of ours and whose server is gone.

    A stub ends with its server, but one whose server dies while it loads its model may hang for ever.
    """
    return [
        stub
        for pid in _all_pids()
        if (stub := _stub(pid)) is not None
        and f"/{scratch.PREFIX}" in _command_line(pid)[0]
        and _is_ours(pid)
        and Path(_command_line(_parent(pid))[0]).name != "tritonserver"
    ]


def _stub(pid: int) -> Stub | None:
    words, start = _command_line(pid), started(pid)
    if not start or Path(words[0]).name != STUB:
        return None
    parts = Path(words[1]).parts if len(words) > 1 else ()  # …/<model>/<version>/model.py
    region = next((word for word in words if word.startswith(_REGION_PREFIX)), "")
    return Stub(pid, int(start), parts[-3] if len(parts) >= 3 else "?", region)


def remove_stubs(stubs: Iterable[Stub]) -> None:
    """Ends stubs whose server is gone and removes their shared memory. Those that go by themselves are given time."""
    stubs = list(stubs)
    deadline = time.monotonic() + _PATIENCE_S
    while any(stub.is_alive for stub in stubs) and time.monotonic() < deadline:
        time.sleep(0.05)
    for stub in stubs:
        if stub.is_alive:
            with suppress(ProcessLookupError):
                os.kill(stub.pid, signal.SIGKILL)
        if stub.region:
            (SHARED_MEMORY / stub.region).unlink(missing_ok=True)


class Signalled(threading.Event):
    """Set by SIGINT or SIGTERM.

    Attributes:
        name: of the first one.
    """

    name = ""

    def note(self, signum: int, frame: object) -> None:
        """The signals' handler."""
        self.name = self.name or signal.Signals(signum).name
        self.set()


@contextmanager
def signals_set_event() -> Iterator[Signalled]:
    """Inside the block SIGINT and SIGTERM set the event instead of raising somewhere; in the main thread only."""
    event, previous = Signalled(), {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, event.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def terminate(process: subprocess.Popen[bytes], patience_s: float, hurry: threading.Event) -> None:
    """Ends a process that leads its group: SIGTERM, patience until `hurry` is set, SIGKILL for the whole group."""
    with suppress(ProcessLookupError):
        process.terminate()
    deadline = time.monotonic() + patience_s
    while process.poll() is None and time.monotonic() < deadline and not hurry.wait(_POLL_S):
        pass
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _parent(pid: int) -> int:
    return int(_stat(pid)[1] or 0)


def _is_ours(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid == os.getuid()
    return False


def _command_line(pid: int) -> list[str]:
    """The words of a process's command line; one empty word where there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def started(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty where there is none."""
    return _stat(pid)[19]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state on, number 3 in proc(5); empty ones where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return [""] * 20
    return text.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses
