"""The way from the other models of a server to the engine, which lives in the process of the streaming model.

A Unix socket, in place of Triton's BLS: asked from several threads for a decoupled model's answers, the stub of server
2.51 now and then crashes ("double free or corruption" within some thousand requests) or lets an answer never come. Its
map of BLS answers has no lock in the server, and in the stub one is held while the interpreter's is awaited. One thread
reads a socket and that is all there is to it; and the kernel tells of a process that died at once.

Messages are pickled tuples, a kind and what belongs to it. Both ends belong to one user: the socket is in a directory
that nobody else can enter.
"""

from __future__ import annotations

import hashlib
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol

from trt_spec.errors import MachineError, TrtSpecError
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.request import Chunk, Request

OnChunk = Callable[[Chunk], None]
RETRY_S = 0.02  # between two attempts to reach an engine that is not there yet
CONNECT_S = 5.0  # for which a request waits for one
ANSWER_S = 5.0  # for the engine's process to say whether it stopped something


def door_address(model_dir: str, model_name: str) -> Path:
    """Where the engine of a streaming model is found by the other models of the same server, and by no one else.

    Args:
        model_dir: a model's own directory, which Triton hands over as `model_repository`.
        model_name: of the streaming model.

    Raises:
        MachineError: the directory for sockets is another user's.
    """
    root = Path(tempfile.gettempdir()) / f"trt_spec_doors_{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    found = root.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise MachineError(
            "the directory for the engine's socket can be entered by others",
            where=str(root),
            remedy="remove it, or set TMPDIR to a directory of your own",
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


# --- the engine's side ---------------------------------------------------------------------------------------------


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


