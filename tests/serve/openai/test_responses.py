"""Chunks to OpenAI's objects, and where tokens begin in a text."""

from __future__ import annotations

import pytest

from tests import tiny
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import MachineError
from trt_spec.runtime.request import Chunk, Completion
from trt_spec.serve.openai.requests import Call
from trt_spec.serve.openai.responses import Writer


def done(reason="length", num=2):
    return Completion(reason, None, 3, num, None, 1, 4, 2, [1, 1], 1, 2, 3, 4)


def call(kind="completion", **fields):
    return Call(kind, ("a",), **{"parameters": {}, **fields})


@pytest.mark.parametrize(("reason", "shown"), [("length", "length"), ("stop", "stop"), ("eos", "stop")])
def test_reasons(reason, shown):
    answer = Writer(call(), "m", None).whole([[Chunk("r", "x", [1, 2], completion=done(reason))]])
    assert answer["choices"][0]["finish_reason"] == shown


def test_an_answer_that_was_stopped_from_elsewhere_is_an_error():
    with pytest.raises(MachineError, match="stopped this request"):
        Writer(call(), "m", None).whole([[Chunk("r", "x", [1], completion=done("cancelled"))]])


def test_a_prompt_counts_once_for_all_its_choices():
    writer = Writer(call(n=2), "m", None)
    answer = writer.whole([[Chunk("r", "x", [1, 2], completion=done())], [Chunk("s", "y", [3], completion=done())]])
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert [choice["text"] for choice in answer["choices"]] == ["x", "y"]


def test_an_empty_last_chunk_of_a_chat_still_ends_it():
    events = Writer(call("chat"), "m", None).events(0, Chunk("r", "", [], completion=done()))
    assert [event["choices"][0]["delta"] for event in events] == [{"role": "assistant", "content": ""}, {}]
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_an_echo_comes_once_per_choice():
    writer = Writer(call(n=2, echoes=("prompt ",)), "m", None)
    texts = [writer.events(index, Chunk("r", "x", [1]))[0]["choices"][0]["text"] for index in (0, 1, 0, 1)]
    assert texts == ["prompt x", "prompt x", "x", "x"]


@pytest.mark.parametrize("make", [tiny.byte_level_tokenizer, tiny.byte_fallback_tokenizer])
def test_tokens_and_offsets_add_up_to_the_text(tmp_path, make):
    make(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    ids = [*tokenizer.encode("the cat é世🎉 the", add_special_tokens=False)]
    ids = [*ids, ids[-1], next(i for i in ids if b"\xe4" in tokenizer.raw_bytes(i)), ids[0]]  # an unfinished character
    text = tokenizer.decode(ids)
    writer = Writer(call(parameters={"logprobs": True}), "m", tokenizer)
    shown = []
    for token in ids:  # one delta each
        part = writer.events(0, Chunk("r", "", [token], [-1.0]))[0]["choices"][0]["logprobs"]
        shown += zip(part["tokens"], part["text_offset"], strict=True)
    assert len(shown) == len(ids)
    whole = [(token, offset) for token, offset in shown if "\ufffd" not in token]
    assert len(whole) >= 3
    assert all(text[offset : offset + len(token)] == token for token, offset in whole)
