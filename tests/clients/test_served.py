"""The engine on its own thread and the served model as clients: switches, ids, counts and errors."""

from __future__ import annotations

import pytest

from tests.runtime.models import tiny_engine
from trt_spec.clients import triton
from trt_spec.clients.client import Params
from trt_spec.clients.engine import EngineClient
from trt_spec.clients.prompts import Prompt, encoder
from trt_spec.clients.triton import ServedClient
from trt_spec.errors import CheckpointError, MachineError, RequestError
from trt_spec.runtime.request import Chunk, Completion, SamplingParams


def prompt_of(text):
    return Prompt("p", input_ids=tuple(3 + ord(letter) % 20 for letter in text))


def params(arm, max_tokens):
    return Params(SamplingParams(max_tokens=max_tokens, ignore_eos=True), speculation=arm == "speculation")


def test_an_engine():
    client, prompt = EngineClient(lambda: tiny_engine("draft_model")), prompt_of("abcabcabc")
    spec = client.ask(prompt, params("speculation", 16))
    plain = client.ask(prompt, params("plain", 16))
    for answer in (spec, plain):
        assert answer.num_output_tokens == sum(answer.chunk_tokens) == 16
        assert answer.num_input_tokens == 9
        assert list(answer.chunk_ns) == sorted(answer.chunk_ns)
        assert len(answer.chunk_ns) == len(answer.chunk_tokens)
    assert plain.drafts.num_draft_tokens == 0
    assert set(plain.chunk_tokens) == {1}
    assert spec.drafts.num_draft_tokens > 0
    assert len(spec.chunk_ns) < len(plain.chunk_ns)
    assert sum(spec.drafts.num_accepted_tokens_per_pos) == spec.drafts.num_accepted_tokens
    with pytest.raises(RequestError):
        client.ask(prompt_of("a" * 200), params("plain", 16))
    client.close()
    with pytest.raises(Exception, match="drain"):
        client.ask(prompt, params("plain", 16))


def test_an_engine_that_does_not_load():
    def load():
        raise CheckpointError("no engine here")

    with pytest.raises(CheckpointError, match="no engine here"):
        EngineClient(load)


def test_an_engine_that_fails():
    engine = tiny_engine("draft_model")

    def broken():
        raise ValueError("broken")

    engine.step = broken
    client = EngineClient(lambda: engine)
    with pytest.raises(MachineError, match="failed"):
        client.ask(prompt_of("abc"), params("plain", 4))


DONE = Completion("length", None, 4, 3, None, None, 6, 2, None, 0, 0, 0, 0)


class FakeTriton:
    def __init__(self, http_url=None, grpc_url=None, model_name=None):
        self.asked, self.is_closed, self.model_name = [], False, model_name
        self.url = grpc_url or http_url

    def generate_stream(self, ids, **options):
        self.asked.append((ids, options))
        yield Chunk("r", token_ids=[1, 2])
        yield Chunk("r", text="no token")
        yield Chunk("r", token_ids=[3], completion=DONE)

    def stream(self, ids, **options):
        yield from self.generate_stream(ids, over="grpc", **options)

    def close(self):
        self.is_closed = True


def test_a_served_model(monkeypatch):
    monkeypatch.setattr(triton, "TritonClient", FakeTriton)
    client, prompt = ServedClient("a:1", "m"), prompt_of("abcd")
    answer = client.ask(prompt, params("speculation", 3), request_id="r")
    assert answer.chunk_tokens == (2, 1)  # chunks without tokens are none
    drafts = answer.drafts  # as TensorRT-LLM tells them
    assert (drafts.num_drafts, drafts.num_draft_tokens, drafts.num_accepted_tokens) == (None, 6, 2)
    client.ask(prompt, params("plain", 3))
    assert [options["speculation"] for _, options in client.triton.asked] == [True, False]
    ids, options = client.triton.asked[0]
    assert ids == list(prompt.input_ids)
    assert options.pop("max_draft_len") is None
    assert options == {
        "request_id": "r", "max_tokens": 3, "min_tokens": 0, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": True,
        "logprobs": False, "speculation": True,
    }  # fmt: skip
    client.close()
    assert client.triton.is_closed
    assert client.ask(Prompt("raw", "def", is_chat=False), params("plain", 3)).num_output_tokens == 3
    assert client.triton.asked[-1][0] == "def"
    with pytest.raises(RequestError, match="no tokenizer"):
        client.ask(Prompt("chat", "hello"), params("plain", 3))
    with ServedClient("grpc://b:2", "m") as other:
        assert other.ask(prompt, params("plain", 3)).token_ids == (1, 2, 3)
    assert (other.triton.url, other.triton.asked[0][1]["over"]) == ("grpc://b:2", "grpc")


def test_chats_go_through_the_template_and_base_models_have_none():
    class Tokenizer:
        has_template = True

        def apply_chat_template(self, messages):
            if not self.has_template:
                raise CheckpointError("none")
            return f"<{messages[0]['content']}>"

        def encode(self, text, add_special_tokens=True):
            return [len(text), int(add_special_tokens)]

    assert encoder(Tokenizer())(Prompt("a", "abc")) == (5, 0)
    assert encoder(Tokenizer())(Prompt("a", "abc", is_chat=False)) == (3, 1)
    Tokenizer.has_template = False
    assert encoder(Tokenizer())(Prompt("a", "abc")) == (3, 1)