class EngineDoor:
    """Lets the other models of a server submit to an engine's worker.

    Args:
        address: of the socket.
        worker: the engine's.
        facts: what callers are told first.
        host: whose engine it is.
    """

    def __init__(self, address: Path, worker: Any, facts: EngineFacts, host: Host) -> None:
        self.worker, self.facts, self.host = worker, facts, host
        self.is_closing = False
        self._address, self._callers = address, []
        address.unlink(missing_ok=True)  # of a server that was killed
        self._listener = Listener(str(address), "AF_UNIX", backlog=16)
        self._thread = threading.Thread(target=self._accept, name="door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Says goodbye to the callers; their requests have to be done."""
        self.is_closing = True
        with suppress(OSError):
            Client(str(self._address), "AF_UNIX").close()  # wakes the thread
        self._thread.join()
        self._listener.close()
        self._address.unlink(missing_ok=True)
        for caller in self._callers:
            caller.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:  # a caller that was gone again, or no descriptor left
                time.sleep(RETRY_S)
                continue
            if self.is_closing:
                connection.close()
                return
            self._callers = [caller for caller in self._callers if caller.is_alive]
            self._callers.append(_Caller(self, connection))


class _Caller:
    """One model at the door: a thread that takes its messages, and one that sends it chunks, so that the engine's own
    thread never waits for a socket."""

    def __init__(self, door: EngineDoor, connection: Connection) -> None:
        self.door, self.connection = door, connection
        self.name = f"{connection.fileno()}.{time.monotonic_ns()}"
        self.running: set[str] = set()
        self.outbox: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self.outbox.put(("facts", door.facts))
        self.reader = threading.Thread(target=self._read, name="caller", daemon=True)
        self.writer = threading.Thread(target=self._write, name="to caller", daemon=True)
        self.writer.start()
        self.reader.start()

    @property
    def is_alive(self) -> bool:
        return self.reader.is_alive()

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

    def _read(self) -> None:
        is_farewell = False
        try:
            while not is_farewell:
                kind, *given = self.connection.recv()
                is_farewell = kind == "goodbye"
                getattr(self, f"_on_{kind}")(*given)
        except (EOFError, OSError):
            pass
        finally:
            self.outbox.put(None)
            self.writer.join()
            self.connection.close()
            for request_id in list(self.running):
                self.door.worker.cancel(self._inside(request_id))
            if not is_farewell and not self.door.is_closing:
                self.door.host.lost()

    def _on_goodbye(self) -> None:
        pass

    def _on_submit(self, requests: Sequence[Request]) -> None:
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


# --- the other models' side ----------------------------------------------------------------------------------------


class RemoteWorker:
    """The worker of an engine in another process, see `hosting.Worker`.

    Finds the engine when its model is loaded, again and again. What the engine refuses comes as a chunk with the error.

    Args:
        address: of the engine's door.
        model_name: of the streaming model, for errors.

    Attributes:
        failure: the engine's process died.
    """

    def __init__(self, address: Path, model_name: str) -> None:
        self.failure: MachineError | None = None
        self._address, self._model_name = address, model_name
        self._change = threading.Condition()
        self._callbacks: dict[str, OnChunk] = {}
        self._connection: Connection | None = None
        self._facts: EngineFacts | None = None
        self._stops: dict[int, queue.SimpleQueue[TrtSpecError | None]] = {}
        self._is_closing = False
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> EngineFacts:
        """What is known of the engine.

        Raises:
            MachineError: there is none.
        """
        with self._change:
            self._change.wait_for(lambda: self._facts is not None or self.failure is not None, CONNECT_S)
            if self._facts is None:
                raise self.failure or MachineError(
                    f"the model {self._model_name}, which holds the engine, is not loaded", remedy="load it first"
                )
            return self._facts

    def submit_all(self, requests: Sequence[Request], on_chunk: OnChunk) -> None:
        """Sends requests to the engine; `on_chunk` gets every chunk of each, on the link's thread."""
        self.engine  # noqa: B018  waits for it
        ids = [request.request_id for request in requests]
        with self._change:
            self._callbacks |= dict.fromkeys(ids, on_chunk)
        if not self._send("submit", requests):
            with self._change:
                untold = [self._callbacks.pop(request_id, None) for request_id in ids]
            if any(untold):  # else the link's thread has told it already
                raise self._gone("the engine went away")

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next step; unknown ids are ignored."""
        self._send("cancel", request_id)

    def stop(self, client_id: str) -> None:
        """Stops what runs under a client's id in the streaming model.

        Raises:
            RequestError: nothing does.
            MachineError: the engine's process does not answer.
        """
        answer: queue.SimpleQueue[TrtSpecError | None] = queue.SimpleQueue()
        self._stops[id(answer)] = answer
        try:
            self.engine  # noqa: B018  waits for it
            if not self._send("stop", id(answer), client_id):
                raise self._gone("the engine went away")
            error = answer.get(timeout=ANSWER_S)
        except queue.Empty:
            raise MachineError("the engine's process does not answer", expected=f"within {ANSWER_S:g} s") from None
        finally:
            del self._stops[id(answer)]
        if error is not None:
            raise error

    def count_request(self, outcome: str) -> None:
        """Has one ended request counted among the engine's."""
        self._send("count", outcome)

    def publish(self) -> None:
        """Nothing: the engine's own model publishes."""

    def drain(self, timeout_s: float | None = None) -> bool:
        """Waits until the requests in flight are done; False when the time ran out."""
        with self._change:
            return self._change.wait_for(lambda: not self._callbacks, timeout_s)

    def close(self) -> None:
        """Says goodbye; what is in flight still is cancelled there, and told so here."""
        with self._sending:
            self._is_closing = True
        self._send("goodbye")
        self._thread.join(ANSWER_S)
        self._end_all("the model was unloaded")

    def _send(self, *message: Any) -> bool:
        """Whether it could be sent. Whose connection ends later hears of it from the link's thread."""
        with self._sending, suppress(OSError):
            if self._connection is not None:
                self._connection.send(message)
                return True
        return False

    def _gone(self, why: str) -> MachineError:
        return self.failure or MachineError(why, where=f"model {self._model_name}", remedy="send the request again")

    # --- the link's thread ---

    def _run(self) -> None:
        while not self._is_closing and self.failure is None:
            try:
                connection = Client(str(self._address), "AF_UNIX")
            except OSError:
                time.sleep(RETRY_S)
                continue
            with self._sending:
                self._connection = connection
                is_late = self._is_closing
            if is_late:
                self._send("goodbye")
            is_farewell = self._listen(connection)
            with self._sending:
                self._connection = None
                connection.close()
            with self._change:
                self._facts = None
                if not is_farewell and not self._is_closing:
                    died = f"the Python process of model {self._model_name} died"
                    self.failure = MachineError(died, remedy="see the server's log")
                self._change.notify_all()
            self._end_all("the engine went away")

    def _listen(self, connection: Connection) -> bool:
        """Takes what the engine's process sends until it ends; whether that was meant to be."""
        try:
            while True:
                kind, *given = connection.recv()
                if kind == "chunk":
                    self._deliver(*given)
                elif kind == "facts":
                    with self._change:
                        (self._facts,) = given
                        self._change.notify_all()
                elif kind == "stopped":
                    number, error = given
                    if number in self._stops:
                        self._stops[number].put(error)
                elif kind == "goodbye":
                    return True
        except (EOFError, OSError):
            return False

    def _deliver(self, chunk: Chunk) -> None:
        with self._change:
            take = self._callbacks.pop if chunk.is_last else self._callbacks.get
            on_chunk = take(chunk.request_id, None)
            self._change.notify_all()
        if on_chunk is not None:
            on_chunk(chunk)

    def _end_all(self, why: str) -> None:
        with self._change:
            left, self._callbacks = self._callbacks, {}
            self._change.notify_all()
        for request_id, on_chunk in left.items():
            on_chunk(Chunk(request_id, error=self._gone(why)))
