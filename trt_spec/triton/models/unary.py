"""The unary alias: answers plain inference with the streaming model's engine, see trt_spec.triton.host.forwarding.

Triton refuses unary inference on a model that may send several responses, hence this second model with the same inputs
and outputs.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from trt_spec.errors import RequestError
from trt_spec.triton.host.forwarding import ForwardingModel
from trt_spec.triton.served_request import ServedRequest


class TritonPythonModel(ForwardingModel):
    """Triton looks for this class by name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Starts serving."""
        self.forward(pb_utils, args)

    def read(self, request: Any) -> ServedRequest:
        """A request that wants one answer."""
        served = super().read(request)
        if served.streaming:
            raise RequestError(
                "this model answers once", where="streaming", remedy=f"stream from the model {self.model_name}"
            )
        return served
