"""Requests in the names of TensorRT-LLM's inflight_batcher layout to the contract's, and answers back. Pure.

`ensemble` and `tensorrt_llm_bls` take what the models of those names took, of all versions together, and hand it to the
streaming model's engine; there is no second one. Arrays have a batch axis of one. What this layout means and the
contract does not is decided here:

- without top_k and top_p the most probable token is taken, whatever the temperature;
- end_id alone ends the text, in place of the tokenizer's own ids; −1 ends it never;
- a seed that is left out is a fresh one, not a constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trt_spec.errors import CapabilityError, RequestError, TrtSpecError
from trt_spec.triton.codec import read_input, refuse_unknown, request_of
from trt_spec.triton.compat.tensors import COMPAT_NAMES, INPUT_BY_NAME, ONE_OF, RENAMED, SAME
from trt_spec.triton.contract import PREFIX
from trt_spec.triton.errortext import to_error, to_text
from trt_spec.triton.served_request import ServedRequest

NEVER = -1e4  # added to a logit: exp of it is 0
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class CompatServedRequest(ServedRequest):
    """A request as the engine understands it, which is answered in this layout's names.

    Attributes:
        wants_num_input_tokens, wants_num_output_tokens: whether to send them.
        log_probs, num_tokens: sums so far, by sequence.
    """

    wants_num_input_tokens: bool = False
    wants_num_output_tokens: bool = False
    log_probs: Counter[int] = field(default_factory=Counter)
    num_tokens: Counter[int] = field(default_factory=Counter)

    def outputs(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One response: its arrays by name, with a batch axis of one.

        Args:
            arrays: the streaming model's response.
        """
        indices, counts = arrays["sequence_index"].tolist(), arrays["num_output_tokens"].tolist()
        for index, count in zip(indices, counts, strict=True):
            self.num_tokens[index] += count
        outputs: dict[str, Any] = {
            "text_output": arrays["text_output"],
            "sequence_index": np.array(indices, np.int32),
            "batch_index": np.zeros(1, np.int32),
        }
        if self.wants_logprobs:
            outputs |= self._log_probs(indices, counts, arrays["logprobs"])
        if self.wants_num_output_tokens:
            outputs["num_output_tokens"] = np.array([self.num_tokens[index] for index in indices], np.int32)
        if "num_input_tokens" in arrays and self.wants_num_input_tokens:
            outputs["num_input_tokens"] = arrays["num_input_tokens"]
        outputs |= {name: arrays[to] for name, to in RENAMED.items() if to in arrays}
        return {name: array[None] for name, array in outputs.items()}

    def _log_probs(self, indices: list[int], counts: list[int], flat: np.ndarray) -> dict[str, np.ndarray]:
        rows = np.zeros((len(indices), max(counts)), np.float32)
        for index, row, part in zip(indices, rows, np.split(flat, np.cumsum(counts)[:-1]), strict=True):
            row[: len(part)] = part
            self.log_probs[index] += float(row.sum(dtype=np.float64))
        return {
            "output_log_probs": rows,
            "cum_log_probs": np.array([self.log_probs[index] for index in indices], np.float32),
        }


def read(
    arrays: Mapping[str, np.ndarray], parameters: Mapping[str, Any], request_id: str, encode: Encode
) -> CompatServedRequest:
    """Reads one request.

    Args:
        arrays: the inputs that were sent, by name, with a batch axis of one.
        parameters: the request's; the generate endpoints put every JSON key there that is no input.
        request_id: the client's.
        encode: text to ids, without special tokens; for words that have to be ids.

    Raises:
        RequestError, CapabilityError: names what is unknown, malformed, or not offered.
    """
    refuse_unknown(arrays, parameters, request_id, INPUT_BY_NAME, SAME)
    given = {name: _value(name, array) for name, array in arrays.items()}
    for one, other in ONE_OF:
        if one in given and other in given:
            raise RequestError(f"{one} and {other} mean the same", where=other, remedy="send one of them")
    values = {INPUT_BY_NAME[name].to: value for name, value in given.items() if INPUT_BY_NAME[name].to}
    values |= {
        f"{PREFIX}logprobs": given.get("return_log_probs", False),
        f"{PREFIX}return_perf_metrics": given.get("return_perf_metrics", False),
        "return_finish_reason": False,
        "return_stop_reason": False,
        f"{PREFIX}stop": tuple(filter(None, given.get("stop_words", ()))),
    }
    values |= _sampling(given) | _end(given) | _drafting(given) | _bias(given, encode)
    try:
        served = request_of(values)
    except TrtSpecError as error:
        raise in_compat_names(error) from None
    return CompatServedRequest(
        **vars(served),
        wants_num_input_tokens=given.get("return_num_input_tokens", False),
        wants_num_output_tokens=given.get("return_num_output_tokens", False),
    )


def _value(name: str, array: np.ndarray) -> Any:
    """The value of one input, without its batch axis."""
    item = INPUT_BY_NAME[name]
    if item.only_false and not array.any():
        return False
    if len(array) != 1 and not item.refused:
        raise CapabilityError(
            "this model takes one prompt a request",
            where=name,
            got=f"a batch of {len(array)}",
            remedy="send one request for each prompt; the engine batches them",
        )
    return read_input(item, array.reshape(-1))


def _sampling(given: Mapping[str, Any]) -> dict[str, object]:
    """Temperature, top_k and top_p as this layout means them."""
    top_k, top_p = given.get("top_k", 0), given.get("top_p", 0.0)
    if (top_k == 0 and top_p == 0.0) or top_k == 1:
        return {f"{PREFIX}temperature": 0.0}
    values = {f"{PREFIX}temperature": given.get("temperature", 1.0)}
    values |= {f"{PREFIX}top_k": top_k} if top_k != 0 else {}
    return values | ({f"{PREFIX}top_p": top_p} if top_p != 0.0 else {})


def _end(given: Mapping[str, Any]) -> dict[str, object]:
    if "end_id" not in given:
        return {}
    end_id = given["end_id"]
    return {f"{PREFIX}ignore_eos": True, f"{PREFIX}stop_token_ids": (end_id,) if end_id != -1 else ()}


def _drafting(given: Mapping[str, Any]) -> dict[str, object]:
    number = given.get("num_draft_tokens")
    return {"speculation": False} if number == 0 else {"max_draft_len": number}


def _bias(given: Mapping[str, Any], encode: Encode) -> dict[str, object]:
    """Bad words and biased words as one bias for each id."""
    words, weights = given.get("embedding_bias_words", ()), given.get("embedding_bias_weights", ())
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
    return {f"{PREFIX}logit_bias_ids": tuple(bias), f"{PREFIX}logit_bias_values": tuple(bias.values())}


def in_compat_names(error: TrtSpecError) -> TrtSpecError:
    """An error in the contract's names as one in the names that the client used."""
    text = to_text(error)
    for contract_name, name in COMPAT_NAMES.items():
        if contract_name != "text_input":
            text = text.replace(contract_name, name)
    return to_error(text)
