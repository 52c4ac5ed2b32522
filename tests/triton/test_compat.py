"""Requests in inflight_batcher's names: every tensor accounted for, honoured or refused by name, and answers back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from trt_spec.errors import CapabilityError, RequestError
from trt_spec.triton.compat import requests as compat
from trt_spec.triton.compat import tensors as compat_tensors
from trt_spec.triton.compat.requests import NEVER, CompatServedRequest, in_compat_names
from trt_spec.triton.contract import INPUT_BY_NAME, NUMPY_TYPES, PREFIX

FACTS = json.loads((Path(__file__).parents[1] / "data" / "inflight_batcher_names.json").read_text())["models"]
TYPES = {tensor.name: tensor for tensor in compat_tensors.INPUTS}
WORDS = {"cat": [7], "dog": [8], "two words": [7, 8]}


def arrays(**values):
    """Inputs as Triton hands them over: [1, n]."""
    result = {}
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        items = [item.encode() if isinstance(item, str) else item for item in items]
        dtype = {**NUMPY_TYPES, "FP16": np.float16, "UINT8": np.uint8}[TYPES[name].data_type]
        result[name] = np.array([items], dtype)
    return result


def served(parameters=None, request_id="", **values):
    """What the engine is asked."""
    return compat.read(arrays(text_input="hi", **values), parameters or {}, request_id, lambda text: WORDS[text])


def test_every_tensor_of_every_version_is_here():
    for side, ours in (("inputs", compat_tensors.INPUT_BY_NAME), ("outputs", compat_tensors.OUTPUT_DOCS)):
        theirs = {item["name"] for version in FACTS.values() for model in MODELS for item in version[model][side]}
        assert theirs == set(ours)
    assert all(item.doc for item in compat_tensors.INPUTS)
    assert all(item.to in INPUT_BY_NAME for item in compat_tensors.INPUTS if item.to)


MODELS = ("ensemble", "tensorrt_llm_bls")


def test_what_todays_clients_send_is_a_greedy_request():
    """The request of TensorRT-LLM's README, and what its end-to-end client always sends."""
    plain = served(max_tokens=20, bad_words="", stop_words="")
    assert (plain.text, plain.params.max_tokens, plain.params.temperature) == ("hi", 20, 0.0)
    assert (plain.params.stop, plain.params.logit_bias, plain.streaming) == ((), {}, False)
    client = served(max_tokens=20, stream=True, beam_width=1, temperature=1.0, end_id=2, pad_id=2)
    assert (client.params.temperature, client.streaming) == (0.0, True)
    assert (client.params.ignore_eos, client.params.stop_token_ids) == (True, (2,))


@pytest.mark.parametrize(
    ("values", "law"),
    [
        ({}, (0.0, 0, 1.0)),
        ({"temperature": 0.7}, (0.0, 0, 1.0)),
        ({"top_k": 0, "top_p": 0.0, "temperature": 0.7}, (0.0, 0, 1.0)),
        ({"top_k": 1, "temperature": 0.7}, (0.0, 0, 1.0)),
        ({"top_k": 5}, (1.0, 5, 1.0)),
        ({"top_k": 5, "top_p": 0.0, "temperature": 0.7}, (0.7, 5, 1.0)),
        ({"top_p": 0.9, "temperature": 0.7}, (0.7, 0, 0.9)),
        ({"top_k": 5, "top_p": 0.9}, (1.0, 5, 0.9)),
    ],
)
def test_the_law_is_that_of_inflight_batcher(values, law):
    params = served(**values).params
    assert (params.temperature, params.top_k, params.top_p) == law


def test_every_parameter_arrives():
    request = served(
        max_tokens=7,
        min_length=2,
        random_seed=2**63,
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        length_penalty=3.0,
        stop_words=["END", "", "."],
        bad_words=["cat", ""],
        embedding_bias_words=["dog", "two words"],
        embedding_bias_weights=[2.0, 0.5],
        exclude_input_in_output=False,
        num_return_sequences=3,
        num_draft_tokens=2,
        return_log_probs=True,
        return_perf_metrics=True,
    )
    params = request.params
    assert (params.max_tokens, params.min_tokens, params.seed) == (7, 2, 2**63)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.5, 0.5, 0.25)
    assert params.stop == ("END", ".")
    assert params.logit_bias == {7: NEVER, 8: 2.5}
    assert (request.n, request.max_draft_len, request.speculation, request.exclude_input_from_output) == (
        3,
        2,
        True,
        False,
    )
    assert (request.wants_logprobs, request.return_perf_metrics) == (True, True)
    assert served(num_draft_tokens=0).speculation is False
    never = served(end_id=-1).params
    assert (never.ignore_eos, never.stop_token_ids) == (True, ())
    assert served(min_tokens=2, seed=5).params.seed == 5


