"""The unary alias: answers plain inference by asking the streaming model, see trt_spec.triton.forwarding.

Triton refuses unary inference on a model that may send several responses, hence this second model with the same inputs
and outputs. It also looks after the streaming model's process, see trt_spec.triton.watch.

Written by `trt-spec emit`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import triton_python_backend_utils as pb_utils

from trt_spec.errors import RequestError, TrtSpecError
from trt_spec.triton.codec import refuse_unknown
from trt_spec.triton.forwarding import Flight, ForwardingModel
from trt_spec.triton.watch import DEAD, PING, PING_S, end_server


class TritonPythonModel(ForwardingModel):
    """Triton looks for this class by name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Reads the streaming model's name and how many requests it holds at most."""
        self.forward(pb_utils, args)
        self.is_over = threading.Event()
        self.watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.watcher.start()

    def finalize(self) -> None:
        """Waits for the requests in flight and stops the threads."""
        self.is_over.set()
        self.watcher.join()
        super().finalize()

    def answers(self, flight: Flight) -> Iterator[tuple[Any, bool]]:
        """The streaming model's only response to this request."""
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
                yield self._copy(self._stop_for(flight)), True
                return
        for response in self.ask(flight.inner_id, inputs, list(request.requested_output_names())):
            yield self._copy(response), True
            return

    def _watch(self) -> None:
        """Asks the streaming model now and then; ends the server where its process is dead."""
        while not self.is_over.wait(PING_S):
            try:
                next(self.ask("", [], ["text_output"], {PING: True}))
            except TrtSpecError as error:
                if DEAD in str(error):
                    end_server(pb_utils, f"the process of model {self.model_name} died")
                    return
            except Exception:  # while the server stops
                pb_utils.Logger.log_verbose("trt_spec: the streaming model cannot be asked")

    def _stop_for(self, asking: Flight) -> Any:
        """Stops what was sent under the asking request's id, here or failing that in the streaming model."""
        client_id = asking.request.request_id()
        if not client_id:  # it would mean everything that was sent without one
            raise RequestError("stop needs a request id", where="stop", remedy="send the id of the request to stop")
        with self.change:
            others = [flight for flight in self.flights.values() if flight is not asking]
        here = [flight.inner_id for flight in others if flight.request.request_id() == client_id]
        stopped, refusals = [], []
        for inner_id in here or [client_id]:
            try:
                stopped.append(self.stop(inner_id))
            except TrtSpecError as error:
                refusals.append(error)
        if not stopped:
            raise refusals[0]
        return stopped[0]

    def _copy(self, response: Any) -> Any:
        """A response of the streaming model as one of this model."""
        return pb_utils.InferenceResponse(output_tensors=response.output_tensors())
