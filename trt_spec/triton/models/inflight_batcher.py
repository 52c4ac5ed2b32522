"""`ensemble` or `tensorrt_llm_bls`: takes requests in inflight_batcher's names, for the streaming model's engine.

See triton.compat.requests for what becomes of them, and triton.host.forwarding for how. Triton refuses unary
inference on a model that may send several responses: so one of the two streams and the other answers once, or as
serve.decoupled_mode says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trt_spec.errors import RequestError, TrtSpecError
from trt_spec.runtime.request import Chunk
from trt_spec.triton.compat.requests import CompatServedRequest, in_compat_names, read
from trt_spec.triton.host.forwarding import ForwardingModel
from trt_spec.triton.host.hosting import parameters_of
from trt_spec.triton.isolation import arrays_of
from trt_spec.triton.served_request import ServedRequest


class TritonPythonModel(ForwardingModel):
    """Triton looks for this class by name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Starts serving."""
        config = json.loads(args["model_config"])
        self.streams = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
        self.forward(pb_utils, args)

    def read(self, request: Any) -> ServedRequest:
        """A request in inflight_batcher's names."""
        served = read(arrays_of(request.inputs()), parameters_of(request), request.request_id(), self._ids_of)
        if served.streaming and not self.streams:
            raise RequestError(
                "this model answers once",
                where="stream",
                remedy=f"stream from the model ensemble or {self.model_name}; serve.decoupled_mode says which stream",
            )
        return served

    def encode(self, chunks: Sequence[Chunk], served: ServedRequest, prompt: str) -> dict[str, np.ndarray]:
        """The tensors of one response in this layout's names."""
        arrays = super().encode(chunks, served, prompt)
        return served.outputs(arrays) if isinstance(served, CompatServedRequest) else arrays

    def told(self, error: Exception) -> Exception:
        """What went wrong in the engine, in this layout's names."""
        return in_compat_names(error) if isinstance(error, TrtSpecError) else error

    def _ids_of(self, word: str) -> list[int]:
        return self.tokenizer.encode(word, add_special_tokens=False)
