"""Client parameters to the wire and answers back, checked against tritonclient's own encoding."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import InferInput, InferResult, service_pb2

from trt_spec.clients import triton_wire as wire
from trt_spec.errors import MachineError, RequestError
from trt_spec.triton.codec import decode_request
from trt_spec.triton.contract import INPUT_BY_NAME, NUMPY_TYPES, WIRE_TYPES

PARAMETERS = {
    "max_tokens": 7,
    "temperature": 0.8,
    "seed": 2**64 - 1,
    "stop": ["a", "é\0"],
    "stop_token_ids": [1, 2],
    "logit_bias": {3: -1.5},
    "ignore_eos": True,
    "speculation": False,
    "max_draft_len": 2,
    "top_k": None,
}


def test_grpc_requests_are_encoded_as_tritonclient_does():
    values = wire.request_values("héllo", PARAMETERS)
    request = wire.to_proto("m", values, "r1")
    assert (request.model_name, request.id) == ("m", "r1")
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        kind = INPUT_BY_NAME[tensor.name].data_type
        items = [item.encode() if isinstance(item, str) else item for item in values[tensor.name]]
        theirs = InferInput(tensor.name, [len(items)], WIRE_TYPES[kind])
        theirs.set_data_from_numpy(np.array(items, dtype=NUMPY_TYPES[kind]))
        assert raw == theirs._get_content()
        assert (tensor.datatype, list(tensor.shape)) == (theirs.datatype(), theirs.shape())


def test_what_is_sent_is_what_the_model_reads():
    values = wire.request_values([5, 6], PARAMETERS)
    arrays = {
        name: np.array(
            [item.encode() if isinstance(item, str) else item for item in items],
            dtype=NUMPY_TYPES[INPUT_BY_NAME[name].data_type],
        )
        for name, items in values.items()
    }
    served = decode_request(arrays, {})
    assert served.input_ids == (5, 6)
    assert (served.params.seed, served.params.temperature) == (2**64 - 1, 0.8)
    assert (served.params.stop, served.params.logit_bias) == (("a", "é\0"), {3: -1.5})
    assert (served.speculation, served.max_draft_len) == (False, 2)


def test_json_bodies():
    values = wire.request_values("a", {"max_tokens": 3, "stop": "x", "stop_token_ids": []})
    assert wire.to_generate(values, "r") == {
        "text_input": "a",
        "sampling_param_max_tokens": 3,
        "sampling_param_stop": "x",
        "id": "r",
    }
    body = wire.to_infer(values, "")
    assert body["inputs"][0] == {"name": "sampling_param_max_tokens", "datatype": "INT32", "shape": [1], "data": [3]}
    assert "id" not in body
    json.dumps(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 2**31),
        ("max_tokens", 1.5),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("seed", -1),
        ("seed", 2**64),
        ("temperature", "hot"),
        ("temperature", True),
        ("ignore_eos", 1),
        ("stop", [b"bytes"]),
        ("stop_token_ids", ["x"]),
        ("max_tokens", float("nan")),
        ("seed", float("inf")),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(name, value):
    with pytest.raises(RequestError) as caught:
        wire.request_values("a", {name: value})
    assert caught.value.where == name


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(RequestError, match="temprature") as caught:
        wire.request_values("a", {"temprature": 1.0})
    assert "temperature" in caught.value.remedy


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)))), st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_grpc_answers_are_decoded_as_tritonclient_does(strings, numbers):
    response = service_pb2.ModelInferResponse(model_name="m")
    for name, datatype, items in (("text_output", "BYTES", strings), ("output_ids", "INT32", numbers)):
        response.outputs.add(name=name, datatype=datatype, shape=[len(items)])
        source = InferInput(name, [len(items)], datatype)
        kind = np.object_ if datatype == "BYTES" else np.int32
        source.set_data_from_numpy(np.array([s.encode() if isinstance(s, str) else s for s in items], dtype=kind))
        response.raw_output_contents.append(source._get_content() or b"")
    decoded = wire.from_proto(response)
    assert decoded == {"text_output": strings, "output_ids": numbers}
    if strings:
        theirs = InferResult(response)
        assert [item.decode() for item in theirs.as_numpy("text_output")] == decoded["text_output"]


def final_outputs(**changes):
    outputs = {
        "text_output": ["b"],
        "output_ids": [3],
        "num_output_tokens": [1],
        "num_input_tokens": [4],
        "finish_reason": ["stop"],
        "stop_reason": ["7"],
        "num_drafts": [2],
        "total_draft_tokens": [8],
        "total_accepted_draft_tokens": [4],
        "accepted_per_position": [2, 2],
        "arrival_time_ns": [10],
        "first_scheduled_time_ns": [15],
        "first_token_time_ns": [20],
        "last_token_time_ns": [30],
    }
    return {**outputs, **changes}


def test_chunks_add_up_to_a_completion():
    reader = wire.ChunkReader("r", {})
    first = reader.read(
        {"text_output": ["a"], "output_ids": [1, 2], "num_output_tokens": [2], "logprobs": [-1.0, -2.0]}
    )
    assert (first.text, first.token_ids, first.logprobs, first.is_last) == ("a", [1, 2], [-1.0, -2.0], False)
    done = reader.read(final_outputs()).completion
    assert (done.num_output_tokens, done.num_input_tokens, done.acceptance_rate) == (3, 4, 0.5)
    assert (done.stop_reason, done.accepted_per_position, done.last_token_time_ns) == (7, [2, 2], 30)


def test_a_stop_string_of_digits_stays_a_string():
    reader = wire.ChunkReader("r", {"sampling_param_stop": ["7"]})
    assert reader.read(final_outputs()).completion.stop_reason == "7"
    assert wire.ChunkReader("r", {}).read(final_outputs(stop_reason=[""])).completion.stop_reason is None


def test_what_was_switched_off_is_empty():
    outputs = {"text_output": ["b"], "output_ids": [3], "num_output_tokens": [1], "num_input_tokens": [4]}
    done = wire.ChunkReader("r", {}).read(outputs).completion
    assert (done.finish_reason, done.stop_reason, done.num_drafts, done.accepted_per_position) == ("", None, 0, [])


def test_several_sequences_are_counted_each_and_done_when_all_are():
    reader = wire.ChunkReader("r", {"sampling_param_n": [2]})
    first = reader.read({"text_output": ["a"], "output_ids": [1, 2], "sequence_index": [1]})
    assert (first.sequence_index, first.is_last, reader.is_done) == (1, False, False)
    ended = reader.read(final_outputs(sequence_index=[1], output_ids=[3]))
    assert (ended.completion.num_output_tokens, reader.is_done) == (3, False)
    other = reader.read(final_outputs(sequence_index=[0], output_ids=[4]))
    assert (other.sequence_index, other.completion.num_output_tokens, reader.is_done) == (0, 1, True)


def test_a_server_with_another_contract_is_refused():
    with pytest.raises(MachineError, match="not of this contract"):
        wire.ChunkReader("r", {}).read({"text_output": ["b"]})


@pytest.mark.parametrize(
    ("name", "value"),
    [("stop", "\ud800"), ("max_tokens", 10**400), ("max_tokens", float("nan")), ("max_tokens", float("inf"))],
)
def test_what_no_tensor_can_hold_is_refused_by_name(name, value):
    with pytest.raises(RequestError, match=f"invalid request parameter {name}") as caught:
        wire.request_values("a", {name: value})
    assert caught.value.where == name
    str(caught.value).encode()  # whatever was sent, the refusal can be sent back


def test_a_number_beyond_all_floats_goes_to_the_server_as_infinite():
    assert wire.request_values("a", {"temperature": 10**400})["sampling_param_temperature"] == [float("inf")]
