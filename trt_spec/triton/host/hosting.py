"""What every emitted model does, whichever engine answers: takes requests, sends deltas, looks after clients.

Three threads. Triton's calls `execute`, which checks a request, hands it to the engine's worker and returns at once.
The worker's thread runs the engine; its callback only puts chunks into a queue. The sender's thread takes them out,
sends them, looks whether clients went away, and publishes metrics: it waits for Triton so that the engine never does.

`is_cancelled` of a request must not be asked while its last response is sent: server 2.51 then reads freed memory and
crashes. Hence one thread does both, and all sending: two threads that send at once have crashed the stub.

Triton tells of a client that left at once over gRPC, and at the next delta over HTTP. Over HTTP without streaming it
does not tell at all: such a request runs to its end, unless it is stopped by its id.
"""

from __future__ import annotations

import functools
import itertools
import json
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from trt_spec.errors import RequestError
from trt_spec.runtime.request import Chunk, Request
from trt_spec.runtime.worker import engine_failed
from trt_spec.triton.codec import decode_request, encode_chunks, merge
from trt_spec.triton.errortext import to_response, triton_code
from trt_spec.triton.host.watch import PING, end_server
from trt_spec.triton.isolation import arrays_of, isolated, send
from trt_spec.triton.served_request import ServedRequest, engine_requests

TICK_S = 0.02  # between two looks at clients that may have gone, and two updates of the metrics
MAX_POLLS = 32  # clients looked at per tick; each look costs a round trip to the server of about 0.1 ms
DRAIN_S = 5.0  # Triton waits for requests in flight before it unloads a model; this is for what it gave up on


class Worker(Protocol):
    """The way to an engine: what `EngineWorker`, `LlmWorker` and `RemoteWorker` have in common."""

    failure: BaseException | None

    def submit_all(self, requests: Sequence[Request], on_chunk: Callable[[Chunk], None]) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def drain(self, timeout_s: float | None = None) -> bool: ...
    def close(self) -> None: ...


@dataclass
class Flight:
    """One request between `execute` and its last response.

    Attributes:
        served: what it asks for, once it was read.
        request_ids: of its sequences in the engine, in their order.
        prompt: text to put before each sequence's.
        chunks: of each sequence, in a stream only the last one.
    """

    number: int
    request: Any
    sender: Any
    served: ServedRequest | None = None
    request_ids: tuple[str, ...] = ()
    prompt: str = ""
    chunks: list[list[Chunk]] = field(default_factory=list)
    is_cancelled: bool = False
    is_answered: bool = False

    @property
    def client_id(self) -> str:
        return self.request.request_id()

    @property
    def is_done(self) -> bool:
        return all(chunks and chunks[-1].is_last for chunks in self.chunks)


class Metrics(Protocol):
    """Where requests are counted, and what else is published is published."""

    def count_request(self, outcome: str) -> None: ...
    def publish(self) -> None: ...


