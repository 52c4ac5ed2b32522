"""Errors say everything, and survive the trip to another process."""

from __future__ import annotations

import pickle

import pytest

from trt_spec import errors


def test_a_message_says_what_where_got_expected_and_what_to_do():
    error = errors.ConfigError("bad", where="a.yaml:3", got=7, expected="8", remedy="write 8", details=["one", "two"])
    assert str(error) == "bad\n  - one\n  - two\n  where: a.yaml:3\n  got: 7\n  expected: 8\n  what to do: write 8"
    assert error.as_dict() == {
        "error": "ConfigError",
        "code": "config",
        "exit_code": 2,
        "message": "bad",
        "where": "a.yaml:3",
        "got": "7",
        "expected": "8",
        "remedy": "write 8",
        "details": ["one", "two"],
    }


def test_falsy_values_are_shown_and_absent_ones_are_not():
    assert str(errors.RequestError("bad", got=0)) == "bad\n  got: 0"
    assert "got" not in errors.RequestError("bad").as_dict()


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (errors.UsageError, 2),
        (errors.ConfigError, 2),
        (errors.CheckpointError, 2),
        (errors.PairError, 2),
        (errors.RequestError, 2),
        (errors.CapabilityError, 2),
        (errors.MachineError, 3),
        (errors.OverloadedError, 3),
        (errors.GateFailure, 1),
        (errors.Inconclusive, 4),
    ],
)
def test_exit_codes(kind, exit_code):
    assert kind("x").exit_code == exit_code
    assert issubclass(kind, errors.TrtSpecError)


def test_pickling_keeps_every_part():
    error = errors.PairError("bad", where="x", details=["d"], code="E-VOCAB")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.PairError
    assert str(copy) == str(error)
    assert copy.code == "E-VOCAB"
