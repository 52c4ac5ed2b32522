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
        self.tokenizer = Tokenizer.load(repository.parameters_of(args)["tokenizer_dir"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request."""
        return [respond(request, self._texts, pb_utils) for request in requests]

    def _texts(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"OUTPUT": engine_text.postprocess(arrays["TOKENS_BATCH"], arrays["SEQUENCE_LENGTH"], self.tokenizer)}
