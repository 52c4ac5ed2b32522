"""Requests in the names of TensorRT-LLM's inflight_batcher layout to the contract's, and answers back. Pure.

`ensemble` and `tensorrt_llm_bls` take what the models of those names took, of all versions together, and hand it to the
streaming model's engine; there is no second one. Arrays have a batch axis of one. What this layout means and the
contract does not is decided here:

- without top_k and top_p the most probable token is taken, whatever the temperature;
- end_id alone ends the text, in place of the tokenizer's own ids; −1 ends it never;
- a seed that is left out is a fresh one, not a constant.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trt_spec.errors import CapabilityError, RequestError, TrtSpecError
from trt_spec.triton.codec import decode_request
from trt_spec.triton.compat.names import COMPAT_NAMES, INPUT_BY_NAME, ONE_OF, RENAMED
from trt_spec.triton.contract import INPUT_BY_NAME as CONTRACT_INPUTS
from trt_spec.triton.contract import NUMPY_TYPES, PREFIX
from trt_spec.triton.errortext import to_error, to_text
from trt_spec.triton.served_request import ServedRequest

NEVER = -1e4  # added to a logit: exp of it is 0
Encode = Callable[[str], list[int]]


@dataclass
class CompatRequest:
    """One request, read.

    Attributes:
        values: the contract's inputs by name, as lists of Python values.
    """

    values: dict[str, list[Any]]
    wants_log_probs: bool = False
    wants_num_input_tokens: bool = False
    wants_num_output_tokens: bool = False


# --- requests ---


@dataclass(frozen=True)
class CompatServedRequest(ServedRequest):
    """A request as the engine understands it, and what turns its responses into this layout's."""

    translator: Translator | None = None


def read(
    arrays: Mapping[str, np.ndarray], parameters: Mapping[str, Any], request_id: str, encode: Encode
) -> CompatServedRequest:
    """Reads one request into the contract's; see `decode`, which it takes the same arguments as, for what it raises."""
    asked = decode(arrays, parameters, request_id, encode)
    tensors = {}
    for name, items in asked.values.items():
        encoded = [item.encode() if isinstance(item, str) else item for item in items]
        tensors[name] = np.array(encoded, NUMPY_TYPES[CONTRACT_INPUTS[name].data_type])
    try:
        served = decode_request(tensors, {})
    except TrtSpecError as error:
        raise in_compat_names(error) from None
    return CompatServedRequest(**vars(served), translator=Translator(asked))


def decode(
    arrays: Mapping[str, np.ndarray], parameters: Mapping[str, Any], request_id: str, encode: Encode
) -> CompatRequest:
    """Reads one request.

    Args:
        arrays: the inputs that were sent, by name, with a batch axis of one.
        parameters: the request's; the generate endpoints put every JSON key there that is no input.
        request_id: the client's.
        encode: text to ids, without special tokens; for words that have to be ids.

    Raises:
        RequestError, CapabilityError: names what is unknown, malformed, or not offered.
    """
    _refuse_unknown(parameters, request_id)
    given = {name: _items(name, array) for name, array in arrays.items()}
    _refuse(given)
    values: dict[str, list[Any]] = {INPUT_BY_NAME[name].to: items for name, items in given.items() if _passes(name)}
    log_probs, metrics = _flag(given, "return_log_probs"), _flag(given, "return_perf_metrics")
    values |= {
        f"{PREFIX}logprobs": [log_probs],
        f"{PREFIX}return_perf_metrics": [metrics],
        "return_finish_reason": [False],
        "return_stop_reason": [False],
    }
    values |= _sampling(given) | _end(given) | _drafting(given) | _bias(given, encode)
    stop_words = [word for word in given.get("stop_words", ()) if word]
    if stop_words:
        values[f"{PREFIX}stop"] = stop_words
    return CompatRequest(
        values,
        wants_log_probs=log_probs,
        wants_num_input_tokens=_flag(given, "return_num_input_tokens"),
        wants_num_output_tokens=_flag(given, "return_num_output_tokens"),
    )


def _passes(name: str) -> bool:
    return bool(INPUT_BY_NAME[name].to)


def _refuse_unknown(parameters: Mapping[str, Any], request_id: str) -> None:
    for name in parameters:
        if name == "id" and parameters[name] == request_id:
            continue
        near = [COMPAT_NAMES[to] for to in (name, PREFIX + name) if to in COMPAT_NAMES]
        near = near or difflib.get_close_matches(name, INPUT_BY_NAME, 1)
        remedy = f"did you mean {near[0]}?" if near else "remove it; the model's metadata lists the inputs"
        raise RequestError(f"unknown request parameter {name}", where=name, remedy=remedy)


def _items(name: str, array: np.ndarray) -> list[Any]:
    """The values of one input, without its batch axis."""
    if name not in INPUT_BY_NAME:
        raise RequestError(f"unknown input {name}", where=name)
    if INPUT_BY_NAME[name].refused:
        return list(array.flat)
    if len(array) != 1:
        raise CapabilityError(
            "this model takes one prompt a request",
            where=name,
            got=f"a batch of {len(array)}",
            remedy="send one request for each prompt; the engine batches them",
        )
    items = [_text(name, item) if isinstance(item, bytes) else item for item in array.reshape(-1).tolist()]
    if len(items) != 1 and not _is_list(name):
        raise RequestError(
            f"invalid request parameter {name}", where=name, got=f"{len(items)} values", expected="one value"
        )
    return items


