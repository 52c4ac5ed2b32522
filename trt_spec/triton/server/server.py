"""Starts a real tritonserver on a model repository, watches it, and stops it without leaving anything behind.

Listens on 127.0.0.1 only. The server runs in its own process group, so that Ctrl-C reaches us and not it; we then tell
it to drain. On Linux it also gets a SIGTERM from the kernel when we are killed.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2

from trt_spec.errors import MachineError
from trt_spec.triton.server import processes
from trt_spec.triton.server.installation import Installation, check_port, find_installation
from trt_spec.triton.server.scratch import Scratch, make_scratch
from trt_spec.triton.server.serverlog import last_words, open_log, useful_lines

HOST = "127.0.0.1"
PORT_KEYS = ("serve.http_port", "serve.grpc_port", "serve.metrics_port")
_POLL_S = 0.1
_KILL_S = 10.0  # how long a server may take to stop beyond the time it has for draining
_BROKEN_S = 2.0  # how long it may take where a model's process is dead: what runs there is never answered

# Becomes the server. PR_SET_PDEATHSIG (1): the kernel terminates it when the thread that started it is gone.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.argv[1] != "0":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this server is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class TritonServer:
    """One tritonserver. Use it as a context manager, or call `start` and `stop`.

    Args:
        repository: the model repository, as `emit` writes it.
        http_port, grpc_port, metrics_port: ports on 127.0.0.1.
        log_path: where the server's output goes; `<repository>.log` unless given. Where another server writes there,
            the port for HTTP is put into the name.
        ready_timeout_s: how long loading the models may take.
        drain_timeout_s: how long requests in flight may take when it stops.
        installation: the server to use; the wheel's unless given.
    """

    def __init__(
        self,
        repository: Path,
        *,
        http_port: int = 8000,
        grpc_port: int = 8001,
        metrics_port: int = 8002,
        log_path: Path | None = None,
        ready_timeout_s: float = 600.0,
        drain_timeout_s: float = 30.0,
        installation: Installation | None = None,
    ) -> None:
        self.repository = Path(repository).absolute()
        self.http_port, self.grpc_port, self.metrics_port = http_port, grpc_port, metrics_port
        self.log_path = Path(log_path) if log_path else self.repository.with_name(f"{self.repository.name}.log")
        self.ready_timeout_s, self.drain_timeout_s = ready_timeout_s, drain_timeout_s
        self.model_names: tuple[str, ...] = ()
        self._installation = installation
        self._id = f"trt-spec-{uuid.uuid4().hex}"
        self._process: subprocess.Popen[bytes] | None = None
        self._stubs: list[processes.Stub] = []
        self._scratch: Scratch | None = None
        self._is_ready = False

    @property
    def http_url(self) -> str:
        """host:port for HTTP, as tritonclient takes it."""
        return f"{HOST}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """host:port for gRPC."""
        return f"{HOST}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """The Prometheus page."""
        return f"http://{HOST}:{self.metrics_port}/metrics"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process is not None else None

    def __enter__(self) -> TritonServer:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    # --- start ---

    def start(self, on_wait: Callable[[float, str], None] | None = None) -> TritonServer:
        """Checks the machine, starts the server and waits until its models are ready.

        Args:
            on_wait: called about ten times a second with the seconds so far and the server's last words.

        Raises:
            MachineError: the machine lacks something, a port is in use, a model cannot be loaded, or it takes too long.
        """
        if self._process is not None:
            raise MachineError("the server is running already", where=self.http_url)
        self.model_names = tuple(sorted(path.parent.name for path in self.repository.glob("*/config.pbtxt")))
        if not self.model_names:
            raise MachineError(
                "no model repository here", where=str(self.repository), remedy="write it first: trt-spec emit <run>"
            )
        installation = self._installation or find_installation()
        for port, key in zip((self.http_port, self.grpc_port, self.metrics_port), PORT_KEYS, strict=True):
            check_port(port, key)
        with ExitStack() as unless_ready:
            unless_ready.callback(self.stop)
            self._launch(installation)
            self._wait_ready(on_wait)
            unless_ready.pop_all()
        return self

    def _launch(self, installation: Installation) -> None:
        atexit.register(self.stop)
        processes.remove_stubs(processes.orphaned_stubs())  # they hold the scratch directory of a server that is gone
        self._scratch = make_scratch()
        # The kernel's signal follows the starting thread, not the process; a helper thread's end is no reason to stop.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        command = [sys.executable, "-ISc", _LAUNCHER, str(parent), *self._arguments(installation)]
        log, self.log_path = open_log(self.log_path, self.log_path.with_suffix(f".{self.http_port}.log"))
        with log:
            self._process = subprocess.Popen(
                command,
                env=installation.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self._scratch.lock,),
            )

    def _arguments(self, installation: Installation) -> list[str]:
        assert self._scratch is not None
        ports = {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}
        return [
            str(installation.binary),
            f"--id={self._id}",
            f"--model-repository={self.repository}",
            f"--backend-directory={installation.assemble_backends(self._scratch.path)}",
            f"--cache-directory={installation.caches}",
            "--disable-auto-complete-config",  # our configurations are complete; asking would start each stub twice
            "--allow-gpu-metrics=false",
            f"--exit-timeout-secs={max(1, round(self.drain_timeout_s))}",
            *(f"--{name}-address={HOST}" for name in ports),
            *(f"--{name}-port={port}" for name, port in ports.items()),
        ]

    def _wait_ready(self, on_wait: Callable[[float, str], None] | None) -> None:
        started = time.monotonic()
        while not self._is_ready_and_ours():
            waited = time.monotonic() - started
            self._stubs = list({*self._stubs, *processes.stubs_of(self._process.pid)})  # should it die while loading
            self._check_process()
            if waited > self.ready_timeout_s:
                raise self._failure(f"the Triton server was not ready within {self.ready_timeout_s:g} s")
            if on_wait is not None:
                on_wait(waited, last_words(self._log()))
            time.sleep(_POLL_S)
        self._stubs = processes.stubs_of(self._process.pid)
        self._is_ready = True

    # --- watch ---

    def check(self) -> None:
        """Raises MachineError, with the end of the log, where the server, a model's process or the engine is gone.

        Triton keeps calling a model ready after its process died, so this looks for itself.
        """
        if self._process is None:
            raise MachineError("the Triton server is not running", remedy="start it")
        self._check_process()
        for stub in self._stubs:
            if not stub.is_alive:
                raise self._failure(f"the Python process of model {stub.model} died")
        if self._get(f"http://{self.http_url}/v2/health/live") is None:
            raise self._failure("the Triton server does not answer")
        lines = (self._get(self.metrics_url) or "trt_spec_engine_up{} 0").splitlines()
        if not all(float(line.split()[-1]) == 1 for line in lines if line.startswith("trt_spec_engine_up{")):
            raise self._failure("the engine inside the Triton server failed")

    def wait(self, until: threading.Event, check: Callable[[], None] = lambda: None, *, period_s: float = 1.0) -> None:
        """Watches the server, and by `check` something beside it, until the event is set; raises what they raise."""
        while not until.wait(period_s):
            self.check()
            check()

    def run_until_signal(self, check: Callable[[], None] = lambda: None) -> str:
        """Watches as `wait` until SIGINT or SIGTERM comes, and returns that signal's name; for the main thread."""
        with processes.signals_set_event() as received:
            self.wait(received, check)
        return received.name

    def _check_process(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
            raise self._failure(f"the Triton server ended {how}" + ("" if self._is_ready else " before it was ready"))

    @staticmethod
    def _get(url: str) -> str | None:
        """The body of an answer; None where nobody answers, or with an error."""
        with suppress(httpx2.HTTPError):
            return httpx2.get(url, timeout=10, trust_env=False, verify=False).raise_for_status().text
        return None

    def _is_ready_and_ours(self) -> bool:
        """Whether the server answers, and not one that took the port while this one loaded its models."""
        root = f"http://{self.http_url}/v2"
        if self._get(f"{root}/health/ready") is None:
            return False
        with suppress(ValueError, KeyError):
            return json.loads(self._get(root) or "")["name"] == self._id
        return False

    def _log(self) -> str:
        with suppress(OSError):
            return self.log_path.read_text(encoding="utf-8", errors="replace")
        return ""

    def _failure(self, what: str) -> MachineError:
        return MachineError(
            what, where=str(self.repository), details=useful_lines(self._log()), remedy=f"see the log: {self.log_path}"
        )

    # --- stop ---

    def stop(self) -> None:
        """Lets the server finish its requests, stops it, removes what it would leave behind. May be called twice.

        Ctrl-C or SIGTERM meanwhile ends the patience and nothing else.
        """
        with processes.signals_set_event() as hurry:
            self._stop(hurry)

    def _stop(self, hurry: threading.Event) -> None:
        atexit.unregister(self.stop)
        process, self._process = self._process, None
        if process is not None:
            # While it is still loading there is nothing to drain, and a server that hangs there ignores the signal.
            self._stubs = list({*self._stubs, *processes.stubs_of(process.pid)})
            processes.terminate(process, self._patience_s(), hurry)
            processes.remove_stubs(self._stubs)
        self._stubs, self._is_ready = [], False
        if self._scratch is not None:
            shutil.rmtree(self._scratch.path, ignore_errors=True)
            self._scratch.release()
            self._scratch = None

    def _patience_s(self) -> float:
        if not self._is_ready:
            return _KILL_S
        if not all(stub.is_alive for stub in self._stubs):
            return _BROKEN_S
        return self.drain_timeout_s + _KILL_S
