"""The door of an engine, for the other models of its server; the engine lives in the streaming model's process.

A Unix socket, in place of Triton's BLS: asked from several threads for a decoupled model's answers, the stub of server
2.51 now and then crashes ("double free or corruption" within some thousand requests) or lets an answer never come. Its
map of BLS answers has no lock in the server, and in the stub one is held while the interpreter's is awaited. One thread
reads a socket and that is all there is to it; and the kernel tells of a process that died at once.

Messages are pickled tuples, a kind and what belongs to it. Both ends belong to one user: the socket is in a directory
that nobody else can enter. See engine_link for the other end.
"""

from __future__ import annotations

import hashlib
import os
import queue
import socket
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from trt_spec.errors import MachineError, TrtSpecError
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.request import Chunk, Request
from trt_spec.triton.server.processes import SHARED_MEMORY

RETRY_S = 0.02  # between two attempts at what may work in a moment
ANSWER_S = 5.0  # for the process at the other end to react to what it was told
ABANDONED_S = 60.0  # age from which a socket without a listener is one that a killed server left


def door_address(model_dir: str, model_name: str) -> Path:
    """Where the engine of a streaming model is found by the other models of the same server, and by no one else.

    In shared memory, which Triton's Python models cannot do without: TMPDIR may be longer than a socket's name can be
    (107 bytes), read-only or missing.

    Args:
        model_dir: a model's own directory, which Triton hands over as `model_repository`.
        model_name: of the streaming model.

    Raises:
        MachineError: the directory for sockets cannot be made, or is another user's.
    """
    root = SHARED_MEMORY / f"trt_spec_doors_{os.geteuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
    except OSError as error:
        raise MachineError("there is no place for the engine's socket", where=str(root), got=str(error)) from None
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise MachineError(
            "the directory for the engine's socket can be entered by others", where=str(root), remedy="remove it"
        )
    server = os.getppid()
    with suppress(OSError):  # the moment it started: a number alone is used again, and in every container
        stat = Path(f"/proc/{server}/stat").read_text(encoding="utf-8")
        server = f"{server} {stat.rpartition(')')[2].split()[19]}"
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
    """The model whose engine it is."""

    def stop(self, client_id: str) -> None:
        """Stops what runs under a client's id in this model itself; raises where nothing does."""

    def wake(self) -> None:
        """The engine has something to do."""

    def count(self, outcome: str) -> None:
        """A request of another model has ended."""

    def lost(self) -> None:
        """The process of another model ended without a word."""

    def log(self, text: str) -> None:
        """Something went wrong that no client can be told."""


class EngineDoor:
    """Lets the other models of a server submit to an engine's worker.

    Args:
        address: of the socket. One that is there belongs to a model that this one is about to replace, as Triton does
            when it reloads a model; it is replaced in one step, so that whoever looks finds one of the two.
        worker: the engine's.
        facts: what callers are told first.
        host: whose engine it is.

    Raises:
        MachineError: the socket cannot be made.
    """

    def __init__(self, address: Path, worker: Any, facts: EngineFacts, host: Host) -> None:
        self.worker, self.facts, self.host = worker, facts, host
        self.is_closing = False
        self._is_open = True
        self._address, self._callers = address, []
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
        self._thread = threading.Thread(target=self._accept, name="door", daemon=True)
        self._thread.start()

    def retire(self) -> None:
        """Takes in nobody, sends the callers to the engine that comes next, and waits until what they sent is done.

        Without limit, as Triton waits for a model's own requests; only for a caller with nothing to wait for that does
        not react there is one. What such a caller sends later is not taken: it sends it to the engine that comes next.
        """
        self._shut()
        for caller in self._callers:
            caller.outbox.put(("retired",))
        for caller in self._callers:
            caller.wait()

    def close(self) -> None:
        """Says goodbye to the callers that are left; their requests have to be done."""
        self.is_closing = True
        self._shut()
        for caller in self._callers:
            caller.close()

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
                self._callers = [caller for caller in self._callers if caller.is_alive]
                self._callers.append(_Caller(self, connection))
            except Exception:  # a caller that was gone again, no descriptor or thread left, or it is shut
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