def _is_list(name: str) -> bool:
    return name in ("stop_words", "bad_words", "embedding_bias_words", "embedding_bias_weights")


def _text(name: str, item: bytes) -> str:
    try:
        return item.decode()
    except UnicodeDecodeError:
        raise RequestError(
            f"invalid request parameter {name}", where=name, got=repr(item[:40]), expected="UTF-8"
        ) from None


def _refuse(given: Mapping[str, list[Any]]) -> None:
    for name, items in given.items():
        item = INPUT_BY_NAME[name]
        if item.refused and not (item.only_false and not any(items)):
            raise CapabilityError(f"request parameter {name} is not supported", where=name, remedy=item.refused)
    for one, other in ONE_OF:
        if one in given and other in given:
            raise RequestError(f"{one} and {other} mean the same", where=other, remedy="send one of them")


def _flag(given: Mapping[str, list[Any]], name: str) -> bool:
    return bool(given.get(name, [False])[0])


def _sampling(given: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Temperature, top_k and top_p as this layout means them."""
    top_k, top_p = given.get("top_k", [0])[0], given.get("top_p", [0.0])[0]
    if (top_k == 0 and top_p == 0.0) or top_k == 1:
        return {f"{PREFIX}temperature": [0.0]}
    values = {f"{PREFIX}temperature": given.get("temperature", [1.0])}
    values |= {f"{PREFIX}top_k": [top_k]} if top_k != 0 else {}
    return values | ({f"{PREFIX}top_p": [top_p]} if top_p != 0.0 else {})


def _end(given: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    if "end_id" not in given:
        return {}
    end_id = given["end_id"][0]
    ends = {f"{PREFIX}stop_token_ids": [end_id]} if end_id != -1 else {}
    return {f"{PREFIX}ignore_eos": [True], **ends}


def _drafting(given: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    if "num_draft_tokens" not in given:
        return {}
    number = given["num_draft_tokens"][0]
    return {"speculation": [False]} if number == 0 else {"max_draft_len": [number]}


def _bias(given: Mapping[str, list[Any]], encode: Encode) -> dict[str, list[Any]]:
    """Bad words and biased words as one bias for each id."""
    words, weights = given.get("embedding_bias_words", []), given.get("embedding_bias_weights", [])
    if len(words) != len(weights):
        raise RequestError(
            "embedding bias words and weights do not match",
            where="embedding_bias_words, embedding_bias_weights",
            got=f"{len(words)} words, {len(weights)} weights",
            expected="one weight for each word",
        )
    bias: dict[int, float] = {}
    for word, weight in zip(words, weights, strict=True):
        for token in encode(word):
            bias[token] = bias.get(token, 0.0) + weight
    for word in filter(None, given.get("bad_words", ())):
        ids = encode(word)
        if len(ids) != 1:
            raise CapabilityError(
                "a bad word of several tokens is not supported",
                where="bad_words",
                got=f"{word!r}, {len(ids)} tokens",
                expected="one token",
                remedy="leave it out, or check the text",
            )
        bias[ids[0]] = NEVER
    if not bias:
        return {}
    return {f"{PREFIX}logit_bias_ids": list(bias), f"{PREFIX}logit_bias_values": list(bias.values())}


def in_compat_names(error: TrtSpecError) -> TrtSpecError:
    """An error in the contract's names as one in the names that the client used."""
    text = to_text(error)
    for contract_name, name in COMPAT_NAMES.items():
        if contract_name != "text_input":
            text = text.replace(contract_name, name)
    return to_error(text)


# --- answers ---


@dataclass
class Translator:
    """Turns the streaming model's responses to one request into this layout's, and counts across them."""

    request: CompatRequest
    log_probs: dict[int, float] = field(default_factory=dict)
    num_tokens: dict[int, int] = field(default_factory=dict)

    def outputs(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One response: its arrays by name, with a batch axis of one.

        Args:
            arrays: the streaming model's response.
        """
        indices = arrays["sequence_index"].tolist()
        counts = arrays["num_output_tokens"].tolist()
        for index, count in zip(indices, counts, strict=True):
            self.num_tokens[index] = self.num_tokens.get(index, 0) + count
        outputs: dict[str, Any] = {
            "text_output": arrays["text_output"],
            "sequence_index": np.array(indices, np.int32),
            "batch_index": np.zeros(1, np.int32),
        }
        if self.request.wants_log_probs:
            outputs |= self._log_probs(indices, counts, arrays["logprobs"])
        if self.request.wants_num_output_tokens:
            outputs["num_output_tokens"] = np.array([self.num_tokens[index] for index in indices], np.int32)
        if "num_input_tokens" in arrays and self.request.wants_num_input_tokens:
            outputs["num_input_tokens"] = arrays["num_input_tokens"]
        outputs |= {name: arrays[to] for name, to in RENAMED.items() if to in arrays}
        return {name: array[None] for name, array in outputs.items()}

    def _log_probs(self, indices: list[int], counts: list[int], flat: np.ndarray) -> dict[str, np.ndarray]:
        rows = np.zeros((len(indices), max(counts)), np.float32)
        for row, part in zip(rows, np.split(flat, np.cumsum(counts)[:-1]), strict=True):
            row[: len(part)] = part
        for index, row in zip(indices, rows, strict=True):
            self.log_probs[index] = self.log_probs.get(index, 0.0) + float(row.sum(dtype=np.float64))
        return {
            "output_log_probs": rows,
            "cum_log_probs": np.array([self.log_probs[index] for index in indices], np.float32),
        }
