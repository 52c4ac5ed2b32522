"""The way of a model without an engine to the engine's door, see engine_door.

One link to each engine: while Triton reloads the engine's model there are two, the old one for what it has still to
answer and the new one for what comes now.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from trt_spec.errors import MachineError, TrtSpecError
from trt_spec.runtime.request import Chunk, Request
from trt_spec.triton.rpc.server import ANSWER_S, RETRY_S, EngineFacts

OnChunk = Callable[[Chunk], None]
Sent = tuple[Sequence[Request], OnChunk]  # requests that were submitted together, and where their chunks go
CONNECT_S = 5.0  # from when there is no engine until requests no longer wait for one


class _Link:
    """One connection to an engine's door, and what is in flight over it.

    Attributes:
        callbacks: of the requests in flight.
        untouched: those of them of which no chunk has come: what they were sent with.
        facts: what the engine told first; None before.
        is_leaving: it takes no new requests.
        is_retired: its engine said so, and what becomes of that one matters to these requests alone.
        is_left: set when another link has to be found.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection, self.sending = connection, threading.Lock()
        self.callbacks: dict[str, OnChunk] = {}
        self.untouched: dict[str, Sent] = {}
        self.facts: EngineFacts | None = None
        self.is_leaving = self.is_retired = self.has_said_goodbye = False
        self.is_left = threading.Event()
        self.send("hello")

    def submit(self, requests: Sequence[Request], on_chunk: OnChunk) -> bool:
        """Whether they could be sent. Whose link ends later hears of it."""
        with self.sending:
            if self.is_leaving:
                return False
            ids = [request.request_id for request in requests]
            self.callbacks |= dict.fromkeys(ids, on_chunk)
            self.untouched |= dict.fromkeys(ids, (requests, on_chunk))
            try:
                self.connection.send(("submit", requests))
            except OSError:
                self.is_leaving = True
                for request_id in ids:
                    del self.callbacks[request_id], self.untouched[request_id]
                return False
            return True

    def send(self, *message: Any) -> bool:
        """Whether it could be sent."""
        with self.sending, suppress(OSError):
            self.connection.send(message)
            return True
        return False

    def leave(self) -> None:
        """Takes no new requests."""
        with self.sending:
            self.is_leaving = True

    def say_goodbye(self) -> None:
        """The engine then hangs up; what is in flight still is cancelled there."""
        self.leave()
        if not self.has_said_goodbye:
            self.has_said_goodbye = True
            self.send("goodbye")

    def touch(self, request_id: str) -> None:
        """It and what was sent with it stay with this engine: it has begun them, or nobody wants them any more."""
        if request_id in self.untouched:
            with self.sending:
                for request in self.untouched.get(request_id, ((), None))[0]:
                    self.untouched.pop(request.request_id, None)

    def unbegun(self) -> list[Sent]:
        """What was sent and not begun."""
        with self.sending:
            return list({id(requests): (requests, on_chunk) for requests, on_chunk in self.untouched.values()}.values())

    def forget(self, requests: Sequence[Request]) -> None:
        """They are another link's."""
        with self.sending:
            for request in requests:
                self.callbacks.pop(request.request_id, None)

    def end(self, error: MachineError) -> None:
        """Tells what is in flight that it ends so."""
        with self.sending:
            self.is_leaving = True
            left, self.callbacks = self.callbacks, {}
        for request_id, on_chunk in left.items():
            on_chunk(Chunk(request_id, error=error))


