"""The worker that a model without an engine has: the engine's, in the process of the streaming model; see `rpc.server`.

One connection to each engine: while Triton reloads the engine's model there are two, the old one for what it has still
to answer and the new one for what comes now.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from trt_spec.errors import MachineError, TrtSpecError
from trt_spec.runtime.request import Chunk, Request
from trt_spec.triton.rpc.server import ANSWER_S, RETRY_S, EngineFacts

OnChunk = Callable[[Chunk], None]
CONNECT_S = 5.0  # from when there is no engine until requests no longer wait for one


@dataclass(eq=False)
class _Submission:
    """Requests that belong together, and where their chunks go.

    Attributes:
        is_settled: it stays with its engine, which has begun it; or its client left it.
    """

    requests: Sequence[Request]
    on_chunk: OnChunk
    is_settled: bool = False


class _Connection:
    """One connection to an engine, and what is in flight over it.

    Attributes:
        in_flight: by the id of each request.
        facts: what the engine told first; None before.
        is_refusing: it takes no new requests.
        is_draining: its engine is about to be unloaded, which is no failure.
        is_left: set when another connection has to be found.
    """

    def __init__(self, socket: Connection) -> None:
        self.socket, self.sending = socket, threading.Lock()
        self.in_flight: dict[str, _Submission] = {}
        self.facts: EngineFacts | None = None
        self.is_refusing = self.is_draining = self.is_closed = False
        self.is_left = threading.Event()
        self.send("open")

    def submit(self, requests: Sequence[Request], on_chunk: OnChunk) -> bool:
        """Whether they could be sent. Where the connection ends later, `on_chunk` gets the error."""
        with self.sending:
            if self.is_refusing:
                return False
            self.in_flight |= dict.fromkeys(_ids(requests), _Submission(requests, on_chunk))
            try:
                self.socket.send(("submit", requests))
            except OSError:
                self.is_refusing = True
                self._forget(requests)
            return not self.is_refusing

    def send(self, *message: Any) -> bool:
        """Whether it could be sent."""
        with self.sending, suppress(OSError):
            self.socket.send(message)
            return True
        return False

    def refuse(self) -> None:
        """Takes no new requests."""
        with self.sending:
            self.is_refusing = True

    def close(self) -> None:
        """Has the engine close; what is in flight still is cancelled there."""
        self.refuse()
        if not self.is_closed:
            self.is_closed = True
            self.send("close")

    def unsettled(self) -> list[_Submission]:
        """What its engine has not begun, once each."""
        with self.sending:
            return list(dict.fromkeys(one for one in self.in_flight.values() if not one.is_settled))

    def forget(self, requests: Sequence[Request]) -> None:
        """They are another connection's."""
        with self.sending:
            self._forget(requests)

    def _forget(self, requests: Sequence[Request]) -> None:
        for request_id in _ids(requests):
            self.in_flight.pop(request_id, None)

    def end(self, error: MachineError) -> None:
        """Ends what is in flight with an error."""
        self.refuse()
        left, self.in_flight = self.in_flight, {}
        for request_id, submission in left.items():
            submission.on_chunk(Chunk(request_id, error=error))


def _ids(requests: Sequence[Request]) -> list[str]:
    return [request.request_id for request in requests]