class HostedModel:
    """Base of the emitted models; they find their worker and call `host`."""

    def host(self, pb_utils: Any, worker: Worker, metrics: Metrics) -> None:
        """Starts serving with Triton's module of the stub process, a started worker, and what the sender publishes."""
        self.pb, self.worker, self.metrics = pb_utils, worker, metrics
        self.flights: dict[int, Flight] = {}
        self.num_polled = 0
        self.is_ending = self.is_closed = False
        self.ids = itertools.count(1)
        self.outbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.sender = threading.Thread(target=self._send_all, name="sender", daemon=True)
        self.sender.start()

    def execute(self, requests: list[Any]) -> None:
        """Takes requests in; their responses come later, from the sender's thread."""
        for request in requests:
            flight = Flight(next(self.ids), request, request.get_response_sender())
            later = functools.partial(self._later, self._fail, flight)
            isolated(functools.partial(self._take, flight), later)

    def finalize(self) -> None:
        """Finishes what was accepted, within reason, and stops the threads."""
        self.worker.drain(DRAIN_S)
        self.worker.close()
        self._later(setattr, self, "is_closed", True)
        self.sender.join()

    def wake(self) -> None:
        """Has the sender's thread look whether there is something to do."""
        self._later(lambda: None)

    # --- what a model may do in its own way ---

    @property
    def is_busy(self) -> bool:
        """Whether there is something to look after between two things to send."""
        return bool(self.flights)

    tokenizer: Any = None  # the target's; without one requests come as ids only

    def read(self, request: Any) -> ServedRequest:
        """A request as the engine understands it; raises what is to be told to its client."""
        return decode_request(arrays_of(request.inputs()), parameters_of(request), request.request_id())

    def encode(self, chunks: Sequence[Chunk], served: ServedRequest, prompt: str) -> dict[str, np.ndarray]:
        """The tensors of one response, see `codec.encode_chunks`."""
        return encode_chunks(chunks, served, prompt)

    def told(self, error: Exception) -> Exception:
        """What went wrong after `read`, in the words of this model's clients."""
        return error

    def stop(self, client_id: str) -> None:
        """Stops what runs under a client's id; raises RequestError where nothing does."""
        found = [flight for flight in list(self.flights.values()) if flight.client_id == client_id]
        if not found:
            raise RequestError("no request in flight has this id", where="stop", got=client_id)
        for flight in found:
            self._cancel(flight)

    # --- Triton's thread ---

    def _take(self, flight: Flight) -> None:
        if parameters_of(flight.request).get(PING):
            if self.worker.failure is not None:
                raise engine_failed(self.worker.failure)
            self.worker.engine  # noqa: B018  an engine in another process may not be there
            self._later(self._acknowledge, flight)
            return
        flight.served = self.read(flight.request)
        if flight.served.is_stop:
            self.stop(flight.client_id)
            self._later(self._acknowledge, flight)
        else:
            self._begin(flight, flight.served)

    def _begin(self, flight: Flight, served: ServedRequest) -> None:
        input_ids = served.input_ids if served.input_ids is not None else self._encode(served.text)
        self.worker.engine.limits.refuse_overload(0, served.n)  # before there are that many
        requests = engine_requests(served, f"{flight.number}", input_ids)
        flight.request_ids = tuple(request.request_id for request in requests)
        flight.prompt, flight.chunks = self._prompt(served), [[] for _ in requests]
        self.flights[flight.number] = flight
        self.worker.submit_all(requests, functools.partial(self._later, self._deliver, flight))
        self.wake()

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise RequestError(
                "this engine has no tokenizer",
                where="text_input",
                remedy="send input_ids, or build it with a tokenizer",
            )
        self.worker.engine.limits.refuse_long_text(self.tokenizer.fewest_tokens(text))
        return self.tokenizer.encode(text)

    def _prompt(self, served: ServedRequest) -> str:
        """The text to put before the answer; empty unless asked for."""
        if served.exclude_input_from_output:
            return ""
        if served.text is not None:
            return served.text
        return self.tokenizer.decode(list(served.input_ids)) if self.tokenizer is not None else ""

    def _cancel(self, flight: Flight) -> None:
        for request_id in flight.request_ids:
            self.worker.cancel(request_id)

    def _later(self, work: Callable[..., None], *arguments: Any) -> None:
        """Has the sender's thread do something."""
        self.outbox.put(functools.partial(work, *arguments))

    # --- the sender's thread ---

    def _send_all(self) -> None:
        next_tick = 0.0
        while not self.is_closed:
            with suppress(queue.Empty):  # waits until the next tick while there is something to do, else without limit
                work = self.outbox.get(timeout=max(next_tick - time.monotonic(), 0.0) if self.is_busy else None)
                isolated(work, self.log)
            if time.monotonic() >= next_tick or not self.is_busy:
                isolated(self._tick, self.log)
                next_tick = time.monotonic() + TICK_S

    def log(self, error: Exception) -> None:
        """What went wrong that no client can be told."""
        self.pb.Logger.log_error(f"trt_spec: {''.join(traceback.format_exception(error))}")

    def _tick(self) -> None:
        self._poll_clients()
        self.metrics.publish()
        if self.worker.failure is not None and not self.flights and not self.is_ending:
            self.is_ending = True
            error = engine_failed(self.worker.failure)
            end_server(self.pb, f"{error.what}: {error.got}")

    def _poll_clients(self) -> None:
        """Cancels the requests whose clients are gone; takes turns where there are many."""
        flights = list(self.flights.values())
        start = self.num_polled % max(len(flights), 1)
        self.num_polled += MAX_POLLS
        for flight in (flights[start:] + flights[:start])[:MAX_POLLS]:
            if not flight.is_cancelled and flight.request.is_cancelled():
                flight.is_cancelled = True
                self._cancel(flight)

    def _deliver(self, flight: Flight, chunk: Chunk) -> None:
        if not flight.is_answered:  # else it is the rest of its sequences, after an error of one
            isolated(lambda: self._pass_on(flight, chunk), functools.partial(self._fail, flight))

    def _pass_on(self, flight: Flight, chunk: Chunk) -> None:
        if chunk.error is not None:
            raise chunk.error
        chunk.sequence_index = flight.request_ids.index(chunk.request_id)
        mine, prompt = flight.chunks[chunk.sequence_index], flight.prompt
        is_first = not mine
        mine.append(chunk)
        is_done = flight.is_done
        if flight.served.streaming:
            del mine[:-1]
            response = self._response([chunk], flight.served, prompt if is_first else "")
        elif is_done:
            response = self._response([merge(chunks) for chunks in flight.chunks], flight.served, prompt)
        else:
            return
        if is_done:
            reasons = [chunks[-1].completion.finish_reason for chunks in flight.chunks]
            self._end(flight, "cancelled" if "cancelled" in reasons else reasons[0])
        send(flight.sender, response, self.pb, is_last=is_done)

    def _acknowledge(self, flight: Flight) -> None:
        """Answers a request that asks for no tokens."""
        send(flight.sender, self._response([Chunk(flight.client_id)], ServedRequest()), self.pb)

    def _fail(self, flight: Flight, error: Exception) -> None:
        """Ends a request with an error, under the code that becomes the HTTP or gRPC status."""
        self._end(flight, _outcome(error))
        told = error if flight.served is None else self.told(error)
        send(flight.sender, to_response(told, self.pb), self.pb)
        self._cancel(flight)

    def _end(self, flight: Flight, outcome: str) -> None:
        """Before the last response: nobody may ask about the request after it."""
        flight.is_answered = True
        self.flights.pop(flight.number, None)
        self.metrics.count_request(outcome)

    def _response(self, chunks: Sequence[Chunk], served: ServedRequest, prompt: str = "") -> Any:
        tensors = [self.pb.Tensor(name, array) for name, array in self.encode(chunks, served, prompt).items()]
        return self.pb.InferenceResponse(output_tensors=tensors)


def parameters_of(request: Any) -> dict[str, object]:
    """The parameters of one request; the generate endpoints put every JSON key there that is no input."""
    return json.loads(request.parameters() or "{}")


def _outcome(error: Exception | None) -> str:
    return "failed" if error is None or triton_code(error) == "INTERNAL" else "refused"
