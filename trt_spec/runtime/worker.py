"""One thread that owns an engine, and a thread-safe door to it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from trt_spec.errors import MachineError, OverloadedError, TrtSpecError
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.request import Chunk, Request

OnChunk = Callable[[Chunk], None]


class EngineWorker:
    """Runs `engine.step()` while there is work and hands each chunk to its request's callback, on the worker's thread.

    Args:
        engine: the engine, or a function that loads it, which then runs on the worker's thread too. The latter is the
            faster one on CPU: as soon as two threads of a process have computed, OpenMP counts more threads than
            cores, and its idle ones no longer wait awake for the next operation.

    If the engine raises, every request in flight gets a chunk with the error, `failure` is set, and later requests
    are refused.
    """

    def __init__(self, engine: Engine | Callable[[], Engine]):
        self._source = engine
        self._is_loaded = threading.Event()
        self.failure: BaseException | None = None
        self._callbacks: dict[str, OnChunk] = {}
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._admission = threading.Lock()
        self._num_accepted = 0
        self._is_draining = False
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> EngineWorker:
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
            RequestError: the engine cannot serve these requests.
            OverloadedError: the queue is full, or the worker is draining.
            MachineError: the engine has failed.
        """
        for request in requests:
            self.engine.check(request)
        with self._admission:
            self._refuse_if_closed()
            self.engine.limits.refuse_overload(self._num_accepted, len(requests))
            self._num_accepted += len(requests)
            self._idle.clear()
            # Inside the lock: behind the end of `close` or `_fail` nobody would ever take it out.
            self._commands.put(lambda: self._add_all(requests, on_chunk))

    def _refuse_if_closed(self) -> None:
        if self.failure is not None:
            raise MachineError("the engine has failed", got=str(self.failure), remedy="restart the server; see its log")
        if self._is_draining:
            raise OverloadedError("the engine is draining and takes no new requests", remedy="use another server")

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next step; unknown ids are ignored."""
        self._commands.put(lambda: self.engine.cancel(request_id))

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
        with self._admission:
            self._is_draining = True
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join()

    # ---- the worker's thread ----

    def _run(self) -> None:
        try:
            self.engine = self._source() if callable(self._source) else self._source
            self._is_loaded.set()
            while self._take_commands():
                if self.engine.has_work:
                    self._deliver(self.engine.step())
            for request_id in list(self._callbacks):
                self.engine.cancel(request_id)
            if self._callbacks:
                self._deliver(self.engine.step())
        except BaseException as error:  # the thread must not die in silence, whatever happened
            self._fail(error)

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

    def _add_all(self, requests: Sequence[Request], on_chunk: OnChunk) -> None:
        for request in requests:
            self._add(request, on_chunk)

    def _add(self, request: Request, on_chunk: OnChunk) -> None:
        if request.request_id in self._callbacks:
            self._finish_one(
                on_chunk, Chunk(request.request_id, error=OverloadedError("request id is in flight already"))
            )
            return
        try:
            self.engine.add(request)
        except TrtSpecError as error:
            self._finish_one(on_chunk, Chunk(request.request_id, error=error))
        else:
            self._callbacks[request.request_id] = on_chunk

    def _deliver(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            if chunk.is_last:
                self._finish_one(self._callbacks.pop(chunk.request_id), chunk)
            else:
                self._tell(self._callbacks[chunk.request_id], chunk)

    def _finish_one(self, on_chunk: OnChunk, chunk: Chunk) -> None:
        with self._admission:
            self._num_accepted -= 1
            is_idle = self._num_accepted == 0
        self._tell(on_chunk, chunk)
        if is_idle:
            self._idle.set()

    def _tell(self, on_chunk: OnChunk, chunk: Chunk) -> None:
        """A callback that raises loses its own request only."""
        try:
            on_chunk(chunk)
        except Exception:
            self.engine.cancel(chunk.request_id)

    def _fail(self, error: BaseException) -> None:
        with self._admission:
            self.failure = error
        self._is_loaded.set()
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command()
        for request_id, on_chunk in list(self._callbacks.items()):
            told = MachineError(
                "the engine has failed", got=f"{type(error).__name__}: {error}", remedy="restart the server"
            )
            self._finish_one(on_chunk, Chunk(request_id, error=told))
        self._callbacks.clear()
