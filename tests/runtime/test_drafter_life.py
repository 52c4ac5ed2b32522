"""Every draft of a long run is what the drafter would propose from nothing, whatever happened to the request before.

Lossless rules hide a drafter that reads wrong features or stale rows: the output stays right and only acceptance
falls. So these tests look at the drafts themselves, while requests come and go, move between slots, arrive in chunks,
stop speculating, take back an id that was used before, or are drafted for by lookup in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tests.runtime.models import HEAD_METHODS, prompts, tiny_engine, tiny_model
from tests.runtime.test_drafting import cold_next_logits, ranks
from trt_spec.runtime.draft_lengths import DraftLengths, StepCosts
from trt_spec.runtime.drafters.ngram import NgramDrafter
from trt_spec.runtime.drafters.ngram_first import NgramFirstDrafter
from trt_spec.runtime.request import RECOVERED, Request, SamplingParams

METHODS = ["draft_model", *HEAD_METHODS]
DEPTH = 3


@dataclass
class Watch:
    """Compares the first and the last token of every third greedy draft of an engine with a cold run."""

    method: str
    engine: object
    stride: int = 3
    num_seen: int = 0
    num_checked: int = 0

    def __post_init__(self) -> None:
        # Lookup, where it comes first, stays between the engine and the drafter that is watched.
        self.neural = getattr(self.engine.drafter, "inner", self.engine.drafter)
        self.propose, self.neural.propose = self.neural.propose, self.watched

    def watched(self, sequences, max_lens, source):
        assert all(1 <= length < sequence.room for sequence, length in zip(sequences, max_lens, strict=True))
        drafts = self.propose(sequences, max_lens, source)
        for sequence, draft, length in zip(sequences, drafts, max_lens, strict=True):
            assert len(draft.token_ids) <= length
            self.num_seen += 1
            if self.num_seen % self.stride == 0 and len(draft.token_ids):
                self.check(sequence, draft.token_ids.tolist())
        return drafts

    def check(self, sequence, tokens) -> None:
        self.num_checked += 1
        for depth in {0, len(tokens) - 1}:
            engine = self.engine
            engine.drafter, lookup = self.neural, engine.drafter
            logits = cold_next_logits(self.method, engine, sequence.token_ids, tokens[:depth])
            engine.drafter = lookup
            assert ranks(logits, tokens[depth]) == 0, (sequence.request.request_id, len(sequence.token_ids), depth)


def watched_engine(method, *, lookup=False, max_positions=None, **kwargs) -> tuple[object, Watch]:
    engine = tiny_engine(method, tiny_model(), max_draft_len=DEPTH, **kwargs)
    if max_positions is not None:
        engine.drafter.max_positions = max_positions
    if lookup:
        engine.drafter = NgramFirstDrafter(NgramDrafter(1, 3), engine.drafter)
    return engine, Watch(method, engine, 1 if lookup else 3)


def finish(engine, requests=()) -> None:
    """Runs an engine until it is idle; one more request joins per step."""
    waiting = list(requests)
    while waiting or engine.has_work:
        if waiting:
            engine.add(waiting.pop(0))
        engine.step()


def request(name, tokens, max_tokens=20, **kwargs) -> Request:
    return Request(str(name), tokens, SamplingParams(max_tokens=max_tokens), **kwargs)


def is_empty(drafter) -> bool:
    """Whether a drafter keeps nothing of any request: no table of its own, beside what goes with the sequences."""
    parts = [drafter.ngram, drafter.inner] if isinstance(drafter, NgramFirstDrafter) else []
    return not any(isinstance(value, dict) for value in vars(drafter).values()) and all(map(is_empty, parts))


@pytest.mark.parametrize("lookup", [False, True], ids=["alone", "lookup-first"])
@pytest.mark.parametrize("method", METHODS)
def test_slots_move_and_prompts_come_in_chunks(method, lookup):
    """Nine requests of different length on three slots, with prompts longer than a step."""
    engine, watch = watched_engine(method, lookup=lookup, max_batch_size=3, max_num_tokens=16)
    moved = []
    move = engine.scheduler._move
    engine.scheduler._move = lambda *args: moved.append(args[2].is_decoding) or move(*args)
    finish(engine, [request(i, tokens, 6 + 5 * (i % 4)) for i, tokens in enumerate(prompts(9, 32))])
    assert watch.num_checked > 10
    assert any(moved), "a decoding sequence changed its slot"
    assert is_empty(engine.drafter)


@pytest.mark.parametrize("method", METHODS)
def test_requests_without_speculation_stand_between_others(method):
    """Some ask for no drafts, some for short ones, so that prompts and drafts of every kind share a step."""
    engine, watch = watched_engine(method, max_num_tokens=48)
    lengths = [0, None, 1, None, 2, None, 0, 1]
    requests = [
        request(i, tokens, speculation=i != 3, max_draft_len=length)
        for i, (tokens, length) in enumerate(zip(prompts(8, 32)[::-1], lengths, strict=True))
    ]
    engine.generate(requests)
    assert watch.num_checked > 10
    assert is_empty(engine.drafter)


@pytest.mark.parametrize("method", ["ngram", *METHODS])
def test_an_id_may_be_used_again(method):
    """After an end, and after a cancellation in the prompt, in the queue and between drafts."""
    engine = tiny_engine(method, tiny_model(), max_draft_len=DEPTH, max_batch_size=2, max_num_tokens=16)
    watch = Watch(method, engine) if method != "ngram" else None
    for turn, tokens in enumerate(prompts(8, 32)):
        engine.add(request("same", tokens))
        engine.add(request("neighbour", tokens[::-1]))
        engine.add(request("queued", tokens))
        for _ in range(turn):
            engine.step()
        for name in ("same", "queued")[: turn % 3]:
            engine.cancel(name)
        finish(engine)
    assert watch is None or watch.num_checked > 10
    assert is_empty(engine.drafter)


@pytest.mark.parametrize("method", METHODS)
def test_adapted_lengths(method):
    engine, watch = watched_engine(method, draft_lengths=DraftLengths(None, StepCosts()))
    finish(engine, [request(i, tokens, 30) for i, tokens in enumerate(prompts(6, 32))])
    assert watch.num_checked > 10


@pytest.mark.parametrize("lookup", [False, True], ids=["alone", "lookup-first"])
@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3"])
def test_a_drafter_that_ends_before_the_target(method, lookup):
    """Drafts are right up to the last position, end there, and what was kept for them does not grow any further."""
    limit = 40
    engine, watch = watched_engine(method, lookup=lookup, max_positions=limit, max_batch_size=3, max_num_tokens=16)
    ids = [prompts(1, 32)[0], prompts(3, 32)[2], (prompts(4, 32)[3] * 4)[:42], (3, 4, 5) * 13]
    plain = tiny_engine(target=engine.target).generate([request(i, tokens, 40) for i, tokens in enumerate(ids)])
    ends = []
    propose = watch.neural.propose

    def recorded(sequences, max_lens, source):
        ends.extend(len(s.token_ids) + length for s, length in zip(sequences, max_lens, strict=True))
        assert max(max_lens) <= DEPTH
        return propose(sequences, max_lens, source)

    watch.neural.propose = recorded
    got = engine.generate([request(i, tokens, 40) for i, tokens in enumerate(ids)])
    assert [g.token_ids for g in got] == [g.token_ids for g in plain]
    assert max(ends) == limit
    assert watch.num_checked > 3
    assert got[2].completion.num_drafts == 0
    assert is_empty(engine.drafter)


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_features_are_kept_no_longer_than_they_can_be_read(method):
    engine, _ = watched_engine(method, max_positions=24)
    engine.add(request("short", (1, 2, 3), 80))
    engine.add(request("long", (1, 2, 3) * 10, 60))
    kept = []
    for _ in range(50):
        engine.step()
        states = [state for sequence in engine.scheduler.running for state in sequence.drafter_states.values()]
        kept.append(sum(len(chunk) for state in states for chunk in state.unread))
    assert len(engine.scheduler.running) == 2
    assert max(kept) <= DEPTH + 2


@pytest.mark.parametrize("rule", ["rejection", "exact_match"])
@pytest.mark.parametrize("method", ["ngram", *METHODS])
def test_bfloat16_drafts_and_ends(method, rule):
    """Features, caches and laws in the engine's type: nothing that assumes float32, at T = 0 and above."""
    engine = tiny_engine(method, tiny_model(dtype=torch.bfloat16), rule=rule, max_draft_len=DEPTH, max_num_tokens=16)
    params = [SamplingParams(max_tokens=20, temperature=t, seed=1, top_p=0.9) for t in (0.0, 0.9)]
    requests = [Request(str(i), tokens, params[i % 2]) for i, tokens in enumerate(prompts(6, 32))]
    got = engine.generate(requests)
    assert [len(g.token_ids) for g in got] == [20] * 6
    assert engine.stats.num_drafts > 10
    assert is_empty(engine.drafter)


