"""Errors survive the trip through Triton, which carries nothing but text."""

from __future__ import annotations

import pytest

from trt_spec.errors import CapabilityError, MachineError, OverloadedError, PairError, RequestError, TrtSpecError
from trt_spec.triton.errortext import to_error, to_text, triton_code

ERROR = {"where": "top_p", "got": -1.5, "expected": "a number", "remedy": "send another", "details": ["one", "two"]}


@pytest.mark.parametrize("kind", [RequestError, CapabilityError, OverloadedError, MachineError, TrtSpecError])
def test_an_error_comes_back_as_it_went(kind):
    error = kind("what is wrong", **ERROR)
    back = to_error(to_text(error))
    assert type(back) is kind
    assert str(back) == str(error)


def test_other_kinds_come_back_as_the_general_one():
    assert type(to_error(to_text(PairError("no fit")))) is TrtSpecError


def test_text_of_the_server_itself_takes_the_kind_that_is_given():
    assert type(to_error("unexpected inference input 'x'", RequestError)) is RequestError
    assert type(to_error("Stub process is not healthy.")) is MachineError
    assert str(to_error("")) == "the server gave no reason"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("a"), "INVALID_ARG"),
        (CapabilityError("a"), "INVALID_ARG"),
        (OverloadedError("a"), "UNAVAILABLE"),
        (MachineError("a"), "INTERNAL"),
        (ValueError("a"), "INTERNAL"),
    ],
)
def test_codes(error, code):
    assert triton_code(error) == code
