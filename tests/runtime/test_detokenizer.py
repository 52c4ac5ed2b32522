"""Streams of text: the pieces add up, no code point breaks, and no stop string leaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import RequestError
from trt_spec.runtime.detokenizer import Detokenizer

DEMO = Path(__file__).resolve().parents[2] / "checkpoints" / "smollm2-135m"
CHARACTERS = "abch the\n世界🎉é́👨‍👩‍👧\U0010ffff\x00 ."
TEXTS = st.text(st.sampled_from(CHARACTERS), max_size=24)
STOPS = st.lists(st.text(st.sampled_from("abch the世🎉é\n"), min_size=1, max_size=4), max_size=3)


@pytest.fixture(scope="module", params=["byte_level", "byte_fallback"])
def tokenizer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    {"byte_level": tiny.byte_level_tokenizer, "byte_fallback": tiny.byte_fallback_tokenizer}[request.param](folder)
    return Tokenizer.load(folder)


def stream(tokenizer, ids, stop=()):
    """All deltas, what stopped it, and how many ids were used."""
    detokenizer = Detokenizer(tokenizer, stop)
    deltas = []
    for used, token_id in enumerate(ids, 1):
        text, stopped_by = detokenizer.push(token_id)
        deltas.append(text)
        if stopped_by is not None:
            return deltas, stopped_by, used
    return [*deltas, detokenizer.finish()], None, len(ids)


@given(text=TEXTS)
@settings(max_examples=150)
def test_deltas_add_up_to_the_text(tokenizer, text):
    ids = tokenizer.encode(text)
    deltas, stopped_by, used = stream(tokenizer, ids)
    assert "".join(deltas) == tokenizer.decode(ids)
    assert (stopped_by, used) == (None, len(ids))


@given(data=st.data())
@settings(max_examples=150)
def test_any_ids_add_up_even_where_the_bytes_where_the_bytes_are_no_text(tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=16))
    deltas, _, _ = stream(tokenizer, ids)
    assert "".join(deltas) == tokenizer.decode(ids)


@pytest.mark.parametrize("text", ["a🎉b", "世界", "👨‍👩‍👧é́", "\U0010ffff", "the cat"])
def test_no_delta_ends_inside_a_code_point(tokenizer, text):
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids)
    deltas, _, _ = stream(tokenizer, ids)
    assert all("\ufffd" not in delta for delta in deltas)
    assert "".join(deltas) == whole


@pytest.mark.parametrize("text", ["𝔘", "м"])
def test_a_text_that_ends_inside_a_code_point_is_marked_at_the_end(tokenizer, text):
    ids = tokenizer.encode(text)[:-1]
    deltas, _, _ = stream(tokenizer, ids)
    assert deltas[-1] == "\ufffd"
    assert "".join(deltas) == tokenizer.decode(ids)


def cut_by_characters(text, stop):
    """The independent reference: reads character by character until some stop string is complete."""
    for end in range(len(text) + 1):
        complete = [string for string in stop if text[:end].endswith(string)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=TEXTS, stop=STOPS)
@settings(max_examples=300)
def test_stop_strings_cut_as_reading_by_characters_does(tokenizer, text, stop):
    ids = tokenizer.encode(text)
    want_text, want_stop = cut_by_characters(tokenizer.decode(ids), stop)
    deltas, stopped_by, used = stream(tokenizer, ids, stop)
    assert ("".join(deltas), stopped_by) == (want_text, want_stop)
    if stopped_by is not None:  # the last id used is the one that completes it
        assert stopped_by in tokenizer.decode(ids[:used])
        assert stopped_by not in tokenizer.decode(ids[: used - 1])


@given(text=TEXTS, stop=STOPS)
@settings(max_examples=150)
def test_only_what_may_begin_a_stop_string_is_held_back(tokenizer, text, stop):
    detokenizer, plain = Detokenizer(tokenizer, stop), Detokenizer(tokenizer)
    released = so_far = ""
    for token_id in tokenizer.encode(text):
        delta, stopped_by = detokenizer.push(token_id)
        if stopped_by is not None:
            return
        released += delta
        so_far += plain.push(token_id)[0]
        begins = [
            length
            for length in range(1, len(so_far) + 1)
            if any(string.startswith(so_far[-length:]) and len(string) > length for string in stop)
        ]
        assert released == so_far[: len(so_far) - max(begins, default=0)]


def test_a_stop_string_over_token_borders_never_leaks(tokenizer):
    ids = tokenizer.encode("the cat sat on the mat")
    deltas, stopped_by, _ = stream(tokenizer, ids, ["sat on"])
    assert "".join(deltas) == "the cat "
    assert stopped_by == "sat on"
    assert not any("s" in delta for delta in deltas)


def test_a_false_start_is_released_as_soon_as_it_fails(tokenizer):
    detokenizer = Detokenizer(tokenizer, ["abX"])
    for token_id in tokenizer.encode("c"):
        detokenizer.push(token_id)
    a, b, c = (tokenizer.encode(f"c{char}")[-1] for char in "abc")
    assert [detokenizer.push(token_id) for token_id in (a, b, c)] == [("", None), ("", None), ("abc", None)]


def test_after_a_stop_nothing_more_is_used(tokenizer):
    detokenizer = Detokenizer(tokenizer, ["a"])
    ids = tokenizer.encode("ca")
    assert [detokenizer.push(token_id) for token_id in ids][-1][1] == "a"
    assert [detokenizer.push(token_id) for token_id in ids] == [("", "a")] * len(ids)
    assert detokenizer.finish() == ""


def test_of_two_stop_strings_the_first_to_complete_wins(tokenizer):
    ids = tokenizer.encode("abcd")
    for stop in (["bcd", "c"], ["c", "bcd"]):
        deltas, stopped_by, _ = stream(tokenizer, ids, stop)
        assert "".join(deltas) == "ab"
        assert stopped_by == "c"
    assert stream(tokenizer, ids, ["c", "bc"])[1] == "bc"


def test_inside_one_token_too_the_first_to_complete_wins(tokenizer):
    ids = tokenizer.encode("the")
    assert len(ids) == 1
    assert stream(tokenizer, ids, ["the", "h"]) == (["t"], "h", 1)


def test_below_min_tokens_complete_stop_strings_pass(tokenizer):
    detokenizer = Detokenizer(tokenizer, ["a"])
    ids = tokenizer.encode("ca")
    assert [detokenizer.push(token_id, check_stop=False)[1] for token_id in ids] == [None] * len(ids)
    assert [detokenizer.push(token_id)[1] for token_id in ids][-1] == "a"


def test_special_tokens_add_nothing_and_break_nothing(tokenizer):
    ids = tokenizer.encode("世")
    eos = next(iter(tokenizer.eos_token_ids))
    deltas, _, _ = stream(tokenizer, [ids[0], eos, eos, *ids[1:]])
    assert "".join(deltas) == tokenizer.decode(ids)


@pytest.mark.parametrize("stop", [[""], "abc", [1], ["a", ""]])
def test_stop_strings_that_mean_nothing_are_refused(tokenizer, stop):
    with pytest.raises(RequestError):
        Detokenizer(tokenizer, stop)


@pytest.mark.demo_model
@pytest.mark.skipif(not (DEMO / "tokenizer.json").is_file(), reason="checkpoints/smollm2-135m is not fetched")
def test_the_real_tokenizer():
    from transformers import AutoTokenizer

    tokenizer = Tokenizer.load(DEMO)
    theirs = AutoTokenizer.from_pretrained(DEMO)
    text = "Naïve café: 世界 🎉👨‍👩‍👧 𝔘𝔫𝔦 مرحبا\n\tdef f(x): return x ** 2  # done."
    ids = tokenizer.encode(text)
    assert ids == theirs(text).input_ids
    assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == text
    deltas, _, _ = stream(tokenizer, ids)
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)
    for stop in ("界", "🎉", "return x", "# done"):
        deltas, stopped_by, _ = stream(tokenizer, ids, [stop])
        assert "".join(deltas) == text[: text.index(stop)]
        assert stopped_by == stop
