"""Text to token ids, for the inflight_batcher layout, see trt_spec.triton.trtllm.engine_text."""

from __future__ import annotations

from pathlib import Path
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
        directory = Path(repository.resolve(parameters["tokenizer_dir"], args["model_repository"]))
        repository.check_digest(directory.parent, parameters)
        self.tokenizer, self.vocab_size = Tokenizer.load(directory), int(parameters["vocab_size"])
        self.add_special_tokens = parameters["add_special_tokens"] == "true"

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        return respond(
            lambda: engine_text.preprocess(
                {tensor.name(): tensor.as_numpy() for tensor in request.inputs()},
                self.tokenizer,
                self.vocab_size,
                add_special_tokens=self.add_special_tokens,
            ),
            pb_utils,
        )
