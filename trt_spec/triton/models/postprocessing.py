"""Token ids to text, for the inflight_batcher layout, see trt_spec.triton.trtllm.engine_text.

In a stream it sees the ids of one response only, so a character whose bytes are spread over two responses shows as
U+FFFD; `tensorrt_llm_bls` and the unary path do not have that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.triton import repository
from trt_spec.triton.isolation import respond
from trt_spec.triton.trtllm import engine_text


class TritonPythonModel:
    """Triton looks for this class by name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the target's tokenizer."""
        place = repository.parameters_of(args)["tokenizer_dir"]
        self.tokenizer = Tokenizer.load(repository.resolve(place, args["model_repository"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        def texts() -> dict[str, np.ndarray]:
            arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            lengths = arrays["SEQUENCE_LENGTH"]
            return {"OUTPUT": engine_text.postprocess(arrays["TOKENS_BATCH"], lengths, self.tokenizer)}

        return respond(texts, pb_utils)