@pytest.mark.parametrize("name", [item.name for item in compat_tensors.INPUTS if item.refused])
def test_what_is_not_offered_is_refused_by_name(name):
    tensor = TYPES[name]
    value = {"STRING": "x", "BOOL": True}.get(tensor.data_type, 1)
    with pytest.raises(CapabilityError, match=name):
        served(**{name: value})
    if compat_tensors.INPUT_BY_NAME[name].only_false:
        served(**{name: False})


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ({"bad_words": "two words"}, CapabilityError, "bad_words"),
        ({"embedding_bias_words": ["cat"]}, RequestError, "embedding_bias_weights"),
        ({"min_tokens": 1, "min_length": 1}, RequestError, "min_tokens and min_length"),
        ({"seed": 1, "random_seed": 1}, RequestError, "seed and random_seed"),
        ({"max_tokens": [1, 2]}, RequestError, "max_tokens"),
        ({"parameters": {"stop": "x"}}, RequestError, "stop_words"),
        ({"parameters": {"sampling_param_top_p": 0.5}}, RequestError, "top_p"),
        ({"parameters": {"zzz": 1}}, RequestError, "unknown request parameter zzz"),
    ],
)
def test_what_is_wrong_is_refused_by_name(values, kind, words):
    with pytest.raises(kind) as caught:
        served(**values)
    assert words in str(caught.value)


def test_a_batch_and_bytes_that_are_no_text_are_refused():
    with pytest.raises(CapabilityError, match="one prompt"):
        compat.read({"text_input": np.array([[b"a"], [b"b"]], object)}, {}, "", lambda text: [])
    with pytest.raises(RequestError, match="text_input"):
        compat.read({"text_input": np.array([[b"\xff"]], object)}, {}, "", lambda text: [])
    assert served({"id": "mine"}, "mine").text == "hi"  # generate's key for the request id


def test_errors_come_in_the_names_that_were_sent():
    for name, theirs in (("max_draft_len", "num_draft_tokens"), (f"{PREFIX}n", "num_return_sequences")):
        told = in_compat_names(RequestError(f"invalid request parameter {name}", where=name, got=7))
        assert type(told) is RequestError
        assert (told.what, told.where, told.got) == (f"invalid request parameter {theirs}", theirs, "7")
    with pytest.raises(RequestError, match="parameter max_tokens"):
        served(max_tokens=0)


# --- answers ---


def response(index, text, ids, logprobs=None, **others):
    values = {
        "text_output": np.array([text.encode()], object),
        "sequence_index": np.array([index], np.int32),
        "num_output_tokens": np.array([len(ids)], np.int32),
        "output_ids": np.array(ids, np.int32),
        **{name: np.array(value) for name, value in others.items()},
    }
    return values | ({} if logprobs is None else {"logprobs": np.array(logprobs, np.float32)})


def test_a_stream_adds_up_for_each_sequence():
    answer = CompatServedRequest(wants_logprobs=True, wants_num_output_tokens=True)
    first = answer.outputs(response(1, "a", [5, 6], [-1.0, -0.5]))
    assert {name: array.tolist() for name, array in first.items()} == {
        "text_output": [[b"a"]],
        "sequence_index": [[1]],
        "batch_index": [[0]],
        "num_output_tokens": [[2]],
        "output_log_probs": [[[-1.0, -0.5]]],
        "cum_log_probs": [[-1.5]],
    }
    ended = answer.outputs(response(1, "b", [7], [-0.25], num_input_tokens=[3], acceptance_rate=[0.5]))
    assert ended["cum_log_probs"].tolist() == [[-1.75]]
    assert ended["num_output_tokens"].tolist() == [[3]]
    assert ended["acceptance_rate"].tolist() == [[0.5]]
    other = answer.outputs(response(0, "", [], [], num_input_tokens=[3]))
    assert other["cum_log_probs"].tolist() == [[0.0]]


def test_all_sequences_in_one_answer_are_padded_to_the_longest():
    answer = CompatServedRequest(wants_logprobs=True, wants_num_input_tokens=True)
    outputs = answer.outputs(
        {
            "text_output": np.array([b"ab", b"c"], object),
            "sequence_index": np.array([0, 1], np.int32),
            "num_output_tokens": np.array([2, 1], np.int32),
            "logprobs": np.array([-1.0, -2.0, -3.0], np.float32),
            "num_input_tokens": np.array([4], np.int32),
            "kv_cache_reused_block": np.array([0], np.int32),
        }
    )
    assert outputs["text_output"].tolist() == [[b"ab", b"c"]]
    assert outputs["output_log_probs"].tolist() == [[[-1.0, -2.0], [-3.0, 0.0]]]
    assert outputs["cum_log_probs"].tolist() == [[-3.0, -3.0]]
    assert outputs["num_input_tokens"].tolist() == [[4]]
    assert outputs["kv_cache_reused_blocks"].tolist() == [[0]]
