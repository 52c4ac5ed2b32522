"""The client of OpenAI-compatible servers against one that is forthcoming, taciturn, or wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.clients.openai_server import FakeOpenAI
from trt_spec.clients.client import ABILITIES, Params
from trt_spec.clients.openai import OpenAIClient
from trt_spec.clients.prompts import Prompt
from trt_spec.errors import CapabilityError, MachineError, OverloadedError, RequestError
from trt_spec.runtime.request import SamplingParams
from trt_spec.runtime.stats import DraftCounts

CHAT, RAW = Prompt("chat", "hello"), Prompt("raw", "def f(", is_chat=False)


def params(arm, max_tokens):
    return Params(SamplingParams(max_tokens=max_tokens, ignore_eos=True), speculation=arm == "speculation")


def client_of(server, **options):
    return OpenAIClient(server.url, "m", **options)


def test_a_forthcoming_server():
    with FakeOpenAI(step_s=0.05) as server:
        client = client_of(server)
        spec = client.ask(CHAT, params("speculation", 7))
        plain = client.ask(RAW, params("plain", 7))
        client.close()
    assert spec.chunk_tokens == (3, 3, 1)
    assert (spec.num_output_tokens, spec.num_input_tokens) == (7, 7)
    assert spec.drafts == DraftCounts(3, 6, 6, [3, 3])
    assert plain.chunk_tokens == (1,) * 7
    assert plain.drafts.num_draft_tokens == 0
    assert list(spec.chunk_ns) == sorted(set(spec.chunk_ns))
    assert spec.chunk_ns[-1] - spec.chunk_ns[0] >= 5_000_000  # two steps of 50 ms lie between the first and the last
    chat, raw = server.bodies
    assert server.paths == ["/v1/chat/completions", "/v1/completions"]
    assert chat["messages"] == [{"role": "user", "content": "hello"}]
    assert raw["prompt"] == "def f("
    assert (chat["speculation"], raw["speculation"]) == (True, False)
    assert all(body["ignore_eos"] and body["temperature"] == 0 and body["max_tokens"] == 7 for body in server.bodies)
    assert server.num_connections == 1  # which is kept


def test_a_server_that_tells_usage_only_at_the_end():
    """Chunks are timed, and their tokens are not made up."""
    with FakeOpenAI(has_running_usage=False) as server:
        answer = client_of(server).ask(CHAT, params("speculation", 7))
    assert answer.chunk_tokens is None
    assert len(answer.chunk_ns) == 3
    assert answer.num_output_tokens == 7


def test_a_server_that_tells_no_usage_is_refused():
    with FakeOpenAI(has_usage=False) as server, pytest.raises(MachineError, match="how many tokens"):
        client_of(server).ask(CHAT, params("speculation", 7))


def test_optional_fields_that_are_refused_are_left_out_from_then_on():
    with FakeOpenAI(refuses=("continuous_usage_stats", "ignore_eos")) as server:
        client = client_of(server)
        assert client.ask(CHAT, params("speculation", 7)).num_output_tokens == 7
        assert client.dropped == {"continuous_usage_stats", "ignore_eos"}
        asked = len(server.bodies)
        client.ask(CHAT, params("speculation", 7))
        assert len(server.bodies) == asked + 1
        assert "ignore_eos" not in server.bodies[-1]


def test_a_field_that_the_server_names_is_left_out_without_further_questions():
    with FakeOpenAI(refuses=("continuous_usage_stats", "return_perf_metrics"), names_param=True) as server:
        client = client_of(server)
        assert client.ask(CHAT, params("speculation", 7)).drafts is None
        assert client.dropped == {"continuous_usage_stats", "return_perf_metrics"}
        assert ABILITIES - client.abilities == {"output_ids", "logprobs", "token_origins", "draft_counts"}
        assert len(server.bodies) == 3


def test_what_is_refused_with_and_without_optional_fields_is_the_requests_own_fault():
    with FakeOpenAI(refuses=("max_tokens",)) as server:
        client = client_of(server)
        with pytest.raises(RequestError, match="refuses the request"):
            client.ask(CHAT, params("speculation", 7))
        assert client.dropped == frozenset()
        assert [body["max_tokens"] for body in server.bodies] == [7, 1]


def test_many_at_once_ask_once_what_is_refused():
    with FakeOpenAI(refuses=("ignore_eos",)) as server, ThreadPoolExecutor(8) as pool:
        client = client_of(server)
        answers = list(pool.map(lambda _: client.ask(CHAT, params("speculation", 7)), range(8)))
        assert {answer.num_output_tokens for answer in answers} == {7}
        probes = [body for body in server.bodies if body["max_tokens"] == 1]
        assert len(probes) == 5  # without any, and with each of four


@pytest.mark.parametrize("keep_alive", [True, False])
def test_a_stream_that_breaks_off(keep_alive):
    with FakeOpenAI(breaks_off=True, keep_alive=keep_alive) as server, pytest.raises(MachineError):
        client_of(server).ask(CHAT, params("plain", 4))


def test_a_stream_and_every_parameter():
    sampling = SamplingParams(max_tokens=4, temperature=0.5, top_k=3, seed=0, stop=("a",), logit_bias={5: 1.0})
    with FakeOpenAI() as server:
        client = client_of(server)
        *chunks, last = client.stream(Prompt("ids", input_ids=(5, 6)), Params(sampling), request_id="r")
        with pytest.raises(CapabilityError, match="log-probabilities"):
            client.ask(CHAT, Params(SamplingParams(logprobs=True)))
    assert "".join(chunk.text for chunk in chunks) == "xx"
    assert (last.completion.num_output_tokens, last.completion.finish_reason) == (4, "length")
    assert last.completion.drafts == DraftCounts(2, 4, 4, [2, 2])
    assert server.paths == ["/v1/completions"]
    body = server.bodies[0]
    assert (body["prompt"], body["temperature"], body["top_k"], body["seed"]) == ([5, 6], 0.5, 3, 0)
    assert (body["stop"], body["logit_bias"]) == (["a"], {"5": 1.0})
    assert "top_p" not in body


def test_a_server_without_the_switch():
    with FakeOpenAI(refuses=("speculation",)) as server, pytest.raises(RequestError, match="no switch") as caught:
        client_of(server).ask(CHAT, params("plain", 7))
    assert "--plain-url" in caught.value.remedy


def test_a_server_that_is_one_of_two_gets_no_switch():
    with FakeOpenAI(switches=False) as server:
        client = client_of(server, has_switch=False)
        assert client.ask(CHAT, params("plain", 4)).drafts is None
        assert len(server.bodies) == 1
        assert "speculation" not in server.bodies[0]
        assert "return_perf_metrics" not in server.bodies[0]
    with pytest.raises(CapabilityError, match="cannot be used for a test"):
        client.require("speculation_switch", purpose="a test")


def test_a_connection_that_went_stale_is_replaced():
    with FakeOpenAI(keep_alive=False) as server:
        client = client_of(server)
        for _ in range(3):
            assert client.ask(CHAT, params("speculation", 4)).num_output_tokens == 4


def test_which_model():
    with FakeOpenAI(models=("only",)) as server:
        client_of(server).ask(CHAT, params("plain", 4))
        assert server.bodies[0]["model"] == "only"
    with FakeOpenAI(models=("a", "m")) as server:
        client_of(server).ask(CHAT, params("plain", 4))
        assert server.bodies[0]["model"] == "m"
    with FakeOpenAI(models=("a", "b")) as server, pytest.raises(RequestError, match="which model") as caught:
        client_of(server)
    assert caught.value.got == "a, b"


def test_a_key_is_sent():
    with FakeOpenAI() as server:
        client_of(server, api_key="k").ask(CHAT, params("plain", 4))
        client_of(server).ask(CHAT, params("plain", 4))
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
        client_of(server).ask(CHAT, params("plain", 4))


@pytest.mark.parametrize("url", ["ftp://x:1", "http://", "http://x:99999"])
def test_what_is_no_address(url):
    with pytest.raises(RequestError, match="this is no"):
        OpenAIClient(url, "m")


def test_nobody_there():
    with pytest.raises(MachineError, match="cannot be reached"):
        OpenAIClient("http://127.0.0.1:9/v1", "m")
