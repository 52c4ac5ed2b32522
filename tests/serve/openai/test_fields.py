"""The tables of fields, held against the official client's own signatures."""

from __future__ import annotations

import inspect

import pytest
from openai.resources.chat.completions import Completions as Chats
from openai.resources.completions import Completions

from trt_spec.errors import CapabilityError, RequestError
from trt_spec.serve.openai import fields
from trt_spec.triton.contract import CLIENT_NAMES

CREATE = {"chat": Chats.create, "completion": Completions.create}
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_every_field_of_the_official_client_is_known(kind):
    theirs = set(inspect.signature(CREATE[kind]).parameters) - OF_THE_CLIENT
    assert theirs - fields.known(kind) == set()


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_every_honoured_field_is_openais_or_the_contracts(kind):
    theirs = set(inspect.signature(CREATE[kind]).parameters)
    ours = set(CLIENT_NAMES) | {"logit_bias"}
    assert {name for name in fields.HONOURED[kind] if name not in theirs | ours} == set()
    assert all(name in ours for name in (*fields.SAMPLING, *fields.EXTRA))


@pytest.mark.parametrize("name", sorted(fields.ONLY))
def test_what_is_not_honoured_is_refused_by_name_and_with_a_reason(name):
    kind = "completion" if name in fields.known("completion") else "chat"
    allowed, reason = fields.ONLY[name]
    with pytest.raises(CapabilityError, match=f"^{name} is not supported: ") as caught:
        fields.check(kind, {name: "something else"})
    assert (caught.value.where, caught.value.what.endswith(reason)) == (name, True)
    assert fields.check(kind, {name: None}) == {}
    for value in allowed:
        assert fields.check(kind, {name: value}) == {name: value}


def test_one_is_not_true():
    with pytest.raises(CapabilityError):
        fields.check("chat", {"store": 0})


def test_unknown_fields_are_refused_and_ignored_ones_dropped():
    with pytest.raises(RequestError, match="unknown field guided_json") as caught:
        fields.check("chat", {"guided_json": {}})
    assert caught.value.where == "guided_json"
    assert fields.check("chat", dict.fromkeys(fields.IGNORED, "x")) == {}
    with pytest.raises(RequestError, match="unknown field messages"):
        fields.check("completion", {"messages": []})


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"padding": 1}}, "stream_options.padding"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ],
)
def test_options_of_a_stream_are_checked(given, where):
    with pytest.raises((RequestError, CapabilityError)) as caught:
        fields.stream_options(given)
    assert caught.value.where == where


def test_a_refusal_shows_a_long_value_cut():
    assert len(fields.invalid("prompt", "x" * 10_000, "less").got) < 300
