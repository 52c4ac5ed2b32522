"""The unary alias: answers plain inference by asking the streaming model, for many clients at once.

Triton refuses unary inference on a model that may send several responses, hence this second model with the same inputs
and outputs. `execute` returns at once; a pool thread per request in flight forwards it (BLS) and answers through the
request's response sender. Measured on server 2.51 with 64 requests from 16 clients to a model that takes 125 ms: this
way 0.52 s (the streaming model itself: 0.52 s); an asyncio loop 1.29 s, since iterating over a BLS answer blocks it;
`async def execute` 7.2 s, one request after the other. An ensemble becomes decoupled itself and refuses too.

A client that goes away is noticed by polling, and its request is stopped in the streaming model by id.

Written by `trt-spec emit`.
"""

from __future__ import annotations

import json
import threading
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trt_spec.errors import OverloadedError, RequestError, TrtSpecError
from trt_spec.triton.codec import refuse_unknown
from trt_spec.triton.contract import OUTPUTS
from trt_spec.triton.errortext import to_error, to_response

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
POLL_S = 0.05
MAX_POLLS = 32  # clients looked at per round; each look costs a round trip to the server of about 0.1 ms


@dataclass
class Flight:
    """One request between `execute` and its response; `inner_id` is its id in the streaming model.

    `lock` keeps `is_cancelled` away from a request while its response is sent and after: server 2.51 then reads freed
    memory and crashes.
    """

    inner_id: str
    request: Any
    sender: Any
    is_stopped: bool = False
    is_answered: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class TritonPythonModel:
    """See the module's docstring; Triton looks for this class by name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Reads the streaming model's name and how many requests it holds at most."""
        parameters = {
            key: value["string_value"] for key, value in json.loads(args["model_config"])["parameters"].items()
        }
        self.model_name = parameters["streaming_model"]
        self.capacity = int(parameters["max_requests"])
        # A few more threads than the engine takes requests, so that the engine's own refusal is what clients see.
        self.pool = ThreadPoolExecutor(self.capacity + 4, thread_name_prefix="forward")
        self.flights: dict[str, Flight] = {}
        self.change = threading.Condition()
        self.is_closing = False
        self.poller = threading.Thread(target=self._poll, name="poller", daemon=True)
        self.poller.start()

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
                self._answer(flight, to_response(error, pb_utils))
            else:
                self.pool.submit(self._serve, flight)

    def finalize(self) -> None:
        """Waits for the requests in flight and stops the threads."""
        with self.change:
            self.is_closing = True
            self.change.notify()
        self.poller.join()
        self.pool.shutdown()

    def _serve(self, flight: Flight) -> None:
        try:
            response = self._forward(flight)
        except Exception as error:  # the client has to be told whatever it is
            response = to_response(error, pb_utils)
        with self.change:
            del self.flights[flight.inner_id]
        self._answer(flight, response)

    def _forward(self, flight: Flight) -> Any:
        """The streaming model's only response to this request, or its error."""
        request = flight.request
        inputs = request.inputs()
        parameters = json.loads(request.parameters() or "{}")
        refuse_unknown({tensor.name(): tensor for tensor in inputs}, parameters, request.request_id())
        for tensor in inputs:
            if tensor.name() == "streaming" and tensor.as_numpy().any():
                raise RequestError(
                    "this model answers once", where="streaming", remedy=f"stream from the model {self.model_name}"
                )
            if tensor.name() == "stop" and tensor.as_numpy().any():
                return self._stop_for(flight)
        inner = pb_utils.InferenceRequest(
            model_name=self.model_name,
            request_id=flight.inner_id,
            requested_output_names=list(request.requested_output_names()),
            inputs=inputs,
        )
        for response in inner.exec(decoupled=True):
            if response.has_error() or response.output_tensors():
                return _copy(response)
        raise TrtSpecError("the streaming model sent no response", where=self.model_name)

    def _answer(self, flight: Flight, response: Any) -> None:
        try:
            with flight.lock:
                flight.is_answered = True
                flight.sender.send(response, flags=FINAL)
        except Exception:
            pb_utils.Logger.log_warn(f"trt_spec: a response could not be sent: {traceback.format_exc(limit=1)}")

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
                # A client may go before its request has reached the engine; then the next round finds it there.
                flight.is_stopped = not self._stop(flight.inner_id).has_error()
        except Exception:  # the poller has to live on
            pb_utils.Logger.log_error(f"trt_spec: {traceback.format_exc()}")

    def _stop_for(self, asking: Flight) -> Any:
        """Stops what was sent under the asking request's id, here or failing that in the streaming model."""
        client_id = asking.request.request_id()
        if not client_id:  # it would mean everything that was sent without one
            raise RequestError("stop needs a request id", where="stop", remedy="send the id of the request to stop")
        with self.change:
            others = [flight for flight in self.flights.values() if flight is not asking]
        here = [flight.inner_id for flight in others if flight.request.request_id() == client_id]
        responses = [self._stop(inner_id) for inner_id in (here or [client_id])]
        good = [response for response in responses if not response.has_error()]
        return _copy((good or responses)[0])

    def _stop(self, request_id: str) -> Any:
        """The streaming model's answer to a stop request."""
        stop = pb_utils.InferenceRequest(
            model_name=self.model_name,
            request_id=request_id,
            requested_output_names=[output.name for output in OUTPUTS],
            inputs=[pb_utils.Tensor("stop", np.array([True]))],
        )
        return next(
            response for response in stop.exec(decoupled=True) if response.has_error() or response.output_tensors()
        )


def _copy(response: Any) -> Any:
    """A response of the streaming model as one of this model."""
    if response.has_error():
        return to_response(to_error(response.error().message(), TrtSpecError), pb_utils)
    return pb_utils.InferenceResponse(output_tensors=response.output_tensors())
