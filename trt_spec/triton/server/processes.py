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
_STARTED = 19  # index of the start time among the fields of `_stat`


@dataclass(frozen=True)
class Process:
    """A process: its id, and its start in clock ticks since boot."""

    pid: int
    started: int


@dataclass(frozen=True)
class Stub:
    """The Python process of one model, and the shared memory region that it uses."""

    process: Process
    model: str
    region: str


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
    words, process = _command_line(pid), _process(pid)
    if process is None or Path(words[0]).name != STUB:
        return None
    regions = [word for word in words if word.startswith(_REGION_PREFIX)]
    return Stub(process, _model_name(words), regions[0] if regions else "")


def is_alive(process: Process) -> bool:
    """Whether this very process still runs; a zombie does not."""
    fields = _stat(process.pid)
    return fields[_STARTED] == str(process.started) and fields[0] not in ("Z", "X", "")


def remove_stubs(stubs: Iterable[Stub]) -> None:
    """Ends stubs whose server is gone and removes their shared memory. Those that go by themselves are given time."""
    stubs = list(stubs)
    deadline = time.monotonic() + _PATIENCE_S
    while any(is_alive(stub.process) for stub in stubs) and time.monotonic() < deadline:
        time.sleep(0.05)
    for stub in stubs:
        if is_alive(stub.process):
            with suppress(ProcessLookupError):
                os.kill(stub.process.pid, signal.SIGKILL)
        if stub.region:
            (SHARED_MEMORY / stub.region).unlink(missing_ok=True)


@contextmanager
def signals_set_event() -> Iterator[threading.Event]:
    """Inside the block SIGINT and SIGTERM set the event instead of raising somewhere; in the main thread only."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    previous = {
        number: signal.signal(number, lambda *arguments: event.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
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
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.getuid()
    except OSError:
        return False


def _command_line(pid: int) -> list[str]:
    """The words of a process's command line; one empty word where there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def _model_name(words: list[str]) -> str:
    """From `…/<model>/<version>/model.py`, the stub's first argument."""
    parts = Path(words[1]).parts if len(words) > 1 else ()
    return parts[-3] if len(parts) >= 3 else "?"


def _process(pid: int) -> Process | None:
    started = _stat(pid)[_STARTED]
    return Process(pid, int(started)) if started else None


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state on, number 3 in proc(5); empty ones where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return [""] * (_STARTED + 1)
    return text.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses
