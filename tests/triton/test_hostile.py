"""Malformed and hostile inputs, as gRPC messages that no client of ours would send, on a real tritonserver.

Each has to be refused with words that say what is wrong, and the next request has to be right.
"""

from __future__ import annotations

import struct

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.triton import abuse
from tests.triton.conftest import MAX_SEQ_LEN, MODEL_NAME
from tests.triton.test_serving import post, wait_for
from tests.waiting import WAIT_S
from trt_spec.errors import RequestError

pytestmark = pytest.mark.server
MODELS = (MODEL_NAME, f"{MODEL_NAME}_unary")


def text(value: bytes) -> bytes:
    """One string as Triton's raw contents."""
    return struct.pack("<I", len(value)) + value


def floats(*values):
    return np.array(values, np.float32).tobytes()


def ints(*values):
    return np.array(values, np.int32).tobytes()


PROMPT = ("text_input", "BYTES", [1], text(b"a"))
SHORT = ("sampling_param_max_tokens", "INT32", [1], ints(2))


@pytest.fixture(scope="module")
def stub(server):
    limits = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc_url, options=limits) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture(autouse=True)
def next_is_right(server, client):
    """Whatever was sent: nothing keeps running, the server is sound and the next answer is the usual one."""
    usual = client.generate("usual", max_tokens=5, ignore_eos=True).token_ids
    yield
    wait_for(server, running=0)
    assert client.generate("usual", max_tokens=5, ignore_eos=True).token_ids == usual
    assert client.infer("usual", max_tokens=5, ignore_eos=True).token_ids == usual
    server.check()


def message(model, tensors, **fields):
    request = service_pb2.ModelInferRequest(model_name=model, **fields)
    for name, datatype, shape, raw in tensors:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw)
    return request


def refusal(stub, request):
    """What the server says of a request, in unary inference or in a stream; "" where it answers it."""
    if request.model_name.endswith("_unary"):
        try:
            stub.ModelInfer(request, timeout=WAIT_S)
        except grpc.RpcError as error:
            return error.details()
        return ""
    try:
        answers = list(stub.ModelStreamInfer(iter([request]), timeout=WAIT_S))
    except grpc.RpcError as error:
        return error.details()
    return next((answer.error_message for answer in answers if answer.error_message), "")


def test_a_good_message_is_answered(stub):
    for model in MODELS:
        assert refusal(stub, message(model, [PROMPT, SHORT])) == ""


CASES = {
    "nothing at all": ([], "no prompt"),
    "no prompt": ([SHORT], "no prompt"),
    "two prompts": ([PROMPT, ("input_ids", "INT32", [1], ints(5))], "two prompts"),
    "two texts": ([("text_input", "BYTES", [2], text(b"a") * 2)], "text_input"),
    "no text": ([("text_input", "BYTES", [0], b"")], "text_input"),
    "no ids": ([("input_ids", "INT32", [0], b"")], "input_ids"),
    "an empty text": ([("text_input", "BYTES", [1], text(b""))], "no tokens"),
    "invalid UTF-8": ([("text_input", "BYTES", [1], text(b"\xff\xfe\x80"))], "UTF-8"),
    "half a surrogate": ([("text_input", "BYTES", [1], text(b"\xed\xa0\x80"))], "UTF-8"),
    "invalid UTF-8 to stop at": ([PROMPT, ("sampling_param_stop", "BYTES", [1], text(b"\xff"))], "sampling_param_stop"),
    "a text longer than its bytes": ([("text_input", "BYTES", [1], struct.pack("<I", 1 << 30) + b"a")], ""),
    "half a length": ([("text_input", "BYTES", [1], b"\x01\x00")], ""),
    "text as numbers": ([("text_input", "INT32", [1], ints(1))], "text_input"),
    "ids as floats": ([("input_ids", "FP32", [2], floats(1, 2))], "input_ids"),
    "ids as long integers": ([("input_ids", "INT64", [1], struct.pack("<q", 1))], "input_ids"),
    "ids with two axes": ([("input_ids", "INT32", [1, 2], ints(1, 2))], "input_ids"),
    "more shape than bytes": ([("input_ids", "INT32", [2], ints(1))], "input_ids"),
    "a giant shape": ([("input_ids", "INT32", [1 << 40], ints(1))], "input_ids"),
    "a shape beyond all": ([("input_ids", "INT32", [1 << 62, 1 << 62], ints(1))], "input_ids"),
    "a negative shape": ([("input_ids", "INT32", [-2], ints(1))], ""),
    "a negative id": ([("input_ids", "INT32", [1], ints(-1))], "input_ids"),
    "an id beyond the vocabulary": ([("input_ids", "INT32", [1], ints(2**31 - 1))], "input_ids"),
    "no tokens wanted": ([PROMPT, ("sampling_param_max_tokens", "INT32", [1], ints(0))], "max_tokens"),
    "a negative length": ([PROMPT, ("sampling_param_max_tokens", "INT32", [1], ints(-(2**31)))], "max_tokens"),
    "two lengths": ([PROMPT, ("sampling_param_max_tokens", "INT32", [2], ints(1, 2))], "max_tokens"),
    "no length": ([PROMPT, ("sampling_param_max_tokens", "INT32", [0], b"")], "max_tokens"),
    "a length as float": ([PROMPT, ("sampling_param_max_tokens", "FP32", [1], floats(5))], "max_tokens"),
    "NaN": ([PROMPT, ("sampling_param_temperature", "FP32", [1], floats(float("nan")))], "temperature"),
    "infinite": ([PROMPT, ("sampling_param_temperature", "FP32", [1], floats(float("inf")))], "temperature"),
    "cold": ([PROMPT, ("sampling_param_temperature", "FP32", [1], floats(-0.5))], "temperature"),
    "NaN top_p": ([PROMPT, ("sampling_param_top_p", "FP32", [1], floats(float("nan")))], "top_p"),
    "a negative top_k": ([PROMPT, ("sampling_param_top_k", "INT32", [1], ints(-1))], "top_k"),
    "a negative draft": ([PROMPT, ("max_draft_len", "INT32", [1], ints(-1))], "max_draft_len"),
    "a giant draft": ([PROMPT, ("max_draft_len", "INT32", [1], ints(2**31 - 1))], "max_draft_len"),
    "NaN bias": (
        [
            PROMPT,
            ("sampling_param_logit_bias_ids", "INT32", [1], ints(5)),
            ("sampling_param_logit_bias_values", "FP32", [1], floats(float("nan"))),
        ],
        "logit_bias",
    ),
    "a bias without its value": ([PROMPT, ("sampling_param_logit_bias_ids", "INT32", [1], ints(5))], "logit_bias"),
    "an unknown input": ([PROMPT, ("no_such_input", "INT32", [1], ints(1))], "no_such_input"),
    "a name like a path": ([PROMPT, ("../../etc/passwd\0", "INT32", [1], ints(1))], ""),
    "a long name": ([PROMPT, ("x" * 100_000, "INT32", [1], ints(1))], ""),
    "an input twice": ([PROMPT, PROMPT], "text_input"),
    "an unknown type": ([("text_input", "FP999", [1], ints(1))], "text_input"),
    "an adapter": ([PROMPT, ("lora_path", "BYTES", [1], text(b"/etc/passwd"))], "lora_path"),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_with_a_message_is_said(stub, model, name):
    tensors, words = CASES[name]
    said = refusal(stub, message(model, tensors))
    assert said
    assert words in said


@pytest.mark.parametrize(
    ("model", "fields", "words"),
    [
        ("no_such_model", {}, "no_such_model"),
        ("no_such_model_unary", {}, "no_such_model_unary"),
        ("", {}, ""),
        (MODEL_NAME, {"model_version": "99"}, "99"),
        (f"{MODEL_NAME}_unary", {"model_version": "minus one"}, ""),
        ("../tensorrt_llm", {}, ""),
    ],
)
def test_models_that_are_not_there(stub, model, fields, words):
    said = refusal(stub, message(model, [PROMPT, SHORT], **fields))
    assert said
    assert words in said


@pytest.mark.parametrize("model", MODELS)
def test_an_output_that_is_not_there(stub, model):
    request = message(model, [PROMPT, SHORT])
    request.outputs.add(name="no_such_output")
    assert "no_such_output" in refusal(stub, request)


@pytest.mark.parametrize("model", MODELS)
def test_a_parameter_that_is_not_there(stub, model):
    request = message(model, [PROMPT, SHORT])
    request.parameters["temperature"].double_param = 0.5
    assert "temperature" in refusal(stub, request)


@pytest.mark.parametrize("way", abuse.WAYS)
def test_a_giant_prompt_is_refused_at_once(client, server, way):
    """At once: encoding 10 MB takes the tokenizer many seconds, in which nobody else would be let in."""
    giant = "the cat " * (10 * 1024 * 1024 // 8)
    before = abuse.cpu_s(server)
    with pytest.raises(RequestError, match="longer than the context"):
        abuse.WAYS[way](client, giant, max_tokens=1)
    assert abuse.cpu_s(server) - before < 5


def test_more_ids_than_the_context_holds(client):
    with pytest.raises(RequestError, match="longer than the context"):
        client.infer([5] * 1_000_000, max_tokens=1)


def test_many_stop_strings(client):
    alone = client.generate("usual", max_tokens=20, ignore_eos=True)
    stops = [f"never {number}" for number in range(10_000)]
    assert client.generate("usual", max_tokens=20, ignore_eos=True, stop=stops).text == alone.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"null",
        b'"text"',
        b'{"text_input": null}',
        b'{"text_input": {"a": 1}}',
        b'{"text_input": ["a", ["b"]]}',
        b'{"text_input": "\xff"}',
        b'{"text_input": "\\ud800"}',
        b'{"text_input": "a", "sampling_param_temperature": "hot"}',
        b'{"text_input": "a", "sampling_param_max_tokens": 1e99}',
        b'{"text_input": "a", "sampling_param_seed": -1}',
        b'{"input_ids": "5"}',
        b"[" * 100_000,
    ],
)
def test_http_bodies_that_are_none(server, body):
    status, answer = post(server, f"/v2/models/{MODEL_NAME}/generate", body)
    assert status in (400, 500) or "error" in answer
    assert f"at most {MAX_SEQ_LEN}" not in answer
