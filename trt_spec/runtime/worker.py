"""An engine on a thread of its own, and the thread-safe way to it: requests in, chunks out."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from trt_spec.errors import MachineError, OverloadedError, TrtSpecError
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.request import Chunk, Request

OnChunk = Callable[[Chunk], None]
W = TypeVar("W", bound="Worker")


class Admits(Protocol):
    """What a worker has to know of its engine to take requests in."""

    limits: EngineLimits

    def check(self, request: Request) -> None:
        """Raises where the engine cannot serve the request; may be called from any thread."""


class Worker(ABC):
    """What is the same whatever runs the requests: who comes in, who is told what, and how it ends.

    Every chunk goes to its request's callback, on the worker's thread. A subclass runs that thread and what is queued
    for it, and says how one request begins and is cancelled there.

    Attributes:
        engine: there from when `start` returns.
        failure: why no request can be served any more.
    """

    engine: Admits

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._callbacks: dict[str, OnChunk] = {}
        self._admission = threading.Lock()
        self._num_accepted, self._is_draining = 0, False
        self._is_loaded, self._idle = threading.Event(), threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self: W) -> W:
        """Starts the thread, and waits for the engine where the thread has to load it; raises what loading raises."""
        self._thread.start()
        self._is_loaded.wait()
        if self.failure is not None:
            raise self.failure
        return self

    def submit(self, request: Request, on_chunk: OnChunk) -> None:
        """Queues one request, see `submit_all`."""
        self.submit_all([request], on_chunk)

    def submit_all(self, requests: Sequence[Request], on_chunk: OnChunk) -> None:
        """Queues requests, all of them or none; `on_chunk` gets every chunk of each, the last one with `is_last`.

        Raises:
            RequestError, CapabilityError: the engine cannot serve these requests.
            OverloadedError: the queue is full, or the worker is draining.
            MachineError: the engine has failed.
        """
        for request in requests:
            self.engine.check(request)
        with self._admission:
            if self.failure is not None:
                raise engine_failed(self.failure)
            if self._is_draining:
                raise OverloadedError("the engine is draining and takes no new requests", remedy="use another server")
            self.engine.limits.refuse_overload(self._num_accepted, len(requests))
            self._num_accepted += len(requests)
            self._idle.clear()
            # Inside the lock: behind the end of `close` or a failure nobody would ever take it out.
            self._call(lambda: self._begin_all(requests, on_chunk))

    def cancel(self, request_id: str) -> None:
        """Ends a request as soon as the engine can, at its next step; unknown ids are ignored."""
        self._call(lambda: self._cancel(request_id))

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not finished, queued ones included."""
        return self._num_accepted

    def drain(self, timeout_s: float | None = None) -> bool:
        """Refuses new requests and waits until accepted ones are done; False when the time ran out."""
        with self._admission:
            self._is_draining = True
        return self._idle.wait(timeout_s)

    def close(self) -> None:
        """Stops the thread after its current step; requests still in flight get a `cancelled` completion."""
        self.drain(0)
        self._stop()
        if self._thread.is_alive():
            self._thread.join()

    @abstractmethod
    def _call(self, function: Callable[[], None]) -> None:
        """Has the worker's thread call a function, after those before it."""

    @abstractmethod
    def _stop(self) -> None:
        """Has the thread end what is in flight as cancelled, and return."""

    # ---- the worker's thread ----

    @abstractmethod
    def _run(self) -> None:
        """Loads the engine, sets `_is_loaded` then or on `failure`, and serves until it is stopped."""

    @abstractmethod
    def _begin(self, request: Request) -> None:
        """Begins a request; raises TrtSpecError where that cannot be."""

    @abstractmethod
    def _cancel(self, request_id: str) -> None:
        """Ends a request; unknown ids are ignored."""

    def _begin_all(self, requests: Sequence[Request], on_chunk: OnChunk) -> None:
        for request in requests:
            try:
                if request.request_id in self._callbacks:
                    raise OverloadedError("request id is in flight already", got=request.request_id)
                self._begin(request)
            except TrtSpecError as error:
                self._tell(on_chunk, Chunk(request.request_id, error=error))
            else:
                self._callbacks[request.request_id] = on_chunk

    def _deliver(self, chunk: Chunk) -> None:
        """Hands a chunk to its request's callback."""
        take = self._callbacks.pop if chunk.is_last else self._callbacks.__getitem__
        self._tell(take(chunk.request_id), chunk)

    def _tell(self, on_chunk: OnChunk, chunk: Chunk) -> None:
        with self._admission:
            self._num_accepted -= chunk.is_last
        try:
            on_chunk(chunk)
        except Exception:  # whatever a callback raises, it loses its own request and no other
            self._cancel(chunk.request_id)
        with self._admission:
            if self._num_accepted == 0:
                self._idle.set()


class EngineWorker(Worker):
    """Runs `engine.step()` while there is work.

    Args:
        engine: the engine, or a function that loads it, which then runs on the worker's thread too. The latter is the
            faster one on CPU: as soon as two threads of a process have computed, OpenMP counts more threads than
            cores, and its idle ones no longer wait awake for the next operation.

    If the engine raises, every request in flight gets a chunk with the error, `failure` is set, and later requests
    are refused.
    """

    engine: Engine

    def __init__(self, engine: Engine | Callable[[], Engine]):
        super().__init__()
        self._source = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def _call(self, function: Callable[[], None]) -> None:
        self._commands.put(function)

    def _stop(self) -> None:
        self._commands.put(None)

    def _run(self) -> None:
        try:
            self.engine = self._source() if callable(self._source) else self._source
            self._is_loaded.set()
            while self._take_commands():
                self._step()
            for request_id in list(self._callbacks):
                self.engine.cancel(request_id)
            self._step()
        except BaseException as error:  # the thread must not die in silence, whatever happened
            self._fail(error)

    def _step(self) -> None:
        for chunk in self.engine.step() if self.engine.has_work else ():
            self._deliver(chunk)

    def _take_commands(self) -> bool:
        """Runs all queued commands, waiting for one where the engine has nothing to do; False means stop."""
        while True:
            try:
                command = self._commands.get(block=not self.engine.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            if self._commands.empty():
                return True

    def _begin(self, request: Request) -> None:
        self.engine.add(request)

    def _cancel(self, request_id: str) -> None:
        self.engine.cancel(request_id)

    def _fail(self, error: BaseException) -> None:
        with self._admission:
            self.failure = error
        self._is_loaded.set()
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command()
        for request_id in list(self._callbacks):
            self._deliver(Chunk(request_id, error=engine_failed(error)))


def engine_failed(error: BaseException) -> MachineError:
    """What requests are told when an engine can serve none any more."""
    got = error.what if isinstance(error, TrtSpecError) else f"{type(error).__name__}: {error}"
    return MachineError("the engine has failed", got=got, remedy="restart the server; see its log")
