"""What every emitted model does, whichever engine answers: takes requests, sends deltas, looks after clients.

Three threads. Triton's calls `execute`, which checks a request, hands it to the engine's worker and returns at once.
The worker's thread runs the engine; its callback only puts chunks into a queue. The courier's thread takes them out,
sends them, looks whether clients went away, and publishes metrics: it waits for Triton so that the engine never does.

Whoever asks `is_cancelled` of a request must not overlap with whoever sends its last response: server 2.51 then reads
freed memory and crashes. Hence one courier does both, for every request that it has once seen.

Triton tells of a client that left at once over gRPC, and at the next delta over HTTP. Over HTTP without streaming it
does not tell at all: such a request runs to its end, unless it is stopped by its id.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from trt_spec.errors import MachineError, RequestError, TrtSpecError
from trt_spec.runtime.request import Chunk, Request
from trt_spec.triton.codec import ServedRequest, decode_request, encode_chunks, merge
from trt_spec.triton.errortext import to_response, triton_code
from trt_spec.triton.host.watch import PING, end_server
from trt_spec.triton.rpc.server import EngineDoor, EngineFacts, door_address
from trt_spec.triton.samples import engine_requests

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


class Answer:
    """Where the responses to one request go. A client that is gone is no reason to stop serving the others."""

    def __init__(self, pb_utils: Any, request: Any) -> None:
        self.pb, self.sender = pb_utils, request.get_response_sender()

    def send(self, response: Any, *, is_last: bool = True) -> None:
        """Sends one response; the last one says so."""
        flags = self.pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
        try:
            self.sender.send(response, flags=flags)
        except Exception:
            self.pb.Logger.log_warn(f"trt_spec: a response could not be sent: {traceback.format_exc(limit=1)}")

    def fail(self, error: Exception) -> None:
        """Ends the request with an error, under the code that becomes the HTTP or gRPC status."""
        self.send(to_response(error, self.pb))


@dataclass
class Flight:
    """One request between `execute` and its last response.

    Attributes:
        number: in the order of arrival.
        request_ids: of its sequences in the engine, in their order.
        prompt: text to put before each sequence's.
        chunks: of each sequence, in a stream only the last one.
    """

    number: int
    request_ids: tuple[str, ...]
    client_id: str
    request: Any
    answer: Answer
    served: ServedRequest
    prompt: str
    chunks: list[list[Chunk]] = field(default_factory=list)
    is_cancelled: bool = False
    is_answered: bool = False

    @property
    def is_done(self) -> bool:
        return all(chunks and chunks[-1].is_last for chunks in self.chunks)


class Metrics(Protocol):
    """Where requests are counted, and what else is published is published."""

    def count_request(self, outcome: str) -> None: ...
    def publish(self) -> None: ...


class ServedModel:
    """Base of the emitted models; they find their worker and call `host`."""

    def host(self, pb_utils: Any, worker: Worker, metrics: Metrics) -> None:
        """Starts serving.

        Args:
            pb_utils: Triton's module of the stub process.
            worker: the started worker of the engine.
            metrics: what the courier publishes.
        """
        self.pb, self.worker, self.metrics = pb_utils, worker, metrics
        self.flights: dict[int, Flight] = {}
        self.num_polled = 0
        self.is_ending = False
        self.ids = itertools.count(1)
        self.outbox: queue.SimpleQueue[tuple[Flight, Chunk] | Callable[[], None] | str] = queue.SimpleQueue()
        self.courier = threading.Thread(target=self._carry, name="courier", daemon=True)
        self.courier.start()

    def execute(self, requests: list[Any]) -> None:
        """Takes requests in; their responses come later, from the courier."""
        for request in requests:
            answer = Answer(self.pb, request)
            try:
                self._take(request, answer)
            except Exception as error:  # whatever it is, this client has to be told and the others served
                self.metrics.count_request(_outcome(error))
                self.outbox.put(lambda answer=answer, error=error: answer.fail(error))

    def finalize(self) -> None:
        """Finishes what was accepted, within reason, and stops the threads."""
        self.worker.drain(DRAIN_S)
        self.worker.close()
        self.outbox.put("close")
        self.courier.join()

    # --- what a model may do in its own way ---

    @property
    def is_busy(self) -> bool:
        """Whether there is something to look after between two things to carry."""
        return bool(self.flights)

    tokenizer: Any = None  # the target's; without one requests come as ids only

    def read(self, request: Any) -> ServedRequest:
        """A request as the engine understands it; raises what is to be told to its client."""
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        return decode_request(tensors, parameters_of(request), request.request_id())

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

    def _take(self, request: Any, answer: Answer) -> None:
        client_id = request.request_id()
        if parameters_of(request).get(PING):
            self._refuse_if_failed()
            self.outbox.put(lambda: answer.send(self._response([Chunk(client_id)], ServedRequest())))
            return
        served = self.read(request)
        if served.is_stop:
            self.stop(client_id)
            self.outbox.put(lambda: answer.send(self._response([Chunk(client_id)], served)))
            return
        try:
            self._begin(request, answer, served)
        except TrtSpecError as error:
            raise self.told(error) from None

    def _begin(self, request: Any, answer: Answer, served: ServedRequest) -> None:
        input_ids = served.input_ids if served.input_ids is not None else self._encode(served.text)
        number, limits = next(self.ids), self.worker.engine.limits
        limits.refuse_overload(0, served.n)  # before there are that many
        prepared = engine_requests(served, f"{number}", input_ids)
        ids = tuple(item.request_id for item in prepared)
        flight = Flight(
            number, ids, request.request_id(), request, answer, served, self._prompt(served), [[] for _ in ids]
        )
        self.flights[number] = flight
        try:
            self.worker.submit_all(prepared, lambda chunk: self.outbox.put((flight, chunk)))
        except Exception as error:  # the courier may be asking about this request already, so it has to end it
            self.outbox.put((flight, Chunk(ids[0], error=error)))
        self.outbox.put("wake")

    def _refuse_if_failed(self) -> None:
        if self.worker.failure is not None:
            raise MachineError("the engine has failed", got=str(self.worker.failure), remedy="restart the server")
        self.worker.engine  # noqa: B018  an engine in another process may not be there

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
        if not served.echo_prompt:
            return ""
        if served.text is not None:
            return served.text
        return self.tokenizer.decode(list(served.input_ids)) if self.tokenizer is not None else ""

    def _cancel(self, flight: Flight) -> None:
        for request_id in flight.request_ids:
            self.worker.cancel(request_id)

    # --- the courier's thread ---

    def _carry(self) -> None:
        next_tick = 0.0
        while True:
            item = self._next_item(next_tick)
            if isinstance(item, tuple):
                self._deliver(*item)
            elif callable(item):  # an answer without a flight; two threads that send at once have crashed the stub
                item()
            if time.monotonic() >= next_tick or not self.is_busy:
                self._tick()
                next_tick = time.monotonic() + TICK_S
            if item == "close":
                return

    def _next_item(self, next_tick: float) -> tuple[Flight, Chunk] | Callable[[], None] | str | None:
        """The next thing to carry; waits until the next tick while there is something to do, else without limit."""
        try:
            if not self.is_busy:
                return self.outbox.get()
            return self.outbox.get(timeout=max(next_tick - time.monotonic(), 0.0))
        except queue.Empty:
            return None

    def _tick(self) -> None:
        try:
            self._poll_clients()
            self.metrics.publish()
            if self.worker.failure is not None and not self.flights and not self.is_ending:
                self.is_ending = True
                end_server(self.pb, self._why_failed())
        except Exception:  # the courier has to live on; a client or a metric less is the smaller evil
            self.pb.Logger.log_error(f"trt_spec: {traceback.format_exc()}")

    def _why_failed(self) -> str:
        error = self.worker.failure
        return (
            error.what if isinstance(error, TrtSpecError) else f"the engine has failed: {type(error).__name__}: {error}"
        )

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
        if flight.is_answered:  # the rest of its sequences, after an error of one
            return
        try:
            self._pass_on(flight, chunk)
        except Exception as error:  # the courier has to live on for the others
            self._end(flight, _outcome(error))
            flight.answer.fail(self.told(error))
            self._cancel(flight)

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
        flight.answer.send(response, is_last=is_done)

    def _end(self, flight: Flight, outcome: str) -> None:
        """Before the last response: nobody may ask about the request after it."""
        flight.is_answered = True
        self.flights.pop(flight.number, None)
        self.metrics.count_request(outcome)

    def _response(self, chunks: Sequence[Chunk], served: ServedRequest, prompt: str = "") -> Any:
        tensors = [self.pb.Tensor(name, array) for name, array in self.encode(chunks, served, prompt).items()]
        return self.pb.InferenceResponse(output_tensors=tensors)


class StreamingModel(ServedModel):
    """Base of the emitted models that hold an engine; they load it and call `host_engine`."""

    def host_engine(
        self, pb_utils: Any, worker: Worker, tokenizer: Any, metrics: Metrics, args: dict[str, str]
    ) -> None:
        """Starts serving, and opens the engine's door for the other models of the server.

        Args:
            pb_utils, worker, metrics: see `host`.
            tokenizer: the target's, or None where requests come as ids only.
            args: as Triton hands them to `initialize`.

        Raises:
            MachineError: the door cannot be opened.
        """
        self.tokenizer = tokenizer
        self.host(pb_utils, worker, metrics)
        self.door = EngineDoor(
            door_address(args["model_repository"], args["model_name"]),
            worker,
            EngineFacts(worker.engine.limits, has_tokenizer=tokenizer is not None),
            self,
        )

    def finalize(self) -> None:
        """Finishes what was accepted, the other models' requests too; then closes the door."""
        self.door.retire()
        super().finalize()
        self.door.close()

    @property
    def is_busy(self) -> bool:
        """Whether the engine has anything to do: its metrics change."""
        return bool(self.flights) or self.worker.num_in_flight > 0

    def wake(self) -> None:
        """The engine has something to do for another model."""
        self.outbox.put("wake")

    def count(self, outcome: str) -> None:
        """A request of another model has ended."""
        self.metrics.count_request(outcome)
        self.outbox.put("wake")

    def lost(self) -> None:
        """The process of another model ended without a word."""
        end_server(self.pb, "the Python process of another of its models died")

    def log(self, text: str) -> None:
        """Something went wrong that no client can be told."""
        self.pb.Logger.log_error(f"trt_spec: {text}")


def parameters_of(request: Any) -> dict[str, Any]:
    """The parameters of one request; the generate endpoints put every JSON key there that is no input."""
    return json.loads(request.parameters() or "{}")


def _outcome(error: Exception | None) -> str:
    return "failed" if error is None or triton_code(error) == "INTERNAL" else "refused"
