"""The client's side of the contract: parameters to what goes over HTTP or gRPC, and answers back to chunks."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from trt_spec.errors import MachineError, RequestError
from trt_spec.runtime.request import Chunk, Completion
from trt_spec.triton.contract import CLIENT_NAMES, INPUT_BY_NAME, NUMPY_TYPES, OUTPUT_BY_NAME, WIRE_TYPES, Input

TextOrIds = str | Sequence[int]
_SURROGATE = re.compile("[\ud800-\udfff]")  # alone, as JSON may spell one, it is no character, and UTF-8 has none
_LENGTH = np.dtype("<u4")  # before each string in Triton's raw contents
# Outputs whose name in `Completion` is the same.
_COMPLETION_NAMES = frozenset(field.name for field in fields(Completion)) & set(OUTPUT_BY_NAME)
# Metrics that not every engine tells.
_MAY_BE_UNTOLD = (
    "num_drafts",
    "accepted_per_position",
    "total_draft_tokens",
    "total_accepted_draft_tokens",
    "first_scheduled_time_ns",
)


# --- requests ------------------------------------------------------------------------------------------------------


def request_values(prompt: TextOrIds | None, parameters: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Input tensors by name, as lists of Python values of the right type.

    Args:
        prompt: text or token ids; None for requests that carry none.
        parameters: by the contract's names without their prefix, and `logit_bias` as a mapping from id to value. What
            is None is left out.

    Raises:
        RequestError: an unknown name, or a value that its data type cannot hold.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    if "logit_bias" in given:
        bias = given.pop("logit_bias")
        given |= {"logit_bias_ids": list(bias.keys()), "logit_bias_values": list(bias.values())}
    if prompt is not None:
        given["text_input" if isinstance(prompt, str) else "input_ids"] = prompt
    values = {}
    for name, value in given.items():
        tensor = CLIENT_NAMES.get(name) or INPUT_BY_NAME.get(name)
        if tensor is None:
            near = difflib.get_close_matches(name, CLIENT_NAMES, 1)
            raise RequestError(
                f"unknown request parameter {name}",
                where=name,
                remedy=f"did you mean {near[0]}?" if near else "see trt_spec.triton.contract for all names",
            )
        is_one = isinstance(value, str | bytes) or not isinstance(value, Iterable)
        items = [_checked(tensor, item) for item in ([value] if is_one else value)]
        if items or not tensor.is_list:
            values[tensor.name] = items
    return values


def _checked(tensor: Input, value: Any) -> Any:
    kind, is_number = tensor.data_type, isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if kind == "STRING" and isinstance(value, str) and not _SURROGATE.search(value):
        return value
    if kind == "BOOL" and isinstance(value, bool | np.bool_):
        return bool(value)
    if kind == "FP32" and is_number:
        return _float(value)
    if kind in ("INT32", "INT64", "UINT64") and is_number and _float(value).is_integer():
        bounds = np.iinfo(NUMPY_TYPES[kind])
        if bounds.min <= value <= bounds.max:
            return int(value)
    raise RequestError(
        f"invalid request parameter {tensor.short_name}",
        where=tensor.short_name,
        got=ascii(value[:80]) if isinstance(value, str) else value,
        expected={"BOOL": "true or false", "STRING": "text in valid Unicode"}.get(kind, kind),
    )


def _float(value: Any) -> float:
    """As a float; an integer beyond all floats is infinite, which the server refuses."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def to_generate(values: Mapping[str, list[Any]], request_id: str) -> dict[str, Any]:
    """The JSON body of the generate endpoints."""
    body: dict[str, Any] = {name: items if len(items) != 1 else items[0] for name, items in values.items()}
    return {**body, "id": request_id} if request_id else body


def to_infer(values: Mapping[str, list[Any]], request_id: str) -> dict[str, Any]:
    """The JSON body of the infer endpoint."""
    inputs = [
        {"name": name, "datatype": WIRE_TYPES[INPUT_BY_NAME[name].data_type], "shape": [len(items)], "data": items}
        for name, items in values.items()
    ]
    return {"inputs": inputs, **({"id": request_id} if request_id else {})}


