"""Request tensors to a checked request, and chunks of the engine to response tensors. NumPy only, no Triton.

Everything that the server itself does not check is checked here: one prompt and only one, one value where one is meant,
finite numbers, valid UTF-8, no parameter that nobody knows. Bounds of sampling parameters belong to `SamplingParams`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from trt_spec.errors import CapabilityError, RequestError
from trt_spec.runtime.request import Chunk, SamplingParams
from trt_spec.triton.contract import CLIENT_NAMES, INPUT_BY_NAME, NUMPY_TYPES, OUTPUT_BY_NAME, PREFIX, Input
from trt_spec.triton.endings import completion_values
from trt_spec.triton.served_request import ServedRequest

_SHORT_NAMES = {short: tensor.name for short, tensor in CLIENT_NAMES.items()}
_SAMPLING_FIELDS = frozenset(field.name for field in fields(SamplingParams))
# What a served request says under the input's own name, beside the sampling parameters.
_FLAGS = {field.name: CLIENT_NAMES[field.name] for field in fields(ServedRequest) if field.name in CLIENT_NAMES}
_FLAGS["streaming"] = INPUT_BY_NAME["streaming"]


# --- requests ---


def decode_request(
    tensors: Mapping[str, np.ndarray], parameters: Mapping[str, Any], request_id: str = ""
) -> ServedRequest:
    """Checks and reads one request.

    Args:
        tensors: the inputs that were sent, by name, as Triton hands them over (strings as an object array of bytes).
        parameters: the request's. The HTTP generate endpoints put every JSON key there that is no input.
        request_id: the client's; empty where it gave none.

    Raises:
        RequestError: a parameter that is unknown, malformed or out of bounds; `where` or the text names it.
        CapabilityError: a parameter that is known and not offered.
    """
    refuse_unknown(tensors, parameters, request_id, INPUT_BY_NAME, _SHORT_NAMES)
    return request_of({name: read_input(INPUT_BY_NAME[name], array) for name, array in tensors.items()}, request_id)


def request_of(values: dict[str, Any], request_id: str = "") -> ServedRequest:
    """The request that inputs of the contract, read and by name, make together; raises as `decode_request`."""
    if values.pop("stop", False):
        return _stop_request(values, request_id)
    text, input_ids = _prompt(values)
    n = _num_sequences(values)
    flags = {name: values.pop(tensor.name) for name, tensor in _FLAGS.items() if tensor.name in values}
    served = ServedRequest(text, input_ids, n=n, wants_logprobs=values.get(f"{PREFIX}logprobs", False), **flags)
    given = {name.removeprefix(PREFIX): value for name, value in values.items() if INPUT_BY_NAME[name].only is None}
    # The engine adds log-probabilities up only where it computes them.
    given["logprobs"] = served.wants_logprobs or served.return_cumulative_logprob
    return replace(served, params=sampling_params(given))


def refuse_unknown(
    tensors: Iterable[str],
    parameters: Mapping[str, Any],
    request_id: str,
    inputs: Mapping[str, Input],
    others: Mapping[str, str],
) -> None:
    """Refuses what a model does not have, by name, with the nearest name that it has.

    Args:
        inputs: that it has.
        others: what clients may call them in place of their names, to the names.

    Raises:
        RequestError: see above.
    """
    for name in parameters:
        if name == "id" and parameters[name] == request_id:
            continue  # generate's JSON key for the request id; Triton hands it on both ways
        near = [name] if name in others else difflib.get_close_matches(name, (*inputs, *others), 1)
        known = "remove it; the model's metadata lists the inputs"
        remedy = f"did you mean the input {others.get(near[0], near[0])}?" if near else known
        raise RequestError(f"unknown request parameter {name}", where=name, remedy=remedy)
    for name in tensors:
        if name not in inputs:
            raise RequestError(f"unknown input {name}", where=name)


def _stop_request(values: Mapping[str, Any], request_id: str) -> ServedRequest:
    if not request_id:
        raise RequestError("stop needs a request id", where="stop", remedy="send the id of the request to stop")
    others = sorted(set(values) - {"streaming", "text_input"})  # llmapi's clients send the prompt again
    if others:
        raise RequestError("stop goes with no other input", where="stop", got=", ".join(others))
    return ServedRequest(is_stop=True)


def _prompt(values: dict[str, Any]) -> tuple[str | None, tuple[int, ...] | None]:
    text, ids = values.pop("text_input", None), values.pop("input_ids", None)
    if text is None and ids is None:
        raise RequestError("the request has no prompt", where="text_input", expected="text_input or input_ids")
    if text is not None and ids is not None:
        raise RequestError(
            "the request has two prompts", where="text_input", expected="text_input or input_ids, not both"
        )
    if ids is not None and not ids:
        raise RequestError("the prompt is empty", where="input_ids", expected="at least one token id")
    return text, ids


def _num_sequences(values: dict[str, Any]) -> int:
    n, best_of = values.pop(f"{PREFIX}n", 1), values.pop(f"{PREFIX}best_of", None)
    if n < 1:
        raise _bad(INPUT_BY_NAME[f"{PREFIX}n"], n, "at least 1")
    if best_of not in (None, n):
        raise CapabilityError(
            f"request parameter {PREFIX}best_of is not supported beyond {PREFIX}n",
            where=f"{PREFIX}best_of",
            got=best_of,
            expected=n,
            remedy=f"ask for all of them with {PREFIX}n and choose among them",
        )
    return n


def read_input(tensor: Input, array: np.ndarray) -> Any:
    """The Python value of one input, after its data type and shape were checked; raises as `decode_request`."""
    if tensor.refused:
        raise CapabilityError(
            f"request parameter {tensor.name} is not supported", where=tensor.name, remedy=tensor.refused
        )
    if not _has_type(array, tensor):
        raise _bad(tensor, f"data type {array.dtype}", tensor.data_type)
    if array.ndim != 1:  # no batch axis: the model takes one request at a time
        raise _bad(tensor, f"shape {list(array.shape)}", "one axis")
    values = [_scalar(tensor, item) for item in array.tolist()]
    if tensor.is_list and tensor.name not in ("text_input", "image_url"):
        return tuple(values)
    if len(values) != 1:
        raise _bad(tensor, f"{len(values)} values", "one value")
    if tensor.only is not None and values[0] != tensor.only:
        raise CapabilityError(
            f"request parameter {tensor.name} is not supported beyond {tensor.only}",
            where=tensor.name,
            got=values[0],
            expected=tensor.only,
            remedy=tensor.doc,
        )
    return values[0]


def _has_type(array: np.ndarray, tensor: Input) -> bool:
    if tensor.data_type == "STRING":
        return array.dtype.kind in "OSU"
    return array.dtype == NUMPY_TYPES[tensor.data_type]


def _scalar(tensor: Input, item: Any) -> Any:
    if tensor.data_type == "STRING":
        try:
            return item.decode() if isinstance(item, bytes) else str(item)
        except UnicodeDecodeError:
            raise _bad(tensor, item[:40], "UTF-8") from None
    if tensor.data_type == "FP32":
        if not math.isfinite(item):
            raise _bad(tensor, item, "a finite number")
        # The client wrote 0.8 and the wire carries the nearest FP32. Its shortest decimal is 0.8 again, so a served
        # request samples from exactly the law that the same request does in process.
        return float(str(np.float32(item)))
    return item


def _bad(tensor: Input, got: object, expected: str) -> RequestError:
    return RequestError(f"invalid request parameter {tensor.name}", where=tensor.name, got=got, expected=expected)


def sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters from the contract's names without their prefix; what is not given keeps its default.

    As in TensorRT-LLM, a request that narrows the distribution (top_k, top_p, min_p) without naming a temperature means
    temperature 1. Taking the default of 0 would drop what was asked for in silence.

    Raises:
        RequestError: a value out of bounds, or a name that is no sampling parameter.
    """
    given = dict(given)
    ids, values = given.pop("logit_bias_ids", ()), given.pop("logit_bias_values", ())
    if len(ids) != len(values) or len(set(ids)) != len(ids):
        raise RequestError(
            "invalid request parameter logit_bias",
            where=f"{PREFIX}logit_bias_ids",
            got=f"{len(ids)} ids ({len(set(ids))} different), {len(values)} values",
            expected="one value for each id, no id twice",
        )
    if ids:
        given["logit_bias"] = dict(zip(ids, values, strict=True))
    if "temperature" not in given and not {"top_k", "top_p", "min_p"}.isdisjoint(given):
        given["temperature"] = 1.0
    unknown = sorted(set(given) - _SAMPLING_FIELDS)
    if unknown:
        raise RequestError(f"unknown sampling parameter {unknown[0]}", where=unknown[0])
    return SamplingParams(**given)


