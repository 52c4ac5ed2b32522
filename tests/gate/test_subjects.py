"""The engine and the Triton server as subjects: switches, ids, counts and errors."""

from __future__ import annotations

import pytest

from tests.runtime.models import tiny_engine
from trt_spec.clients.prompts import Prompt
from trt_spec.errors import CheckpointError, MachineError, RequestError
from trt_spec.gate.measure import SystemClock
from trt_spec.gate.subjects import EngineSubject, TritonSubject, encoder
from trt_spec.runtime.request import Chunk, Completion


def encode(prompt):
    return tuple(3 + ord(letter) % 20 for letter in prompt.text)


def test_an_engine():
    subject = EngineSubject(lambda: tiny_engine("draft_model"), encode, SystemClock())
    prompt = Prompt("a", "abcabcabc")
    spec = subject.ask(prompt, "speculation", 16, "r1")
    plain = subject.ask(prompt, "plain", 16, "r2")
    for answer in (spec, plain):
        assert answer.num_output_tokens == sum(answer.chunk_tokens) == 16
        assert answer.num_input_tokens == 9
        assert list(answer.chunk_ns) == sorted(answer.chunk_ns)
        assert len(answer.chunk_ns) == len(answer.chunk_tokens)
    assert plain.num_draft_tokens == 0
    assert set(plain.chunk_tokens) == {1}
    assert spec.num_draft_tokens > 0
    assert len(spec.chunk_ns) < len(plain.chunk_ns)
    assert sum(spec.num_accepted_tokens_per_pos) == spec.num_accepted_tokens
    with pytest.raises(RequestError):
        subject.ask(Prompt("long", "a" * 200), "plain", 16, "r3")
    subject.close()
    with pytest.raises(Exception, match="drain"):
        subject.ask(prompt, "plain", 16, "r4")


def test_an_engine_that_does_not_load():
    def load():
        raise CheckpointError("no engine here")

    with pytest.raises(CheckpointError, match="no engine here"):
        EngineSubject(load, encode, SystemClock())


def test_an_engine_that_fails():
    engine = tiny_engine("draft_model")

    def broken():
        raise ValueError("broken")

    engine.step = broken
    subject = EngineSubject(lambda: engine, encode, SystemClock())
    with pytest.raises(MachineError, match="failed"):
        subject.ask(Prompt("a", "abc"), "plain", 4, "r")


DONE = Completion("length", None, 4, 3, None, None, 6, 2, None, 0, 0, 0, 0)


class FakeClient:
    def __init__(self):
        self.asked = []
        self.is_closed = False

    def generate_stream(self, ids, **options):
        self.asked.append((ids, options))
        yield Chunk("r", token_ids=[1, 2])
        yield Chunk("r", text="no token")
        yield Chunk("r", token_ids=[3], completion=DONE)

    def close(self):
        self.is_closed = True


def test_a_triton_server(monkeypatch):
    subject = TritonSubject({"plain": "a:1", "speculation": "b:1"}, "m", encode, SystemClock())
    clients = {arm: FakeClient() for arm in ("plain", "speculation")}
    subject._clients = {arm: (False, client) for arm, client in clients.items()}
    answer = subject.ask(Prompt("a", "abcd"), "speculation", 3, "r")
    assert answer.chunk_tokens == (2, 1)  # chunks without tokens are none
    assert (answer.num_drafts, answer.num_draft_tokens, answer.num_accepted_tokens) == (None, 6, 2)
    subject.ask(Prompt("a", "abcd"), "plain", 3, "r")
    assert [client.asked[0][1]["speculation"] for client in clients.values()] == [False, True]
    assert all(client.asked[0][1]["ignore_eos"] for client in clients.values())
    assert clients["plain"].asked[0][0] == list(encode(Prompt("a", "abcd")))
    subject.close()
    assert all(client.is_closed for client in clients.values())


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