def to_proto(model_name: str, values: Mapping[str, list[Any]], request_id: str) -> Any:
    """The gRPC request, a `ModelInferRequest`."""
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model_name, id=request_id)
    for name, items in values.items():
        kind = INPUT_BY_NAME[name].data_type
        request.inputs.add(name=name, datatype=WIRE_TYPES[kind], shape=[len(items)])
        if kind == "STRING":
            encoded = [item.encode() for item in items]
            raw = b"".join(np.array(len(text), _LENGTH).tobytes() + text for text in encoded)
        else:
            raw = np.array(items, NUMPY_TYPES[kind]).tobytes()
        request.raw_input_contents.append(raw)
    return request


# --- responses -----------------------------------------------------------------------------------------------------


def from_generate(body: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Output tensors by name from the JSON of a generate endpoint, which writes one value without its list."""
    return {
        name: value if isinstance(value, list) else [value] for name, value in body.items() if name in OUTPUT_BY_NAME
    }


def from_infer(body: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Output tensors by name from the JSON of the infer endpoint."""
    return {output["name"]: output["data"] for output in body["outputs"]}


def from_proto(response: Any) -> dict[str, list[Any]]:
    """Output tensors by name from a `ModelInferResponse`."""
    return {
        output.name: _strings(raw)
        if output.datatype == "BYTES"
        else np.frombuffer(raw, NUMPY_TYPES[output.datatype]).tolist()
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def _strings(raw: bytes) -> list[str]:
    strings, position = [], 0
    while position < len(raw):
        length = int(np.frombuffer(raw, _LENGTH, 1, position)[0])
        position += _LENGTH.itemsize
        strings.append(raw[position : position + length].decode())
        position += length
    return strings


class ChunkReader:
    """Turns the responses of one request into chunks, and counts across them.

    Args:
        request_id: put into the chunks.
        values: what was asked for; tells a stop id from a stop string of digits.
    """

    def __init__(self, request_id: str, values: Mapping[str, list[Any]]) -> None:
        self._request_id = request_id
        self._stop_strings = frozenset(values.get("sampling_param_stop", ()))
        self._num_open = int(values.get("sampling_param_n", [1])[0])
        self._num_output_tokens: Counter[int] = Counter()

    @property
    def is_done(self) -> bool:
        """Whether every sequence has ended."""
        return self._num_open <= 0

    def read(self, outputs: Mapping[str, list[Any]]) -> Chunk:
        """The chunk of one response, which is of one sequence; MachineError where it breaks the contract."""
        missing = [name for name in ("text_output", "output_ids") if name not in outputs]
        if missing:
            raise MachineError(
                "the server's answer is not of this contract",
                got=", ".join(outputs) or "nothing",
                expected=", ".join(missing),
                remedy="serve it with a model repository that trt-spec emit wrote",
            )
        index = int(outputs.get("sequence_index", [0])[0])
        self._num_output_tokens[index] += len(outputs["output_ids"])
        is_last = "num_input_tokens" in outputs
        self._num_open -= is_last
        return Chunk(
            self._request_id,
            text="".join(outputs["text_output"]),
            token_ids=list(outputs["output_ids"]),
            logprobs=list(outputs["logprobs"]) if "logprobs" in outputs else None,
            token_origins=list(outputs.get("token_origins", ())),
            completion=self._completion(outputs, self._num_output_tokens[index]) if is_last else None,
            sequence_index=index,
        )

    def _completion(self, outputs: Mapping[str, list[Any]], num_output_tokens: int) -> Completion:
        """What the request switched off (return_perf_metrics, return_finish_reason) reads 0, [] or "".

        What the engine behind the server does not tell reads None: it is missing where other metrics are there.
        """
        empty: dict[str, Any] = {"finish_reason": "", "accepted_per_position": [], "cumulative_logprob": None}
        if "arrival_time_ns" in outputs:
            empty |= dict.fromkeys(_MAY_BE_UNTOLD)
        named = {
            name: (outputs[name] if OUTPUT_BY_NAME[name].is_list else outputs[name][0])
            if name in outputs
            else empty.get(name, 0)
            for name in _COMPLETION_NAMES
        }
        named["num_output_tokens"] = num_output_tokens
        named["stop_reason"] = self._stop_reason(outputs.get("stop_reason", [""])[0])
        return Completion(**named)

    def _stop_reason(self, text: str) -> str | int | None:
        if not text:
            return None
        return text if text in self._stop_strings or not text.isdecimal() else int(text)
