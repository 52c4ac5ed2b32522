"""Errors in OpenAI's format: the status says whose fault it is, and the parameter has the client's name."""

from __future__ import annotations

import pytest

from trt_spec.errors import (
    BuildError,
    CapabilityError,
    CheckpointError,
    MachineError,
    OverloadedError,
    RequestError,
    TrtSpecError,
)
from trt_spec.serve.openai import errors
from trt_spec.serve.openai.requests import Call, UnknownModelError
from trt_spec.triton.errortext import to_error, to_text

CHAT = Call("chat", ([1],), {}, sent_names={"max_tokens": "max_completion_tokens"})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("x"), 400),
        (CapabilityError("x"), 400),
        (CheckpointError("no chat template"), 400),
        (UnknownModelError("x"), 404),
        (OverloadedError("x"), 429),
        (MachineError("x"), 503),
        (TrtSpecError("x"), 500),
        (BuildError("x"), 500),
    ],
)
def test_statuses(error, status):
    assert errors.status_of(error) == status
    assert errors.body_of(error)["error"]["message"] == "x" or status == 400
    assert ("Retry-After" in errors.headers_of(error)) == (status == 429)


@pytest.mark.parametrize(
    ("error", "param"),
    [
        (RequestError("x", where="sampling_param_max_tokens"), "max_completion_tokens"),
        (RequestError("x", where="sampling_param_top_k"), "top_k"),
        (RequestError("x", where="input_ids"), "messages"),
        (RequestError("x", where="sampling_param_logit_bias_ids"), "logit_bias"),
        (RequestError("x"), None),
        (MachineError("x", where="127.0.0.1:8001"), None),
    ],
)
def test_parameters_have_the_clients_names(error, param):
    through_triton = to_error(to_text(error))
    for one in (error, through_triton):
        assert errors.body_of(one, CHAT)["error"]["param"] == param


def test_a_prompt_that_is_too_long_has_openais_code():
    from trt_spec.runtime.admission import EngineLimits
    from trt_spec.runtime.request import Request

    limits = EngineLimits(max_seq_len=10)
    for refuse in (lambda: limits.check_prompt(Request("r", (1,) * 10), 100), lambda: limits.refuse_long_text(10)):
        with pytest.raises(RequestError) as caught:
            refuse()
        for error in (caught.value, to_error(to_text(caught.value))):
            body = errors.body_of(error, Call("completion", ("a",), {}))
            assert (body["error"]["code"], body["error"]["param"]) == ("context_length_exceeded", "prompt")


def test_a_message_decides_nothing():
    body = errors.body_of(RequestError("the prompt is longer than the context: parameter max_tokens"))
    assert (body["error"]["code"], body["error"]["param"]) == (None, None)
