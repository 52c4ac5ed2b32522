"""`ensemble` or `tensorrt_llm_bls`: takes requests in the older layout's names and asks the streaming model.

See trt_spec.triton.older_layout for what becomes of them, and trt_spec.triton.forwarding for how. Triton refuses unary
inference on a model that may send several responses: so one of the two streams and the other answers once, or as
serve.decoupled_mode says.

Written by `trt-spec emit`. Runs in the environment in which trt_spec is installed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import RequestError, TrtSpecError
from trt_spec.triton import repository
from trt_spec.triton.contract import INPUT_BY_NAME, NUMPY_TYPES, OUTPUTS
from trt_spec.triton.errortext import to_error, to_text
from trt_spec.triton.forwarding import Flight, ForwardingModel
from trt_spec.triton.older_layout import Answer, OlderRequest, decode, older_names

NAMES = [output.name for output in OUTPUTS]


class TritonPythonModel(ForwardingModel):
    """Triton looks for this class by name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Reads the streaming model's name; the tokenizer is loaded for the first request that needs one."""
        parameters = self.forward(pb_utils, args)
        self.tokenizer_dir = repository.resolve(parameters["tokenizer_dir"], args["model_repository"])
        config = json.loads(args["model_config"])
        self.streams = bool(config.get("model_transaction_policy", {}).get("decoupled", False))

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The target's."""
        return Tokenizer.load(self.tokenizer_dir)

    def answers(self, flight: Flight) -> Iterator[tuple[Any, bool]]:
        """The streaming model's responses in this layout's names."""
        request = flight.request
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        parameters = json.loads(request.parameters() or "{}")
        asked = decode(
            arrays, parameters, request.request_id(), lambda text: self.tokenizer.encode(text, add_special_tokens=False)
        )
        if asked.is_stream and not self.streams:
            raise RequestError(
                "this model answers once",
                where="stream",
                remedy=f"stream from the model ensemble or {self.model_name}; serve.decoupled_mode says which stream",
            )
        answer = Answer(asked)
        for response in self._ask(flight.inner_id, asked):
            outputs = answer.outputs({tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()})
            tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items()]
            yield pb_utils.InferenceResponse(output_tensors=tensors), answer.is_done

    def _ask(self, inner_id: str, asked: OlderRequest) -> Iterator[Any]:
        inputs = [
            pb_utils.Tensor(name, np.array(_encoded(items), NUMPY_TYPES[INPUT_BY_NAME[name].data_type]))
            for name, items in asked.values.items()
        ]
        try:
            yield from self.ask(inner_id, inputs, NAMES)
        except TrtSpecError as error:
            raise to_error(older_names(to_text(error))) from None


def _encoded(items: list[Any]) -> list[Any]:
    return [item.encode() if isinstance(item, str) else item for item in items]