class RemoteWorker:
    """The worker of an engine in another process, see `host.hosting.Worker`.

    Finds the engine when its model is loaded, again and again. What the engine refuses comes as a chunk with the error.

    Args:
        address: of the engine's socket.
        model_name: of the streaming model, for errors.
        on_failure: called when `failure` is set and what was in flight has ended with it.

    Attributes:
        failure: the engine's process died.
    """

    def __init__(self, address: Path, model_name: str, on_failure: Callable[[], None] = lambda: None) -> None:
        self.failure: MachineError | None = None
        self._address, self._model_name, self._on_failure = address, model_name, on_failure
        self._change = threading.Condition()
        self._connections: dict[_Connection, threading.Thread] = {}
        self._current: _Connection | None = None
        self._alone_since, self._num_attempts = time.monotonic(), 0
        self._stops: dict[int, queue.SimpleQueue[TrtSpecError | None]] = {}
        self._numbers = itertools.count()
        self._is_closing = False
        self._connector = threading.Thread(target=self._connect, name="rpc connector", daemon=True)
        self._connector.start()

    @property
    def engine(self) -> EngineFacts:
        """What is known of the engine.

        Raises:
            MachineError: there is none.
        """
        facts = self._connection().facts
        assert facts is not None
        return facts

    def submit_all(self, requests: Sequence[Request], on_chunk: OnChunk) -> None:
        """Sends requests to the engine; `on_chunk` gets every chunk of each, on the connection's thread.

        Raises:
            MachineError: there is none.
        """
        while not (connection := self._connection()).submit(requests, on_chunk):
            self._leave(connection)

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next step; unknown ids are ignored."""
        for connection in list(self._connections):
            submission = connection.in_flight.get(request_id)
            if submission is not None:
                submission.is_settled = True
                connection.send("cancel", request_id)

    def stop(self, client_id: str) -> None:
        """Stops what runs under a client's id in the streaming model.

        Raises:
            RequestError: nothing does.
            MachineError: the engine's process does not answer.
        """
        number, answer = next(self._numbers), queue.SimpleQueue()
        self._stops[number] = answer
        try:
            if not self._connection().send("stop", number, client_id):
                raise self._gone("the engine went away")
            error = answer.get(timeout=ANSWER_S)
        except queue.Empty:
            raise MachineError("the engine's process does not answer", expected=f"within {ANSWER_S:g} s") from None
        finally:
            del self._stops[number]
        if error is not None:
            raise error

    def count_request(self, outcome: str) -> None:
        """Has one ended request counted among the engine's."""
        connection = self._current
        if connection is not None:
            connection.send("count", outcome)

    def publish(self) -> None:
        """Nothing: the engine's own model publishes."""

    def drain(self, timeout_s: float | None = None) -> bool:
        """Waits until the requests in flight are done; False when the time ran out."""
        with self._change:
            return self._change.wait_for(lambda: not any(one.in_flight for one in self._connections), timeout_s)

    def close(self) -> None:
        """Closes all connections; what is in flight still is cancelled there, and told so here."""
        self._is_closing = True
        for connection in list(self._connections):
            connection.is_left.set()
        self._connector.join(ANSWER_S)
        for connection, thread in list(self._connections.items()):
            connection.close()
            thread.join(ANSWER_S)
            connection.end(self._gone("the model was unloaded"))

    def _connection(self) -> _Connection:
        """The connection for new requests.

        Waits for one, `CONNECT_S` at most from when the last one was left; where that is over, for one more attempt.
        """
        with self._change:
            enough = self._num_attempts + 2  # the first of them may have begun before now

            def is_decided() -> bool:
                is_late = time.monotonic() > self._alone_since + CONNECT_S and self._num_attempts >= enough
                return self._current is not None or self.failure is not None or is_late

            self._change.wait_for(is_decided, CONNECT_S)
            if self._current is None:
                raise self.failure or MachineError(
                    f"the model {self._model_name}, which holds the engine, is not loaded", remedy="load it first"
                )
            return self._current

    def _leave(self, connection: _Connection) -> None:
        """Has another connection found for new requests."""
        with self._change:
            if self._current is connection:
                self._current, self._alone_since = None, time.monotonic()
            self._change.notify_all()
        connection.is_left.set()

    def _gone(self, why: str) -> MachineError:
        return self.failure or MachineError(why, where=f"model {self._model_name}", remedy="send the request again")

    # --- the connector's thread ---

    def _connect(self) -> None:
        while not self._is_closing and self.failure is None:
            try:
                connection = _Connection(Client(str(self._address), "AF_UNIX"))
            except OSError:
                with self._change:
                    self._num_attempts += 1
                    self._change.notify_all()
                time.sleep(RETRY_S)
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name="rpc connection", daemon=True)
            with self._change:
                self._connections[connection] = thread
            thread.start()
            if not self._is_closing:
                connection.is_left.wait()
            if connection.facts is None:
                time.sleep(RETRY_S)

    # --- a connection's thread ---

    def _serve(self, connection: _Connection) -> None:
        is_closed = False
        try:
            is_closed = self._listen(connection)
        finally:
            self._end(connection, is_closed or connection.is_draining or self._is_closing)

    def _end(self, connection: _Connection, is_meant: bool) -> None:
        """What becomes of a connection that has ended: where that was not meant to be, the engine's process died."""
        if connection.facts is not None and not is_meant:
            self.failure = MachineError(
                f"the Python process of model {self._model_name} died", remedy="see the server's log"
            )
        self._leave(connection)
        if connection.is_draining and not self._is_closing:
            self._submit_again(connection)
        connection.end(self._gone("the engine went away"))
        with connection.sending:
            connection.socket.close()
        with self._change:
            del self._connections[connection]
            self._change.notify_all()
        if self.failure is not None:
            self._on_failure()

    def _submit_again(self, connection: _Connection) -> None:
        """Submits to the engine that comes next what came when this one took nothing more."""
        for submission in connection.unsettled():
            try:
                self.submit_all(submission.requests, submission.on_chunk)
            except MachineError as error:
                for request_id in _ids(submission.requests):
                    submission.on_chunk(Chunk(request_id, error=error))
            connection.forget(submission.requests)

    def _listen(self, connection: _Connection) -> bool:
        """Takes what the engine's process sends until it ends; whether the engine has closed it."""
        with suppress(EOFError, OSError):
            while True:
                kind, *given = connection.socket.recv()
                if kind == "close":
                    return True
                getattr(self, f"_on_{kind}")(connection, *given)
                if connection.is_draining and not connection.in_flight:
                    connection.close()
        return False

    def _on_facts(self, connection: _Connection, facts: EngineFacts) -> None:
        with self._change:
            connection.facts, self._current = facts, connection
            self._change.notify_all()

    def _on_chunk(self, connection: _Connection, chunk: Chunk) -> None:
        take = connection.in_flight.pop if chunk.is_last else connection.in_flight.get
        submission = take(chunk.request_id, None)
        if submission is not None:
            submission.is_settled = True
            submission.on_chunk(chunk)
        if chunk.is_last:
            with self._change:
                self._change.notify_all()

    def _on_stopped(self, connection: _Connection, number: int, error: TrtSpecError | None) -> None:
        answer = self._stops.get(number)
        if answer is not None:
            answer.put(error)

    def _on_draining(self, connection: _Connection) -> None:
        connection.refuse()
        connection.is_draining = True
        self._leave(connection)
