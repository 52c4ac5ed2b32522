"""The OpenAI-compatible subject against a server that is forthcoming, taciturn, or wrong."""

from __future__ import annotations

import pytest

from tests.gate.openai_server import FakeOpenAI
from trt_spec.clients.prompts import Prompt
from trt_spec.errors import MachineError, OverloadedError, RequestError
from trt_spec.gate.measure import SystemClock
from trt_spec.gate.openai import OpenAISubject

CHAT, RAW = Prompt("chat", "hello"), Prompt("raw", "def f(", is_chat=False)


def subject_of(server, plain=None, **options):
    urls = {"speculation": server.url, "plain": plain.url if plain else server.url}
    return OpenAISubject(urls, "m", SystemClock(), **options)


def test_a_forthcoming_server():
    with FakeOpenAI(step_s=0.002) as server:
        subject = subject_of(server)
        spec = subject.ask(CHAT, "speculation", 7, "r")
        plain = subject.ask(RAW, "plain", 7, "r")
        subject.close()
    assert spec.chunk_tokens == (3, 3, 1)
    assert (spec.num_output_tokens, spec.num_input_tokens) == (7, 7)
    assert (spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens_per_pos) == (3, 6, (3, 3))
    assert plain.chunk_tokens == (1,) * 7
    assert plain.num_draft_tokens == 0
    assert list(spec.chunk_ns) == sorted(set(spec.chunk_ns))
    assert spec.chunk_ns[-1] - spec.chunk_ns[0] >= 3_000_000  # two steps of 2 ms lie between the first and the last
    chat, raw = server.bodies
    assert server.paths == ["/v1/chat/completions", "/v1/completions"]
    assert chat["messages"] == [{"role": "user", "content": "hello"}]
    assert raw["prompt"] == "def f("
    assert (chat["speculation"], raw["speculation"]) == (True, False)
    assert all(body["ignore_eos"] and body["temperature"] == 0 and body["max_tokens"] == 7 for body in server.bodies)
    assert server.num_connections == 2  # one for the list of models, one that is kept


def test_a_server_that_tells_usage_only_at_the_end():
    """Chunks are timed, and their tokens are not made up."""
    with FakeOpenAI(has_running_usage=False) as server:
        answer = subject_of(server).ask(CHAT, "speculation", 7, "r")
    assert answer.chunk_tokens is None
    assert len(answer.chunk_ns) == 3
    assert answer.num_output_tokens == 7


def test_a_server_that_tells_no_usage_is_refused():
    with FakeOpenAI(has_usage=False) as server, pytest.raises(MachineError, match="how many tokens"):
        subject_of(server).ask(CHAT, "speculation", 7, "r")


def test_optional_fields_that_are_refused_are_left_out_from_then_on():
    with FakeOpenAI(refuses=("continuous_usage_stats", "ignore_eos")) as server:
        subject = subject_of(server)
        assert subject.ask(CHAT, "speculation", 7, "r").num_output_tokens == 7
        assert subject.dropped == ["continuous_usage_stats", "ignore_eos"]
        asked = len(server.bodies)
        subject.ask(CHAT, "speculation", 7, "r")
        assert len(server.bodies) == asked + 1
        assert "ignore_eos" not in server.bodies[-1]


def test_a_server_without_the_switch():
    with FakeOpenAI(refuses=("speculation",)) as server, pytest.raises(RequestError, match="no switch") as caught:
        subject_of(server).ask(CHAT, "plain", 7, "r")
    assert "--plain-url" in caught.value.remedy


def test_two_servers_get_no_switch():
    with FakeOpenAI(switches=False) as server, FakeOpenAI(switches=False) as plain:
        subject = subject_of(server, plain)
        answer = subject.ask(CHAT, "plain", 4, "r")
        subject.ask(CHAT, "speculation", 4, "r")
        assert answer.num_draft_tokens is None
        assert len(server.bodies) == len(plain.bodies) == 1
        assert "speculation" not in server.bodies[0]
        assert "return_perf_metrics" not in server.bodies[0]


def test_a_connection_that_went_stale_is_replaced():
    with FakeOpenAI(keep_alive=False) as server:
        subject = subject_of(server)
        for _ in range(3):
            assert subject.ask(CHAT, "speculation", 4, "r").num_output_tokens == 4


def test_which_model():
    with FakeOpenAI(models=("only",)) as server:
        subject_of(server).ask(CHAT, "plain", 4, "r")
        assert server.bodies[0]["model"] == "only"
    with FakeOpenAI(models=("a", "m")) as server:
        subject_of(server).ask(CHAT, "plain", 4, "r")
        assert server.bodies[0]["model"] == "m"
    with FakeOpenAI(models=("a", "b")) as server, pytest.raises(RequestError, match="which model") as caught:
        subject_of(server)
    assert caught.value.got == "a, b"


def test_a_key_is_sent():
    with FakeOpenAI() as server:
        subject_of(server, api_key="k").ask(CHAT, "plain", 4, "r")
        subject_of(server).ask(CHAT, "plain", 4, "r")
    assert server.keys == ["Bearer k", None]


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, RequestError, "OPENAI_API_KEY"),
        (404, RequestError, "404"),
        (429, OverloadedError, "429"),
        (500, MachineError, "500"),
    ],
)
def test_what_servers_say(status, kind, words):
    with FakeOpenAI(status=status) as server, pytest.raises(kind, match=words):
        subject_of(server).ask(CHAT, "plain", 4, "r")


@pytest.mark.parametrize("url", ["ftp://x:1", "http://", "http://x:99999"])
def test_what_is_no_address(url):
    with pytest.raises(RequestError, match="this is no"):
        OpenAISubject({"plain": url, "speculation": url}, "m", SystemClock())


def test_nobody_there():
    with pytest.raises(MachineError, match="cannot be reached"):
        OpenAISubject(dict.fromkeys(("plain", "speculation"), "http://127.0.0.1:9/v1"), "m", SystemClock())