@pytest.mark.parametrize("method", METHODS)
def test_prompts_of_one_and_two_tokens(method):
    """The shortest texts: layer j needs j tokens behind the one that it reads, and must not ask for more."""
    engine, watch = watched_engine(method)
    watch.stride = 1
    finish(engine, [request(index, tokens, 12) for index, tokens in enumerate([(3,), (4, 5), (6,), (7,), (8, 9)])])
    assert watch.num_checked >= 5
    assert is_empty(engine.drafter)


SAMPLERS = {
    "greedy": {},
    "T=1": {"temperature": 1.0},
    "filters": {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"temperature": 0.9, "frequency_penalty": 1.0, "presence_penalty": 0.7, "repetition_penalty": 1.3},
    "greedy penalties": {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.3},
    "bias": {"temperature": 1.0, "logit_bias": {1: 2.0, 2: -3.0}, "min_tokens": 9, "stop_token_ids": (5, 6, 7)},
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_draft_model_that_is_the_target_is_always_right(rule, sampler):
    """Drafts see the same penalties, masks and filters as the target, the earlier drafts of the step included.

    Equal laws accept with probability 1 but for rounding: 1e-12 in float64.
    """
    target = tiny_model(dtype=torch.float64)
    engine = tiny_engine("draft_model", target, target, rule=rule, max_draft_len=4)
    params = [SamplingParams(max_tokens=24, seed=seed, **SAMPLERS[sampler]) for seed in range(4)]
    answers = engine.generate([Request(str(i), tokens, params[i]) for i, tokens in enumerate(prompts(4, 32))])
    assert engine.stats.num_draft_tokens > 50
    assert not any(RECOVERED in answer.token_origins for answer in answers), "a draft was rejected"
