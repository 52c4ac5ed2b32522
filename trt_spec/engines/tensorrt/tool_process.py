"""Runs another's tool: its lines as they come, a log on disk, and no process left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trt_spec.errors import BuildError, MachineError, TrtSpecError

_GRACE_S = 10  # between SIGTERM and SIGKILL
_TAIL_LINES = 15
_REASONS_LINES = 200  # the cause stands above the traceback that it ends in


class Hint(NamedTuple):
    """What a tool printed, what it means, and whether the machine is to blame."""

    pattern: str
    remedy: str
    is_machine: bool = True


HINTS = (
    Hint(
        r"No module named '?(tensorrt_llm|tensorrt|modelopt|transformers)",
        "build in the container of the version; trt-spec plan shows the command",
    ),
    Hint(
        r"no CUDA-capable device|CUDA driver version|libcuda\.so|Found no NVIDIA driver|cudaGetDeviceCount"
        r"|max_workers must be greater than 0",  # workers are at most as many as GPUs
        "trtllm-build needs a GPU: run on a machine with one, the container with --gpus all",
    ),
    Hint(
        r"out of memory|OutOfMemory|std::bad_alloc|MemoryError",
        "lower build.max_batch_size, build.max_num_tokens or build.max_seq_len, or raise build.tensor_parallel_size",
    ),
    Hint(r"No space left on device", "free space where engines/ is"),
    Hint(
        r"unrecognized arguments|invalid choice",
        "the tools are of another version than build.tensorrt_llm_version; build in the container of that version",
    ),
    Hint(
        r"ConnectionError|Couldn't reach|LocalEntryNotFound|MaxRetryError|Name or service not known",
        "calibration could not download its dataset; set build.calibration_dataset to a local directory",
        is_machine=False,
    ),
)


def run(
    command: Sequence[str],
    log_path: Path,
    on_line: Callable[[str], None],
    *,
    name: str,
    advice: str = "",
    descriptors: Sequence[int] = (),
) -> None:
    """Runs a command to its end; its standard output and error go to `log_path` and, line by line, to `on_line`.

    The command has a process group of its own, which is ended with it when this process is interrupted.

    Args:
        command: program and arguments, found on PATH.
        log_path: written from the start.
        on_line: called with each line, without its end; a progress bar's states count as lines.
        name, advice: what messages call the step, and what else to say where it fails.
        descriptors: open files that the command inherits.

    Raises:
        BuildError: it failed; with its last lines.
        MachineError: it failed for want of something that the machine lacks, or it is not there.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    tail: deque[str] = deque(maxlen=_REASONS_LINES)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )
    except OSError as error:
        raise MachineError(
            f"{command[0]} cannot be started", where=command[0], got=error.strerror, remedy=advice or None
        ) from None
    try:
        with log_path.open("w", encoding="utf-8") as log:
            assert process.stdout is not None
            for line in process.stdout:
                text = line.rstrip()
                log.write(text + "\n")
                log.flush()
                if text:
                    tail.append(text)
                    on_line(text)
        code = process.wait()
    finally:
        _end(process)
    if code != 0:
        raise _failure(name, code, list(tail), log_path, advice)


def _end(process: subprocess.Popen[str]) -> None:
    """Ends what is left of the process group, politely first."""
    for number, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        try:
            process.wait(patience)
            break
        except subprocess.TimeoutExpired:
            continue
    if process.stdout is not None:
        process.stdout.close()


def _failure(name: str, code: int, tail: list[str], log_path: Path, advice: str) -> TrtSpecError:
    text = "\n".join(tail)
    found = next((hint for hint in HINTS if re.search(hint.pattern, text)), None)
    is_killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    if found is None and is_killed:
        found = Hint("", "it was killed, as happens where memory is short; give it more memory")
    kind = MachineError if found is not None and found.is_machine else BuildError
    remedy = "; ".join(filter(None, (found.remedy if found else "read the log", advice)))
    got = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return kind(f"{name} failed", where=str(log_path), got=got, details=tail[-_TAIL_LINES:], remedy=remedy)
