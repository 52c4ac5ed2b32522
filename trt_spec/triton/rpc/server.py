"""The engine, for the other models of its server; it lives in the process of the streaming model.

Over a Unix socket, in place of Triton's BLS: asked from several threads for a decoupled model's answers, the stub of
server 2.51 now and then crashes ("double free or corruption" within some thousand requests) or lets an answer never
come. Its map of BLS answers has no lock in the server, and in the stub one is held while the interpreter's is awaited.
A socket is read by one thread, and the kernel tells at once of a process that died.

Messages are pickled tuples, a kind and what belongs to it. A client says open, submit, cancel, stop, count and close;
the engine says facts (first), chunk, stopped, draining and close. Both ends belong to one user: the socket is in a
directory that nobody else can enter. See `rpc.client` for the other end.
"""

from __future__ import annotations

import functools
import hashlib
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from trt_spec.errors import MachineError, TrtSpecError
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.request import Chunk, Request
from trt_spec.triton.errortext import as_ours
from trt_spec.triton.isolation import isolated
from trt_spec.triton.server import processes
from trt_spec.triton.server.processes import SHARED_MEMORY

RETRY_S = 0.02  # between two attempts at what may work in a moment
ANSWER_S = 5.0  # for the process at the other end to react to what it was told
ABANDONED_S = 60.0  # age from which a socket without a listener is one that a killed server left


def socket_path(model_dir: str, model_name: str) -> Path:
    """Where the engine of a streaming model is found by the other models of the same server, and by no one else.

    In shared memory, which Triton's Python models cannot do without: TMPDIR may be longer than a socket's name can be
    (107 bytes), read-only or missing.

    Args:
        model_dir: of any model, which Triton hands over as `model_repository`.

    Raises:
        MachineError: the directory for sockets cannot be made, or is another user's.
    """
    root = SHARED_MEMORY / f"trt_spec_rpc_{os.geteuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
    except OSError as error:
        raise MachineError("there is no place for the engine's socket", where=str(root), got=str(error)) from None
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise MachineError(
            "the directory for the engine's socket can be entered by others", where=str(root), remedy="remove it"
        )
    # And the moment it started: a number alone is used again, and in every container.
    server = f"{os.getppid()} {processes.started(os.getppid())}"
    repository = os.path.dirname(os.path.abspath(model_dir))
    return root / hashlib.sha256(f"{server} {repository} {model_name}".encode()).hexdigest()[:20]


@dataclass(frozen=True)
class EngineFacts:
    """What the other models have to know of the engine.

    Attributes:
        has_tokenizer: it was built with the target's tokenizer.
    """

    limits: EngineLimits
    has_tokenizer: bool


class Host(Protocol):
    """The model whose engine it is, see `host.streaming.StreamingModel`; `wake`: the engine has something to do."""

    def stop(self, client_id: str) -> None: ...
    def wake(self) -> None: ...
    def count(self, outcome: str) -> None: ...
    def lost(self) -> None: ...
    def log(self, error: Exception) -> None: ...


