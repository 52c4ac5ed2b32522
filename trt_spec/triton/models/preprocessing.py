"""Text to token ids, for the inflight_batcher layout, see trt_spec.triton.trtllm.engine_text."""

from __future__ import annotations

import functools
from typing import Any

import triton_python_backend_utils as pb_utils

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.triton import repository
from trt_spec.triton.isolation import respond
from trt_spec.triton.trtllm import engine_text


class TritonPythonModel:
    """Triton looks for this class by name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the target's tokenizer, after the engine was found to be the one that the repository is for."""
        parameters = repository.parameters_of(args)
        repository.check_digest(parameters)
        self.preprocess = functools.partial(
            engine_text.preprocess,
            tokenizer=Tokenizer.load(parameters["tokenizer_dir"]),
            vocab_size=int(parameters["vocab_size"]),
            add_special_tokens=parameters["add_special_tokens"] == "true",
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request."""
        return [respond(request, self.preprocess, pb_utils) for request in requests]
