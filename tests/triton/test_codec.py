"""Request tensors to requests and chunks to response tensors: what is honoured, what is refused and how."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trt_spec.errors import CapabilityError, RequestError
from trt_spec.runtime.request import Chunk, Completion, SamplingParams
from trt_spec.triton.codec import decode_request, encode_chunks, merge, sampling_params
from trt_spec.triton.contract import INPUT_BY_NAME, INPUTS, NUMPY_TYPES, OUTPUT_BY_NAME, PREFIX
from trt_spec.triton.served_request import ServedRequest


def tensors(**values):
    """Inputs by short name, as Triton hands them over."""
    arrays = {}
    for short, value in values.items():
        name = short if short in INPUT_BY_NAME else PREFIX + short
        items = value if isinstance(value, list) else [value]
        items = [item.encode() if isinstance(item, str) else item for item in items]
        arrays[name] = np.array(items, dtype=NUMPY_TYPES[INPUT_BY_NAME[name].data_type])
    return arrays


def completion(**changes):
    values = {
        "finish_reason": "stop",
        "stop_reason": "END",
        "num_input_tokens": 3,
        "num_output_tokens": 2,
        "cumulative_logprob": -1.5,
        "num_drafts": 2,
        "total_draft_tokens": 8,
        "total_accepted_draft_tokens": 4,
        "accepted_per_position": [2, 1, 1],
        "arrival_time_ns": 2**60,
        "first_scheduled_time_ns": 2**60,
        "first_token_time_ns": 2**60 + 1,
        "last_token_time_ns": 2**60 + 2,
    }
    return Completion(**{**values, **changes})


# --- requests ---


def test_a_plain_prompt_has_the_defaults():
    assert decode_request(tensors(text_input="héllo"), {}) == ServedRequest(text="héllo")


def test_every_parameter_arrives():
    served = decode_request(
        tensors(
            input_ids=[1, 2],
            streaming=True,
            max_tokens=7,
            min_tokens=2,
            temperature=0.8,
            top_k=5,
            top_p=0.9,
            min_p=0.05,
            repetition_penalty=1.1,
            presence_penalty=0.3,
            frequency_penalty=-0.3,
            logit_bias_ids=[4, 5],
            logit_bias_values=[0.5, -1.25],
            seed=2**64 - 1,
            **{"sampling_param_stop": ["a", "é"]},
            stop_token_ids=[9],
            ignore_eos=True,
            logprobs=True,
            n=1,
            best_of=1,
            beam_width=1,
            exclude_input_from_output=False,
            return_perf_metrics=False,
            return_finish_reason=False,
            return_stop_reason=False,
            return_cumulative_logprob=True,
            speculation=False,
            max_draft_len=3,
        ),
        {},
    )
    assert served.params == SamplingParams(
        max_tokens=7,
        min_tokens=2,
        temperature=0.8,  # and not 0.800000011920929, its value in FP32
        top_k=5,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=0.3,
        frequency_penalty=-0.3,
        logit_bias={4: 0.5, 5: -1.25},
        seed=2**64 - 1,
        stop=("a", "é"),
        stop_token_ids=(9,),
        ignore_eos=True,
        logprobs=True,
    )
    assert (served.text, served.input_ids, served.streaming) == (None, (1, 2), True)
    assert (served.speculation, served.max_draft_len, served.exclude_input_from_output) == (False, 3, False)
    assert (served.return_perf_metrics, served.return_finish_reason, served.return_stop_reason) == (False,) * 3
    assert (served.return_cumulative_logprob, served.wants_logprobs) == (True, True)


@given(st.floats(0, 100, width=32))
def test_numbers_keep_their_fp32_value(value):
    decoded = decode_request(tensors(text_input="a", temperature=value), {}).params.temperature
    assert np.float32(decoded) == np.float32(value)


@pytest.mark.parametrize("narrowing", [{"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_narrowing_without_a_temperature_samples_at_one(narrowing):
    assert decode_request(tensors(text_input="a", **narrowing), {}).params.temperature == 1.0
    assert decode_request(tensors(text_input="a", temperature=0, **narrowing), {}).params.temperature == 0.0


def test_the_sum_of_logprobs_needs_logprobs_but_does_not_send_them():
    served = decode_request(tensors(text_input="a", return_cumulative_logprob=True), {})
    assert served.params.logprobs
    assert not served.wants_logprobs


@pytest.mark.parametrize(
    ("inputs", "where"),
    [
        ({}, "text_input"),
        ({"max_tokens": 5}, "text_input"),
        ({"text_input": "a", "input_ids": [1]}, "text_input"),
        ({"text_input": ["a", "b"]}, "text_input"),
        ({"text_input": []}, "text_input"),
        ({"input_ids": []}, "input_ids"),
        ({"text_input": "a", "temperature": float("nan")}, "sampling_param_temperature"),
        ({"text_input": "a", "top_p": float("inf")}, "sampling_param_top_p"),
        ({"text_input": "a", "max_tokens": [1, 2]}, "sampling_param_max_tokens"),
        ({"text_input": "a", "logit_bias_ids": [1]}, "sampling_param_logit_bias_ids"),
        (
            {"text_input": "a", "logit_bias_ids": [1, 1], "logit_bias_values": [0.0, 1.0]},
            "sampling_param_logit_bias_ids",
        ),
    ],
)
def test_malformed_requests_name_the_input(inputs, where):
    with pytest.raises(RequestError) as caught:
        decode_request(tensors(**inputs), {})
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.5),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("min_p", 2.0),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("repetition_penalty", 0.0),
        ("sampling_param_stop", ""),
        ("stop_token_ids", -5),
    ],
)
def test_values_out_of_bounds_name_the_parameter(name, value):
    with pytest.raises(RequestError, match=name.removeprefix(PREFIX)):
        decode_request(tensors(text_input="a", **{name: value}), {})


def test_text_has_to_be_utf8():
    with pytest.raises(RequestError) as caught:
        decode_request({"text_input": np.array([b"\xff\xfe"], dtype=object)}, {})
    assert caught.value.where == "text_input"
    assert caught.value.expected == "UTF-8"


@pytest.mark.parametrize(
    ("array", "got"), [(np.array([1.0], np.float32), "float32"), (np.array([[1]], np.int32), r"shape \[1, 1\]")]
)
def test_wrong_types_and_shapes_are_refused(array, got):
    with pytest.raises(RequestError, match=got):
        decode_request({**tensors(text_input="a"), "sampling_param_max_tokens": array}, {})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("max_tokens", "sampling_param_max_tokens"),
        ("temprature", "sampling_param_temperature"),
        ("sampling_param_topp", "sampling_param_top_p"),
        ("stream", "streaming"),
    ],
)
def test_unknown_parameters_are_refused_with_the_nearest_name(name, near):
    with pytest.raises(RequestError, match=f"unknown request parameter {name}") as caught:
        decode_request(tensors(text_input="a"), {name: 1})
    assert near in caught.value.remedy


def test_the_request_id_may_travel_as_a_parameter():
    decode_request(tensors(text_input="a"), {"id": "r1"}, "r1")
    with pytest.raises(RequestError, match="unknown request parameter id"):
        decode_request(tensors(text_input="a"), {"id": "r1"}, "r2")


@pytest.mark.parametrize("tensor", [t for t in INPUTS if t.refused or t.only is not None], ids=lambda t: t.name)
def test_what_is_not_offered_is_refused_by_name(tensor):
    value = "x" if tensor.data_type == "STRING" else 2
    with pytest.raises(CapabilityError, match=tensor.name):
        decode_request(tensors(text_input="a", **{tensor.name: value}), {})


def test_stop_needs_an_id_and_nothing_else():
    assert decode_request(tensors(stop=True), {}, "r1").is_stop
    assert not decode_request(tensors(stop=False, text_input="a"), {}, "r1").is_stop
    with pytest.raises(RequestError, match="id"):
        decode_request(tensors(stop=True), {})
    with pytest.raises(RequestError, match="no other input"):
        decode_request(tensors(stop=True, max_tokens=3), {}, "r1")


def test_sampling_params_refuses_unknown_names():
    with pytest.raises(RequestError, match="temprature"):
        sampling_params({"temprature": 1.0})


# --- responses ---


def test_the_last_response_holds_every_output_in_its_declared_type():
    served = ServedRequest(return_cumulative_logprob=True, wants_logprobs=True)
    chunk = Chunk("r", "text", [5, 6], [-0.5, -1.0], completion(), token_origins=[1, 2])
    arrays = encode_chunks([chunk], served)
    assert set(arrays) == set(OUTPUT_BY_NAME)
    for name, array in arrays.items():
        output = OUTPUT_BY_NAME[name]
        assert array.dtype == NUMPY_TYPES[output.data_type], name
        assert array.ndim == 1, name
        assert output.is_list or len(array) == 1, name
    values = {name: array.tolist() for name, array in arrays.items()}
    assert values["text_output"] == [b"text"]
    assert values["output_ids"] == [5, 6]
    assert values["num_output_tokens"] == [2]
    assert values["token_origins"] == [1, 2]
    assert values["acceptance_rate"] == [0.5]
    assert values["accepted_per_position"] == [2, 1, 1]
    assert values["arrival_time_ns"] == [2**60]
    assert values["stop_reason"] == [b"END"]


def test_deltas_hold_only_what_they_add():
    assert set(encode_chunks([Chunk("r", "a", [1])], ServedRequest())) == {
        "text_output",
        "output_ids",
        "num_output_tokens",
        "sequence_index",
        "token_origins",
    }
    assert "logprobs" in encode_chunks([Chunk("r", "a", [1], [-1.0])], ServedRequest(wants_logprobs=True))


def test_flags_leave_outputs_out():
    served = ServedRequest(return_perf_metrics=False, return_finish_reason=False, return_stop_reason=False)
    names = set(encode_chunks([Chunk("r", "a", [1], completion=completion())], served))
    always = {"text_output", "output_ids", "num_output_tokens", "sequence_index", "token_origins"}
    assert names == always | {"num_input_tokens"}


def test_a_stop_id_reads_as_its_number_and_no_stop_reason_as_nothing():
    for reason, text in ((7, b"7"), (None, b"")):
        chunk = Chunk("r", "a", [1], completion=completion(stop_reason=reason))
        assert encode_chunks([chunk], ServedRequest())["stop_reason"].tolist() == [text]


def test_merging_adds_up():
    chunks = [Chunk("r", "a", [1], [-1.0]), Chunk("r", "", [2, 3], [-2.0, -3.0]), Chunk("r", "b", [], [], completion())]
    merged = merge(chunks)
    assert (merged.text, merged.token_ids, merged.logprobs) == ("ab", [1, 2, 3], [-1.0, -2.0, -3.0])
    assert merged.completion is chunks[-1].completion
    assert merge([Chunk("r", "a", [1])]).logprobs is None


def test_what_the_engine_does_not_tell_of_one_sequence_is_left_out_of_all():
    untold = completion(num_drafts=None, accepted_per_position=None, first_scheduled_time_ns=None)
    chunks = [Chunk("r", "a", [1], completion=done) for done in (completion(), untold)]
    values = encode_chunks(chunks, ServedRequest(n=2))
    assert not {"num_drafts", "accepted_per_position", "first_scheduled_time_ns"} & set(values)
    assert values["total_draft_tokens"].tolist() == [16]


def test_times_of_several_sequences_reach_from_the_first_to_the_last():
    ends = [completion(arrival_time_ns=5, first_token_time_ns=7, last_token_time_ns=9)]
    ends.append(completion(arrival_time_ns=4, first_token_time_ns=8, last_token_time_ns=11, accepted_per_position=[5]))
    values = encode_chunks([Chunk("r", "a", [1], completion=done) for done in ends], ServedRequest(n=2))
    names = ("arrival_time_ns", "first_token_time_ns", "last_token_time_ns")
    assert [values[name].tolist() for name in names] == [[4], [7], [11]]
    assert values["accepted_per_position"].tolist() == [7, 1, 1]