class RemoteWorker:
    """The worker of an engine in another process, see `hosting.Worker`.

    Finds the engine when its model is loaded, again and again. What the engine refuses comes as a chunk with the error.

    Args:
        address: of the engine's door.
        model_name: of the streaming model, for errors.
        on_failure: called when `failure` is set and everybody in flight knows.

    Attributes:
        failure: the engine's process died.
    """

    def __init__(self, address: Path, model_name: str, on_failure: Callable[[], None] = lambda: None) -> None:
        self.failure: MachineError | None = None
        self._address, self._model_name, self._on_failure = address, model_name, on_failure
        self._change = threading.Condition()
        self._links: dict[_Link, threading.Thread] = {}
        self._current: _Link | None = None
        self._alone_since, self._num_looks = time.monotonic(), 0
        self._stops: dict[int, queue.SimpleQueue[TrtSpecError | None]] = {}
        self._numbers = itertools.count()
        self._is_closing = False
        self._finder = threading.Thread(target=self._find, name="finder", daemon=True)
        self._finder.start()

    @property
    def engine(self) -> EngineFacts:
        """What is known of the engine.

        Raises:
            MachineError: there is none.
        """
        facts = self._link().facts
        assert facts is not None
        return facts

    def submit_all(self, requests: Sequence[Request], on_chunk: OnChunk) -> None:
        """Sends requests to the engine; `on_chunk` gets every chunk of each, on the link's thread.

        Raises:
            MachineError: there is none.
        """
        while not (link := self._link()).submit(requests, on_chunk):
            self._lose(link)

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next step; unknown ids are ignored."""
        for link in list(self._links):
            if request_id in link.callbacks:
                link.touch(request_id)
                link.send("cancel", request_id)

    def stop(self, client_id: str) -> None:
        """Stops what runs under a client's id in the streaming model.

        Raises:
            RequestError: nothing does.
            MachineError: the engine's process does not answer.
        """
        number, answer = next(self._numbers), queue.SimpleQueue()
        self._stops[number] = answer
        try:
            if not self._link().send("stop", number, client_id):
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
        link = self._current
        if link is not None:
            link.send("count", outcome)

    def publish(self) -> None:
        """Nothing: the engine's own model publishes."""

    def drain(self, timeout_s: float | None = None) -> bool:
        """Waits until the requests in flight are done; False when the time ran out."""
        with self._change:
            return self._change.wait_for(lambda: not any(link.callbacks for link in self._links), timeout_s)

    def close(self) -> None:
        """Says goodbye; what is in flight still is cancelled there, and told so here."""
        self._is_closing = True
        for link in list(self._links):
            link.is_left.set()
        self._finder.join(ANSWER_S)
        for link, thread in list(self._links.items()):
            link.say_goodbye()
            thread.join(ANSWER_S)
            link.end(self._gone("the model was unloaded"))

    def _link(self) -> _Link:
        """The link for new requests; waits for one, but for a look only where there has been none for long."""
        with self._change:
            enough = self._num_looks + 2  # the first of them may have begun before now

            def is_decided() -> bool:
                is_late = time.monotonic() > self._alone_since + CONNECT_S
                return self._current is not None or self.failure is not None or (is_late and self._num_looks >= enough)

            self._change.wait_for(is_decided, CONNECT_S)
            if self._current is None:
                raise self.failure or MachineError(
                    f"the model {self._model_name}, which holds the engine, is not loaded", remedy="load it first"
                )
            return self._current

    def _lose(self, link: _Link) -> None:
        """Has another link found for new requests."""
        with self._change:
            if self._current is link:
                self._current, self._alone_since = None, time.monotonic()
            self._change.notify_all()
        link.is_left.set()

    def _gone(self, why: str) -> MachineError:
        return self.failure or MachineError(why, where=f"model {self._model_name}", remedy="send the request again")

    # --- the finder's thread ---

    def _find(self) -> None:
        while not self._is_closing and self.failure is None:
            try:
                link = _Link(Client(str(self._address), "AF_UNIX"))
            except OSError:
                with self._change:
                    self._num_looks += 1
                    self._change.notify_all()
                time.sleep(RETRY_S)
                continue
            thread = threading.Thread(target=self._serve, args=(link,), name="link", daemon=True)
            with self._change:
                self._links[link] = thread
            thread.start()
            if not self._is_closing:
                link.is_left.wait()
            if link.facts is None:
                time.sleep(RETRY_S)

    # --- a link's thread ---

    def _serve(self, link: _Link) -> None:
        is_farewell = self._listen(link) or link.is_retired or self._is_closing
        if link.facts is not None and not is_farewell:
            self.failure = MachineError(
                f"the Python process of model {self._model_name} died", remedy="see the server's log"
            )
        self._lose(link)
        if link.is_retired and not self._is_closing:
            for requests, on_chunk in link.unbegun():
                self._send_again(requests, on_chunk)
                link.forget(requests)
        link.end(self._gone("the engine went away"))
        with link.sending:
            link.connection.close()
        with self._change:
            del self._links[link]
            self._change.notify_all()
        if self.failure is not None:
            self._on_failure()

    def _send_again(self, requests: Sequence[Request], on_chunk: OnChunk) -> None:
        """To the engine that comes next: the one before took nothing in any more when these came."""
        try:
            self.submit_all(requests, on_chunk)
        except MachineError as error:
            for request in requests:
                on_chunk(Chunk(request.request_id, error=error))

    def _listen(self, link: _Link) -> bool:
        """Takes what the engine's process sends until it ends; whether that was meant to be."""
        try:
            while True:
                kind, *given = link.connection.recv()
                if kind == "goodbye":
                    return True
                getattr(self, f"_on_{kind}")(link, *given)
                if link.is_retired and not link.callbacks:
                    link.say_goodbye()
        except Exception:  # the connection has ended, or what comes is of no use
            return False

    def _on_facts(self, link: _Link, facts: EngineFacts) -> None:
        with self._change:
            link.facts, self._current = facts, link
            self._change.notify_all()

    def _on_chunk(self, link: _Link, chunk: Chunk) -> None:
        link.touch(chunk.request_id)
        take = link.callbacks.pop if chunk.is_last else link.callbacks.get
        on_chunk = take(chunk.request_id, None)
        if on_chunk is not None:
            on_chunk(chunk)
        if chunk.is_last:
            with self._change:
                self._change.notify_all()

    def _on_stopped(self, link: _Link, number: int, error: TrtSpecError | None) -> None:
        answer = self._stops.get(number)
        if answer is not None:
            answer.put(error)

    def _on_retired(self, link: _Link) -> None:
        link.leave()
        link.is_retired = True
        self._lose(link)
