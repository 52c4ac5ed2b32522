"""What every model does that answers by asking the streaming model (BLS), for many clients at once.

`execute` returns at once; a pool thread per request in flight forwards it and answers through the request's response
sender. Measured on server 2.51 with 64 requests from 16 clients to a model that takes 125 ms: this way 0.52 s (the
streaming model itself: 0.52 s); an asyncio loop 1.29 s, since iterating over a BLS answer blocks it; `async def
execute` 7.2 s, one request after the other. An ensemble of Triton's becomes decoupled itself and refuses unary
inference too.

A client that goes away is noticed by polling, and its request is stopped in the streaming model by id.
"""

from __future__ import annotations

import json
import threading
import traceback
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trt_spec.errors import OverloadedError, TrtSpecError
from trt_spec.triton.contract import OUTPUTS
from trt_spec.triton.errortext import to_error, to_response

POLL_S = 0.05
MAX_POLLS = 32  # clients looked at per round; each look costs a round trip to the server of about 0.1 ms


@dataclass
class Flight:
    """One request between `execute` and its last response; `inner_id` is its id in the streaming model.

    `lock` keeps `is_cancelled` away from a request while its response is sent and after: server 2.51 then reads freed
    memory and crashes.
    """

    inner_id: str
    request: Any
    sender: Any
    is_stopped: bool = False
    is_answered: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class ForwardingModel:
    """Base of the emitted models that forward; they define `answers`."""

    def forward(self, pb_utils: Any, args: dict[str, str]) -> dict[str, str]:
        """Starts forwarding, and returns the model's parameters.

        Args:
            pb_utils: Triton's module of the stub process.
            args: as Triton hands them to `initialize`.
        """
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.pb, self.model_name = pb_utils, parameters["streaming_model"]
        self.capacity = int(parameters["max_requests"])
        # A few more threads than the engine takes requests, so that the engine's own refusal is what clients see.
        self.pool = ThreadPoolExecutor(self.capacity + 4, thread_name_prefix="forward")
        self.flights: dict[str, Flight] = {}
        self.change = threading.Condition()
        self.is_closing = False
        self.poller = threading.Thread(target=self._poll, name="poller", daemon=True)
        self.poller.start()
        return parameters

    def answers(self, flight: Flight) -> Iterator[tuple[Any, bool]]:
        """The responses to a request, each with whether it is the last one; what it raises is answered too."""
        raise NotImplementedError

    def execute(self, requests: list[Any]) -> None:
        """Takes requests in; their responses come from the pool."""
        for request in requests:
            flight = Flight(uuid.uuid4().hex, request, request.get_response_sender())
            with self.change:
                is_full = len(self.flights) >= self.capacity + 4
                if not is_full:
                    self.flights[flight.inner_id] = flight
                    self.change.notify()
            if is_full:
                error = OverloadedError(
                    "too many requests in flight", expected=f"at most {self.capacity}", remedy="retry"
                )
                self._send(flight, to_response(error, self.pb), is_last=True)
            else:
                self.pool.submit(self._serve, flight)

    def finalize(self) -> None:
        """Waits for the requests in flight and stops the threads."""
        with self.change:
            self.is_closing = True
            self.change.notify()
        self.poller.join()
        self.pool.shutdown()

    def ask(
        self, inner_id: str, inputs: list[Any], outputs: list[str], parameters: dict[str, Any] | None = None
    ) -> Iterator[Any]:
        """The streaming model's responses that say anything.

        Raises:
            TrtSpecError: the streaming model refused or failed; of the kind that it was there.
        """
        inner = self.pb.InferenceRequest(
            model_name=self.model_name,
            request_id=inner_id,
            requested_output_names=outputs,
            inputs=inputs,
            parameters=parameters or {},
        )
        for response in inner.exec(decoupled=True):
            if response.has_error():
                raise to_error(response.error().message(), TrtSpecError)
            if response.output_tensors():
                yield response

    def stop(self, inner_id: str) -> Any:
        """Stops what runs under an id in the streaming model; its response. Raises where nothing does."""
        stop = [self.pb.Tensor("stop", np.array([True]))]
        return next(self.ask(inner_id, stop, [output.name for output in OUTPUTS]))

    # --- the pool's threads ---

    def _serve(self, flight: Flight) -> None:
        try:
            for response, is_last in self.answers(flight):
                self._send(flight, response, is_last)
                if is_last:
                    return
            raise TrtSpecError("the streaming model ended without a last response", where=self.model_name)
        except Exception as error:  # the client has to be told whatever it is
            self._send(flight, to_response(error, self.pb), is_last=True)

    def _send(self, flight: Flight, response: Any, is_last: bool) -> None:
        if is_last:  # its place is free before its client can know
            with self.change:
                self.flights.pop(flight.inner_id, None)
        try:
            with flight.lock:
                flight.is_answered = is_last
                flight.sender.send(response, flags=self.pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0)
        except Exception:
            self.pb.Logger.log_warn(f"trt_spec: a response could not be sent: {traceback.format_exc(limit=1)}")

    # --- the poller's thread ---

    def _poll(self) -> None:
        """Looks for clients that went away, while there are any."""
        while True:
            with self.change:
                self.change.wait_for(lambda: self.flights or self.is_closing)
                if self.is_closing:
                    return
                flights = list(self.flights.values())[:MAX_POLLS]
                for flight in flights:  # to the end of the queue
                    self.flights[flight.inner_id] = self.flights.pop(flight.inner_id)
            for flight in flights:
                self._poll_one(flight)
            with self.change:
                self.change.wait_for(lambda: self.is_closing, timeout=POLL_S)

    def _poll_one(self, flight: Flight) -> None:
        try:
            with flight.lock:
                is_gone = not flight.is_answered and not flight.is_stopped and flight.request.is_cancelled()
            if is_gone:
                self.stop(flight.inner_id)
                flight.is_stopped = True
        except TrtSpecError:
            pass  # it has not reached the engine yet: the next round finds it there
        except Exception:  # the poller has to live on
            self.pb.Logger.log_error(f"trt_spec: {traceback.format_exc()}")
