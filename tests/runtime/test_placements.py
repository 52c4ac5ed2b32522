"""Whatever ends an output, wherever in an accepted block it falls: what comes out is what plain decoding gives.

Hypothesis draws the placements; the drafter knows the plain answer, so that blocks are accepted and cut inside. Each
test counts what it has seen and fails where the case that it is about did not come.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from tests.runtime.scripted import NUM_ROWS, ScriptedTarget, check_cache, run_one, scripted_engine
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.runtime.request import ACCEPTED, Request, SamplingParams, join

CHARACTERS = "ab th世界🎉é\u0301👨\u200d\u00ad."
LENGTH = 24  # tokens of a script


@pytest.fixture(scope="module", params=["byte_level", "byte_fallback"])
def tokenizer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    {"byte_level": tiny.byte_level_tokenizer, "byte_fallback": tiny.byte_fallback_tokenizer}[request.param](folder)
    return Tokenizer.load(folder)


def table(vocab_size, seed):
    return torch.randn(NUM_ROWS, vocab_size, generator=torch.Generator().manual_seed(seed))


def speculated(engine, plain, script, request):
    """Chunks of the request, drafted with its plain answer and after that with the script."""
    answer = [*request.input_ids, *plain.token_ids]
    engine.drafter.answers[request.request_id] = answer + script[len(answer) :]
    return run_one(engine, request)


def read_as_plain(tokenizer, ids, params, eos, room):
    """The independent reference: token by token, and the text by characters."""
    text = ""
    for count, token in enumerate(ids, 1):
        before, text = text, tokenizer.decode(ids[:count]).rstrip("\ufffd")
        ends = [
            (end, -len(stop), stop)
            for stop in params.stop
            for end in range(1, len(text) + 1)
            if text[:end].endswith(stop) and end > len(before) and count >= params.min_tokens
        ]
        stop = min(ends)[2] if ends else None
        cut = text[: min(ends)[0] - len(stop)] if ends else tokenizer.decode(ids[:count])
        if token in eos:
            return count, cut, "eos", None
        if token in params.stop_token_ids:
            return count, cut, "stop", token
        if stop is not None:
            return count, cut, "stop", stop
        if count == min(params.max_tokens, room):
            return count, cut, "length", None
    raise AssertionError("it goes on")


@st.composite
def placements(draw, tokenizer):
    """A script, and endings that are likely to lie in it."""
    text = draw(st.text(st.sampled_from(CHARACTERS), min_size=3, max_size=12))
    ids = tokenizer.encode(text)
    prompt = draw(st.lists(st.sampled_from(ids), min_size=1, max_size=4))
    script = [0] * (len(prompt) - 1) + (ids * LENGTH)[:LENGTH]
    inside = st.integers(0, len(text) - 1)
    stops = [text[start : start + draw(st.integers(1, 3))] for start in draw(st.lists(inside, min_size=1, max_size=2))]
    max_tokens = draw(st.sampled_from([LENGTH, LENGTH, LENGTH, *range(1, LENGTH)]))
    kind = draw(st.sampled_from(["eos", "id", "string", "all", "none"]))
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.one_of(st.just(0), st.integers(0, min(4, max_tokens)))),
        stop=tuple(stops) if kind in ("string", "all") else (),
        stop_token_ids=(draw(st.sampled_from(ids)),) if kind in ("id", "all") else (),
        ignore_eos=kind == "none",
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        logprobs=True,
    )
    eos = (draw(st.sampled_from(ids)),) if kind in ("eos", "all", "none") else ()
    room = draw(st.sampled_from([LENGTH, LENGTH, LENGTH, *range(1, LENGTH)]))
    wrong = frozenset(draw(st.lists(st.integers(0, LENGTH + 4), max_size=4)))
    return prompt, script, params, eos, room, wrong, draw(st.sampled_from([1, 2, 4, 6])), draw(st.booleans())


def test_any_ending_anywhere_in_a_block_cuts_where_plain_decoding_does(tokenizer):
    seen = Counter()

    @given(data=st.data(), seed=st.integers(0, 9), boost=st.sampled_from([3.0, 20.0]))
    @settings(max_examples=150)
    def check(data, seed, boost):
        prompt, script, params, eos, room, wrong, max_draft_len, is_tree = data.draw(placements(tokenizer))
        target = ScriptedTarget(table(tokenizer.vocab_size, seed), script, boost)
        engine = scripted_engine(
            target,
            max_draft_len=max_draft_len,
            max_seq_len=len(prompt) + room,
            tokenizer=tokenizer,
            eos_token_ids=eos,
        )
        plain = join(run_one(engine, Request("plain", tuple(prompt), params, speculation=False)))
        engine.drafter.wrong, engine.drafter.is_tree = wrong, is_tree
        chunks = speculated(engine, plain, script, Request("drafted", tuple(prompt), params))
        got = join(chunks)
        assert (got.token_ids, got.text) == (plain.token_ids, plain.text)
        done, want = got.completion, plain.completion
        assert (done.finish_reason, done.stop_reason) == (want.finish_reason, want.stop_reason)
        assert got.logprobs == pytest.approx(plain.logprobs, abs=1e-5)
        assert done.num_output_tokens == len(got.token_ids) == len(got.token_origins) <= min(params.max_tokens, room)
        assert done.num_input_tokens == len(prompt)
        if done.finish_reason == "length":
            assert done.num_output_tokens == min(params.max_tokens, room)
        if not params.stop:
            assert got.text.rstrip("\ufffd") == tokenizer.decode(got.token_ids).rstrip("\ufffd")
        ends = () if params.ignore_eos else eos
        count, text, reason, stop = read_as_plain(tokenizer, got.token_ids, params, ends, room)
        assert (count, reason, stop) == (len(got.token_ids), done.finish_reason, done.stop_reason)
        assert got.text == text
        kind = "string" if isinstance(done.stop_reason, str) else done.finish_reason
        seen[kind, chunks[-1].token_origins[-1] == ACCEPTED] += 1
        seen["accepted"] += done.total_accepted_draft_tokens
        seen["rejected"] += done.total_draft_tokens - done.total_accepted_draft_tokens

    check()
    assert all(seen[kind, True] > 0 for kind in ("eos", "stop", "string")), seen
    assert seen["length", False] > 0
    assert min(seen["accepted"], seen["rejected"]) > 50


def test_stop_strings_count_from_the_token_that_makes_min_tokens(tokenizer):
    ids = tokenizer.encode("a世b")
    script = (ids * LENGTH)[:LENGTH]
    counts = set()
    for min_tokens in range(1, 9):
        params = SamplingParams(max_tokens=16, min_tokens=min_tokens, stop=("b",))
        engine = scripted_engine(
            ScriptedTarget(table(tokenizer.vocab_size, 0), script[1:], boost=50.0), tokenizer=tokenizer
        )
        engine.drafter.answers["r"] = script
        got = join(run_one(engine, Request("r", (script[0],), params)))
        assert got.token_ids == script[1 : 1 + len(got.token_ids)]
        count, text, *_ = read_as_plain(tokenizer, got.token_ids, params, (), LENGTH)
        assert (count, text) == (len(got.token_ids), got.text)
        counts.add(count - min_tokens)
    assert counts == set(range(len(ids)))  # 0: the very token that makes them


@pytest.mark.parametrize("is_tree", [False, True])
@pytest.mark.parametrize("text", ["a🎉b世界é", "👨\u200d👩\u200d👧é\u0301", "the cat 🎉"])
def test_deltas_are_whole_characters_wherever_a_block_ends(tokenizer, text, is_tree):
    """A wrong draft at every place in turn ends a block there; deltas hold whole characters and add up."""
    ids = tokenizer.encode(text)
    script = [ids[0], *ids]
    whole = tokenizer.decode(ids)
    num_deltas = set()
    for stop in ("", "🎉", "世"):
        for place in range(len(ids) + 2):
            target = ScriptedTarget(table(tokenizer.vocab_size, 0), script[1:], boost=50.0)
            engine = scripted_engine(target, max_draft_len=len(ids), tokenizer=tokenizer)
            engine.drafter.wrong, engine.drafter.is_tree = frozenset([place]), is_tree
            engine.drafter.answers["r"] = script
            params = SamplingParams(max_tokens=len(ids), stop=(stop,) if stop else ())
            chunks = run_one(engine, Request("r", (ids[0],), params))
            want = whole.split(stop)[0] if stop else whole
            assert "".join(chunk.text for chunk in chunks) == want
            assert not any("\ufffd" in chunk.text for chunk in chunks)
            assert chunks[-1].completion.finish_reason == ("stop" if stop and stop in whole else "length")
            num_deltas.add(len(chunks))
    assert len(num_deltas) > 1


def test_penalties_see_the_drafts_before_them_in_the_same_step():
    """The drafter proposes the plain, penalised answer: all of it is accepted, and only if each row is penalised for
    the drafts before it."""
    num_blocks = Counter()

    @given(
        seed=st.integers(0, 1000),
        frequency=st.floats(-1, 2),
        presence=st.floats(-1, 2),
        repetition=st.floats(0.5, 2),
        min_tokens=st.integers(0, 8),
        is_tree=st.booleans(),
        max_draft_len=st.integers(1, 6),
    )
    @settings(max_examples=100)
    def check(seed, frequency, presence, repetition, min_tokens, is_tree, max_draft_len):
        params = SamplingParams(
            max_tokens=20,
            min_tokens=min_tokens,
            frequency_penalty=frequency,
            presence_penalty=presence,
            repetition_penalty=repetition,
            logit_bias={1: 0.5},
        )
        engine = scripted_engine(ScriptedTarget(table(6, seed)), max_draft_len=max_draft_len, eos_token_ids=(3,))
        plain = join(run_one(engine, Request("plain", (1, 2), params, speculation=False)))
        engine.drafter.is_tree = is_tree
        got = join(speculated(engine, plain, [0] * 40, Request("drafted", (1, 2), params)))
        assert got.token_ids == plain.token_ids
        done = got.completion
        num_levels = done.total_draft_tokens // (2 if is_tree else 1)
        cut = len(got.token_ids) < 20 or None  # behind an end there are no tokens to know
        assert done.total_accepted_draft_tokens == num_levels or cut
        num_blocks["long"] += max_draft_len > 2 and done.total_accepted_draft_tokens > 4
        num_blocks["repeats"] += len(set(got.token_ids)) < len(got.token_ids)

    check()
    assert min(num_blocks["long"], num_blocks["repeats"]) > 10


def test_cancels_and_rollbacks_leave_every_slot_as_its_tokens():
    """Requests come and are cancelled at any step; the others say what they say alone, and nothing is left behind."""
    seen = Counter()

    @given(
        prompts=st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=20), min_size=1, max_size=8),
        wrong=st.frozensets(st.integers(1, 36), max_size=8),
        seed=st.integers(0, 100),
        is_tree=st.booleans(),
    )
    @settings(max_examples=40)
    def check(prompts, wrong, seed, is_tree):
        schedule = random.Random(seed)
        engine = scripted_engine(ScriptedTarget(table(12, seed)))
        params = SamplingParams(max_tokens=16)
        requests = [Request(str(number), tuple(prompt), params) for number, prompt in enumerate(prompts)]
        alone = [join(run_one(engine, Request("p", request.input_ids, params, False))) for request in requests]
        engine.drafter.wrong, engine.drafter.is_tree = wrong, is_tree
        for request, plain in zip(requests, alone, strict=True):
            engine.drafter.answers[request.request_id] = [*request.input_ids, *plain.token_ids]
        chunks, waiting = {request.request_id: [] for request in requests}, list(requests)
        while waiting or engine.has_work:
            for _ in range(schedule.randint(0, 3)):
                if waiting:
                    engine.add(waiting.pop(0))
            if schedule.randint(0, 5) == 0:
                engine.cancel(str(schedule.randrange(len(requests))))
            for chunk in engine.step():
                chunks[chunk.request_id].append(chunk)
            check_cache(engine)
        for request, plain in zip(requests, alone, strict=True):
            got = join(chunks[request.request_id])
            seen[got.completion.finish_reason] += 1
            whole = len(got.token_ids) if got.completion.finish_reason == "cancelled" else None
            assert got.token_ids == plain.token_ids[:whole]
            assert got.completion.num_output_tokens == len(got.token_ids)
        assert engine.scheduler.running == []
        again = join(run_one(engine, Request("again", requests[0].input_ids, params)))
        assert again.token_ids == alone[0].token_ids

    check()
    assert min(seen["cancelled"], seen["length"]) > 20