class EngineServer:
    """Lets the other models of a server submit to an engine's worker.

    Args:
        address: of the socket. One that is there belongs to a model that this one is about to replace, as Triton does
            when it reloads a model; it is replaced in one step, so that whoever looks finds one of the two.
        worker: the engine's.
        facts: what clients are told first.
        host: whose engine it is.

    Raises:
        MachineError: the socket cannot be made.
    """

    def __init__(self, address: Path, worker: Any, facts: EngineFacts, host: Host) -> None:
        self.worker, self.facts, self.host = worker, facts, host
        self.is_closing = False
        self._is_open = True
        self._address, self._sessions = address, []
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            _remove_abandoned(address.parent)
            own = address.with_suffix(f".{os.getpid()}-{time.monotonic_ns():x}")
            self._socket.bind(str(own))
            self._socket.listen(16)
            self._inode = own.stat().st_ino
            own.replace(address)
        except OSError as error:
            self._socket.close()
            raise MachineError("the engine's socket cannot be made", where=str(address), got=str(error)) from None
        self._thread = threading.Thread(target=self._accept, name="rpc", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Refuses new clients, has the others find the engine that comes next, and waits for what they have submitted.

        It waits without limit, as Triton does for a model's own requests; but not for a client that has nothing in
        flight and does not react. What such a client submits later is not taken: the engine that comes next gets it.
        """
        self._shut()
        for session in self._sessions:
            session.outbox.put(("draining",))
        for session in self._sessions:
            session.wait()

    def close(self) -> None:
        """Closes the sessions that are left; their requests have to be done."""
        self.is_closing = True
        self._shut()
        for session in self._sessions:
            session.close()

    def _shut(self) -> None:
        self._is_open = False
        with suppress(OSError):
            if self._address.stat().st_ino == self._inode:  # and not of the engine that comes next
                self._address.unlink()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while self._is_open:
            try:
                connection = Connection(self._socket.accept()[0].detach())
                self._sessions = [session for session in self._sessions if session.is_alive]
                self._sessions.append(_Session(self, connection))
            except (OSError, RuntimeError):  # gone again; no descriptor or no thread left; shut
                time.sleep(RETRY_S)


def _remove_abandoned(root: Path) -> None:
    for path in root.iterdir():
        try:
            if time.time() - path.stat().st_mtime > ABANDONED_S:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.setblocking(False)
                    probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:  # busy, or gone
            continue


class _Session:
    """One connected model. A thread takes its messages and another sends it chunks: the engine's never waits for it."""

    def __init__(self, server: EngineServer, connection: Connection) -> None:
        self.server, self.connection = server, connection
        self.name = f"{connection.fileno()}.{time.monotonic_ns()}"
        self.running: set[str] = set()
        self.takes_requests, self.taking = True, threading.Lock()
        self.is_open = False  # a model has said so; who only tries whether somebody listens does not
        self.outbox: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self.outbox.put(("facts", server.facts))
        self.reader = threading.Thread(target=self._read, name="rpc reader", daemon=True)
        self.writer = threading.Thread(target=self._write, name="rpc writer", daemon=True)
        self.writer.start()
        self.reader.start()

    @property
    def is_alive(self) -> bool:
        return self.reader.is_alive()

    def wait(self) -> None:
        """Until the client has closed, or has nothing in flight and does not react; then nothing more is taken."""
        while self.is_alive:
            self.reader.join(ANSWER_S)
            with self.taking:
                if not self.running:
                    self.takes_requests = False
                    return

    def close(self) -> None:
        """Tells the client, which closes too; both threads end."""
        self.outbox.put(("close",))
        self.reader.join(ANSWER_S)

    # --- threads ---

    def _write(self) -> None:
        while (message := self.outbox.get()) is not None:
            send, unsent = functools.partial(self.connection.send, message), functools.partial(self._unsent, message)
            isolated(send, unsent)

    def _unsent(self, message: tuple[Any, ...], error: Exception) -> None:
        if isinstance(error, OSError):  # the client is gone; the reader sees to it
            return
        self.server.host.log(error)  # it cannot be pickled, and nothing of it was sent
        if message[0] == "chunk":
            told = TrtSpecError("the answer could not be sent", got=f"{type(error).__name__}: {error}")
            self._tell(Chunk(self._inside(message[1].request_id), error=told))

    def _read(self) -> None:
        kind = ""
        try:
            while kind != "close":
                kind, *given = self.connection.recv()
                self._take(kind, given)
        except (EOFError, OSError):
            pass
        finally:
            self.outbox.put(None)
            self.writer.join()
            self.connection.close()
            for request_id in list(self.running):
                self._take("cancel", [request_id])
            if self.is_open and kind != "close" and not self.server.is_closing:
                self.server.host.lost()

    def _take(self, kind: str, given: Sequence[Any]) -> None:
        """Whatever goes wrong with a message, the client's process has not died of it."""
        isolated(lambda: getattr(self, f"_on_{kind}")(*given), self.server.host.log)

    def _on_open(self) -> None:
        self.is_open = True

    def _on_close(self) -> None:
        pass

    def _on_submit(self, requests: Sequence[Request]) -> None:
        with self.taking:
            if not self.takes_requests:
                return
            self.running |= {request.request_id for request in requests}
        renamed = [replace(request, request_id=self._inside(request.request_id)) for request in requests]

        def refuse(error: Exception) -> None:
            for request in renamed:
                self._tell(Chunk(request.request_id, error=as_ours(error)))

        def submit() -> None:
            self.server.worker.submit_all(renamed, self._tell)
            self.server.host.wake()

        isolated(submit, refuse)

    def _on_cancel(self, request_id: str) -> None:
        self.server.worker.cancel(self._inside(request_id))

    def _on_stop(self, number: int, client_id: str) -> None:
        found = None
        try:
            self.server.host.stop(client_id)
        except TrtSpecError as error:
            found = error
        self.outbox.put(("stopped", number, found))

    def _on_count(self, outcome: str) -> None:
        self.server.host.count(outcome)

    def _inside(self, request_id: str) -> str:
        return f"{self.name}/{request_id}"

    def _tell(self, chunk: Chunk) -> None:
        own = replace(chunk, request_id=chunk.request_id.partition("/")[2])
        if own.is_last:
            self.running.discard(own.request_id)
        self.outbox.put(("chunk", own))