# --- responses ---


def merge(chunks: list[Chunk]) -> Chunk:
    """All chunks of one finished request as one, for an answer without streaming."""
    last = chunks[-1]
    has_logprobs = any(chunk.logprobs is not None for chunk in chunks)
    return Chunk(
        request_id=last.request_id,
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token for chunk in chunks for token in chunk.token_ids],
        logprobs=[value for chunk in chunks for value in chunk.logprobs or ()] if has_logprobs else None,
        token_origins=[origin for chunk in chunks for origin in chunk.token_origins],
        completion=last.completion,
        error=last.error,
        sequence_index=last.sequence_index,
    )


def encode_chunks(chunks: Sequence[Chunk], served: ServedRequest, prompt: str = "") -> dict[str, np.ndarray]:
    """The output tensors of one response, each in the data type that the contract declares.

    Args:
        chunks: a delta of one sequence, or all of each sequence. The ids, log-probabilities and origins of several
            sequences follow each other, num_output_tokens says where one ends; counts and times are of all together.
        served: the request, for what it wants to be told.
        prompt: text to put before each chunk's.
    """
    values: dict[str, Any] = {
        "text_output": [prompt + chunk.text for chunk in chunks],
        "output_ids": [token for chunk in chunks for token in chunk.token_ids],
        "num_output_tokens": [len(chunk.token_ids) for chunk in chunks],
        "sequence_index": [chunk.sequence_index for chunk in chunks],
        "token_origins": [origin for chunk in chunks for origin in chunk.token_origins],
    }
    if served.wants_logprobs:
        values["logprobs"] = [value for chunk in chunks for value in chunk.logprobs or ()]
    completions = [chunk.completion for chunk in chunks if chunk.completion is not None]
    if completions:
        values |= completion_values(completions, served)
    return {name: _array(name, value) for name, value in values.items()}


def _array(name: str, value: Any) -> np.ndarray:
    output = OUTPUT_BY_NAME[name]
    items = list(value) if output.is_list or output.per_sequence else [value]
    if output.data_type == "STRING":
        items = [item.encode() for item in items]
    return np.array(items, dtype=NUMPY_TYPES[output.data_type])