class _Caller:
    """One model at the door: a thread that takes its messages, and one that sends it chunks, so that the engine's own
    thread never waits for a socket."""

    def __init__(self, door: EngineDoor, connection: Connection) -> None:
        self.door, self.connection = door, connection
        self.name = f"{connection.fileno()}.{time.monotonic_ns()}"
        self.running: set[str] = set()
        self.is_taken_from, self.taking = True, threading.Lock()
        self.is_known = False  # it said hello, as a model does and who only tries whether somebody listens does not
        self.outbox: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self.outbox.put(("facts", door.facts))
        self.reader = threading.Thread(target=self._read, name="caller", daemon=True)
        self.writer = threading.Thread(target=self._write, name="to caller", daemon=True)
        self.writer.start()
        self.reader.start()

    @property
    def is_alive(self) -> bool:
        return self.reader.is_alive()

    def wait(self) -> None:
        """Until the caller has hung up, or does not although it waits for nothing; then nothing more is taken."""
        while self.is_alive:
            self.reader.join(ANSWER_S)
            with self.taking:
                if not self.running:
                    self.is_taken_from = False
                    return

    def close(self) -> None:
        """Says goodbye; the caller then hangs up, and both threads end."""
        self.outbox.put(("goodbye",))
        self.reader.join(ANSWER_S)

    # --- threads ---

    def _write(self) -> None:
        while (message := self.outbox.get()) is not None:
            try:
                self.connection.send(message)
            except OSError:  # the reader sees to it
                return
            except Exception as error:  # it cannot be pickled, and nothing of it was sent
                self.door.host.log(traceback.format_exc())
                if message[0] == "chunk":
                    told = TrtSpecError("the answer could not be sent", got=f"{type(error).__name__}: {error}")
                    self._tell(Chunk(self._inside(message[1].request_id), error=told))

    def _read(self) -> None:
        kind = ""
        try:
            while kind != "goodbye":
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
            if self.is_known and kind != "goodbye" and not self.door.is_closing:
                self.door.host.lost()

    def _take(self, kind: str, given: Sequence[Any]) -> None:
        try:
            getattr(self, f"_on_{kind}")(*given)
        except Exception:  # whatever it is, the caller's process has not died of it
            self.door.host.log(traceback.format_exc())

    def _on_hello(self) -> None:
        self.is_known = True

    def _on_goodbye(self) -> None:
        pass

    def _on_submit(self, requests: Sequence[Request]) -> None:
        with self.taking:
            if not self.is_taken_from:
                return
            self.running |= {request.request_id for request in requests}
        renamed = [replace(request, request_id=self._inside(request.request_id)) for request in requests]
        try:
            self.door.worker.submit_all(renamed, self._tell)
            self.door.host.wake()
        except Exception as error:
            if not isinstance(error, TrtSpecError):
                error = TrtSpecError("the model failed on this request", got=f"{type(error).__name__}: {error}")
            for request in renamed:
                self._tell(Chunk(request.request_id, error=error))

    def _on_cancel(self, request_id: str) -> None:
        self.door.worker.cancel(self._inside(request_id))

    def _on_stop(self, number: int, client_id: str) -> None:
        try:
            self.door.host.stop(client_id)
        except TrtSpecError as error:
            self.outbox.put(("stopped", number, error))
        else:
            self.outbox.put(("stopped", number, None))

    def _on_count(self, outcome: str) -> None:
        self.door.host.count(outcome)

    def _inside(self, request_id: str) -> str:
        return f"{self.name}/{request_id}"

    def _tell(self, chunk: Chunk) -> None:
        own = replace(chunk, request_id=chunk.request_id.partition("/")[2])
        if own.is_last:
            self.running.discard(own.request_id)
        self.outbox.put(("chunk", own))
