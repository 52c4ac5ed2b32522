"""The batched engine: speculation changes nothing but the number of steps."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tests.runtime.models import HEAD_METHODS, cold_logits, prompts, tiny_engine, tiny_model
from trt_spec.errors import OverloadedError, RequestError
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.draft_lengths import DraftLengths, StepCosts
from trt_spec.runtime.drafters.draft_shapes import Chain, DynamicTree, GrowingTree, StaticTree
from trt_spec.runtime.drafters.ngram import NgramDrafter
from trt_spec.runtime.drafters.ngram_first import NgramFirstDrafter
from trt_spec.runtime.request import ACCEPTED, TARGET, Request, SamplingParams

TIE = 1e-4  # two logits closer than this may change places between two shapes of the same sum, in float32
METHODS = ["ngram", "draft_model", *HEAD_METHODS]
TREE_METHODS = ["draft_model", "medusa", "eagle", "eagle3", "mtp"]
LIKELY = ["ngram", "draft_model"]  # right often enough for blocks that are cut; random heads hardly ever are
VARIED = [*LIKELY, "medusa", "eagle3", "multi-layer mtp"]  # one of each kind: the others share their code
TREES = {
    "static": StaticTree([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1]]),
    "dynamic": DynamicTree(max_depth=4, top_k=3, max_total_draft_tokens=8),
    "drawn": StaticTree([[0], [1], [0, 0], [0, 1], [1, 0]], siblings="without_replacement"),
}


def run(engine, ids, params=None, *, speculation=True, tag=""):
    params = params or SamplingParams(max_tokens=24)
    requests = [Request(f"{tag}{index}", tokens, params, speculation) for index, tokens in enumerate(ids)]
    return engine.generate(requests)


def first_divergence(model, prompt, one, other):
    """None, "tie" or "different": two greedy outputs may part only where the two tokens' logits tie."""
    for position, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            logits = cold_logits(model, (*prompt, *one[:position]))[-1]
            return "tie" if abs(float(logits[a] - logits[b])) < TIE else "different"
    return None


PROMPTS = prompts(50, 32)[:16]


@cache
def plain_outputs():
    """A target and its plain greedy outputs at batch 1, for all the tests that compare with them."""
    target = tiny_model()
    return target, run(tiny_engine(target=target, max_batch_size=1), PROMPTS)


def assert_equals_plain(engine):
    target, plain = plain_outputs()
    for prompt, a, b in zip(PROMPTS, plain, run(engine, PROMPTS), strict=True):
        assert first_divergence(target, prompt, a.token_ids, b.token_ids) != "different"


@pytest.mark.parametrize(("rule", "batch"), [("rejection", 4), ("greedy", 1), ("exact_match", 16)])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_equals_plain_token_for_token(method, batch, rule):
    engine = tiny_engine(method, plain_outputs()[0], rule=rule, max_batch_size=batch)
    assert_equals_plain(engine)
    # Random heads are right about once in 32 tokens; lookup and the perturbed twin far more often.
    least = 5 if method in HEAD_METHODS else 50
    assert engine.stats.num_accepted_tokens > least, "the speculative path must have run"
    assert engine.stats.num_accepted_tokens < engine.stats.num_draft_tokens, "and so must rejection"


def per_draft(engine):
    return engine.stats.num_accepted_tokens / engine.stats.num_drafts


@cache
def chain_per_draft(method, depth):
    chain = tiny_engine(method, plain_outputs()[0], max_draft_len=depth)
    run(chain, PROMPTS)
    return per_draft(chain)


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("method", TREE_METHODS)
def test_trees_equal_plain_token_for_token(method, shape):
    rule = "exact_match" if shape == "static" else "rejection"
    engine = tiny_engine(method, plain_outputs()[0], rule=rule, max_batch_size=3, draft_shape=TREES[shape])
    assert_equals_plain(engine)
    assert engine.stats.num_accepted_tokens > (5 if method in HEAD_METHODS else 50)
    chain = chain_per_draft(method, TREES[shape].max_depth)
    assert per_draft(engine) >= chain, "a tree holds the chain of likeliest tokens"


PENALTIES = SamplingParams(max_tokens=24, frequency_penalty=1.5, presence_penalty=0.5, repetition_penalty=1.3)


@pytest.mark.parametrize(
    ("method", "shape"),
    [*((method, "chain") for method in VARIED), *((method, shape) for method in LIKELY[1:] for shape in TREES)],
)
def test_penalties_see_earlier_drafts_of_the_same_step(method, shape):
    target = tiny_model()
    plain = run(tiny_engine(target=target), prompts(6, 32), PENALTIES)
    engine = tiny_engine(method, target, draft_shape=TREES.get(shape))
    assert [g.token_ids for g in run(engine, prompts(6, 32), PENALTIES)] == [g.token_ids for g in plain]


@pytest.mark.parametrize(
    ("method", "shape"),
    [("none", "chain"), ("ngram", "chain"), ("eagle3", "dynamic")]
    + [("draft_model", shape) for shape in ("chain", *TREES)],
)
def test_cache_after_rollback_gives_cold_logits(method, shape):
    """After many accepted and rejected drafts the cache must be what a prefill of the same tokens gives."""
    engine = tiny_engine(method, draft_shape=TREES.get(shape))
    for index, tokens in enumerate(prompts(4, 32)):
        temperature = 0.8 * (index % 2)
        engine.add(Request(str(index), tokens, SamplingParams(max_tokens=40, temperature=temperature, seed=index)))
    for _ in range(12):
        engine.step()
    assert len(engine.scheduler.running) == 4
    for sequence in engine.scheduler.running:
        cold = engine.target.make_cache(1, engine.slot_len)
        cached = sequence.token_ids[: sequence.num_cached_tokens]
        assert len(cached) == len(sequence.token_ids) - 1
        batch = pack([Rows(0, 0, cached)], engine.slot_len, torch.float32, engine.target.device)
        with torch.inference_mode():
            engine.target.forward(batch, cold)
        for layer in range(len(cold.layers)):
            ours = engine.cache.slots(layer, sequence.slot, sequence.slot + 1, len(cached))
            torch.testing.assert_close(ours, cold.slots(layer, 0, 1, len(cached)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", VARIED)
def test_seeded_exact_match_equals_plain_sampling(method):
    """exact_match samples position n with the same random number as plain decoding, so outputs are equal."""
    params = SamplingParams(max_tokens=24, temperature=0.9, top_p=0.9, seed=5)
    target = tiny_model()
    plain = run(tiny_engine(target=target), prompts(8, 32), params)
    speculative = run(tiny_engine(method, target, rule="exact_match"), prompts(8, 32), params)
    assert [g.token_ids for g in plain] == [g.token_ids for g in speculative]


def test_speculation_off_is_plain_sampling():
    params = SamplingParams(max_tokens=24, temperature=0.9, seed=5)
    target = tiny_model()
    plain = run(tiny_engine(target=target), prompts(4, 32), params)
    off = run(tiny_engine("draft_model", target), prompts(4, 32), params, speculation=False)
    assert [g.token_ids for g in plain] == [g.token_ids for g in off]
    assert all(g.completion.num_drafts == 0 for g in off)


def test_seeds():
    engine = tiny_engine("draft_model")
    ids = prompts(1, 32) * 2
    same = [run(engine, ids[:1], SamplingParams(max_tokens=16, temperature=1.0, seed=3))[0].token_ids for _ in range(2)]
    other = run(engine, ids[:1], SamplingParams(max_tokens=16, temperature=1.0, seed=4))[0].token_ids
    unseeded = [g.token_ids for g in run(engine, ids, SamplingParams(max_tokens=16, temperature=1.0))]
    assert same[0] == same[1] != other
    assert unseeded[0] != unseeded[1], "two unseeded requests with one prompt must not share a stream"


# ---- combinations ----


def with_lookup_first(method, target, **kwargs):
    engine = tiny_engine(method, target, **kwargs)
    engine.drafter = NgramFirstDrafter(NgramDrafter(2, 4), engine.drafter)
    return engine


@pytest.mark.parametrize("method", VARIED[1:])
def test_lookup_before_a_neural_drafter(method):
    """Greedy output is plain's; both drafters are used; the neural one keeps up with what it did not propose."""
    engine = with_lookup_first(method, plain_outputs()[0])
    asked = []
    neural, propose = engine.drafter.inner, engine.drafter.inner.propose
    neural.propose = lambda sequences, *args: asked.append(len(sequences)) or propose(sequences, *args)
    assert_equals_plain(engine)
    assert 0 < sum(asked) < engine.stats.num_drafts


@pytest.mark.parametrize("method", [*LIKELY, "eagle3"])
def test_adaptive_draft_length_drafts_less_and_changes_nothing(method):
    target, _ = plain_outputs()
    policy = DraftLengths(None, StepCosts({1: 1.0, 4: 1.6, 20: 6.0}))
    fixed, adaptive = tiny_engine(method, target), tiny_engine(method, target, draft_lengths=policy)
    run(fixed, PROMPTS)
    assert_equals_plain(adaptive)

    def rate(engine):
        return engine.stats.num_accepted_tokens / engine.stats.num_draft_tokens

    assert adaptive.stats.num_draft_tokens < fixed.stats.num_draft_tokens
    assert rate(adaptive) > rate(fixed) or rate(fixed) < 0.05  # random heads are hardly ever right


def test_adaptive_lengths_ask_nothing_where_nothing_can_be_reached(monkeypatch):
    engine = tiny_engine("ngram", draft_lengths=DraftLengths(None, StepCosts({1: 1.0, 20: 1.1})))
    monkeypatch.setattr(engine.drafter, "reachable_lengths", lambda sequences, max_lens: [0] * len(sequences))
    monkeypatch.setattr(engine.drafter, "propose", lambda *args: pytest.fail("asked"))
    run(engine, PROMPTS[:2])


def test_a_draft_model_that_overflows_drafts_nothing_and_spoils_nothing():
    target = tiny_model()
    draft = tiny_model(noise=0.3)
    engine = tiny_engine("draft_model", target, draft)
    draft.embedding[31] = float("nan")
    plain = run(tiny_engine(target=target), prompts(6, 32))
    assert [g.token_ids for g in run(engine, [(31, 5), *prompts(6, 32)])][1:] == [g.token_ids for g in plain]
    clean = [p for p in prompts(6, 32) if 31 not in p]
    again = run(engine, clean)
    assert sum(g.completion.num_drafts for g in again) > 0


# ---- cutting inside an accepted block ----


def plain_output(params, prompt, **kwargs):
    return run(tiny_engine(**kwargs), [prompt], params)[0]


@pytest.mark.parametrize("method", LIKELY)
def test_max_tokens_cuts_exactly(method):
    prompt, engine = prompts(3, 32)[2], tiny_engine(method)
    want = plain_output(SamplingParams(max_tokens=13), prompt).token_ids
    for max_tokens in range(1, 14):
        [got] = run(engine, [prompt], SamplingParams(max_tokens=max_tokens))
        assert got.token_ids == want[:max_tokens]
        assert got.completion.num_output_tokens == len(got.token_ids) == max_tokens
        assert got.completion.finish_reason == "length"


@pytest.mark.parametrize("kind", ["eos", "stop"])
def test_eos_and_stop_id_cut_where_plain_does(kind):
    """Whatever token greedy emits at a position is declared to be the end; k = 4 puts it anywhere inside a block."""
    prompt, target, draft = PROMPTS[12], tiny_model(), tiny_model(noise=0.02)
    inside = 0
    free = plain_output(SamplingParams(max_tokens=12), prompt, target=target).token_ids
    for ending in dict.fromkeys(free[:8]):
        params = SamplingParams(max_tokens=12, stop_token_ids=(ending,) if kind == "stop" else ())
        eos = (ending,) if kind == "eos" else ()
        engine = tiny_engine("draft_model", target, draft, eos_token_ids=eos)
        [got] = run(engine, [prompt], params)
        assert got.token_ids == free[: free.index(ending) + 1]
        inside += got.token_origins[-1] == ACCEPTED
        counted, num_accepted = got.completion.drafts, got.token_origins.count(ACCEPTED)
        assert counted.num_accepted_tokens == sum(counted.num_accepted_tokens_per_pos) == num_accepted
        assert num_accepted == engine.stats.num_accepted_tokens, "what the end cut off was not accepted"
        assert got.completion.finish_reason == kind
        assert got.completion.stop_reason == (ending if kind == "stop" else None)
    assert inside > 4, "ends inside of accepted blocks"
    engine = tiny_engine("draft_model", target, draft, eos_token_ids=free[:1])
    assert run(engine, [prompt], SamplingParams(max_tokens=12, ignore_eos=True))[0].token_ids == free


@pytest.mark.parametrize("method", ["none", *VARIED])
def test_context_limit(method):
    limit, target = 48, tiny_model()
    prompt = (prompts(1, 32, longest=1)[0] * limit)[: limit - 1]
    for room in (1, 2, 4, 7):
        start = prompt[: limit - room]
        [got] = run(tiny_engine(method, target, max_seq_len=limit), [start], SamplingParams(max_tokens=20))
        assert len(got.token_ids) == room
        assert got.completion.finish_reason == "length"
        want = plain_output(SamplingParams(max_tokens=20), start, target=target, max_seq_len=limit)
        assert got.token_ids == want.token_ids


def test_draft_model_with_fewer_positions_stops_drafting_there():
    target = tiny_model()
    draft = tiny_model(noise=0.1, num_positions=24)
    engine = tiny_engine("draft_model", target, draft)
    prompt = prompts(1, 32)[0]
    long_prompt = (prompt * 40)[:40]
    [short, long] = run(engine, [prompt, long_prompt], SamplingParams(max_tokens=40))
    plain = run(tiny_engine(target=target), [prompt, long_prompt], SamplingParams(max_tokens=40))
    assert [short.token_ids, long.token_ids] == [g.token_ids for g in plain]
    assert short.completion.num_drafts > 0
    assert long.completion.num_drafts == 0


@pytest.mark.parametrize("method", LIKELY)
def test_min_tokens_counts_tokens_not_steps(method):
    prompt = prompts(3, 32)[2]
    free = plain_output(SamplingParams(max_tokens=20), prompt).token_ids
    params = SamplingParams(max_tokens=20, min_tokens=7)
    plain = run(tiny_engine(eos_token_ids=free[:1]), [prompt], params)[0]
    got = run(tiny_engine(method, eos_token_ids=free[:1]), [prompt], params)[0]
    assert got.token_ids == plain.token_ids
    assert free[0] not in got.token_ids[:7]


@pytest.mark.parametrize("method", ["none", "draft_model", "eagle3"])
def test_logprobs_are_the_targets(method):
    """One per token, equal to a teacher-forced pass, also for accepted, recovered and bonus tokens."""
    params = SamplingParams(max_tokens=16, temperature=0.8, seed=1, logprobs=True, frequency_penalty=0.5)
    prompt = prompts(3, 32)[2]
    engine = tiny_engine(method)
    [got] = run(engine, [prompt], params)
    rows = cold_logits(engine.target, (*prompt, *got.token_ids)).log_softmax(-1)[len(prompt) - 1 : -1]
    want = rows[range(len(got.token_ids)), got.token_ids]
    assert len(got.logprobs) == len(got.token_ids)
    torch.testing.assert_close(torch.tensor(got.logprobs), want, atol=1e-4, rtol=0)
    assert got.completion.cumulative_logprob == pytest.approx(sum(got.logprobs))


def test_masked_vocabulary_padding():
    engine = tiny_engine("draft_model", num_valid_tokens=20)
    ids = prompts(4, 20)
    outputs = run(engine, ids, SamplingParams(max_tokens=30, temperature=1.5, seed=0))
    assert max(token for g in outputs for token in g.token_ids) < 20
    assert max(token for g in run(engine, ids) for token in g.token_ids) < 20


@pytest.mark.parametrize("draft_vocab", [28, 36])
def test_draft_with_other_vocabulary_padding(draft_vocab):
    target = tiny_model(32)
    engine = tiny_engine("draft_model", target, tiny_model(draft_vocab, seed=4), num_valid_tokens=28)
    plain = tiny_engine(target=target, num_valid_tokens=28)
    ids = prompts(4, 28)
    assert [g.token_ids for g in run(engine, ids)] == [g.token_ids for g in run(plain, ids)]
    run(engine, ids, SamplingParams(max_tokens=20, temperature=1.0))


# ---- scheduling ----


@pytest.mark.parametrize("method", ["none", *VARIED])
def test_chunked_prefill_and_late_joiners_change_nothing(method):
    ids = prompts(10, 32)
    target = tiny_model()
    want = [g.token_ids for g in run(tiny_engine(target=target, max_num_tokens=512), ids)]
    engine = tiny_engine(method, target, max_batch_size=3, max_num_tokens=7)
    got: dict[str, list[int]] = {}
    waiting = [Request(str(i), tokens, SamplingParams(max_tokens=24)) for i, tokens in enumerate(ids)]
    while waiting or engine.has_work:
        if waiting:
            engine.add(waiting.pop(0))
        for chunk in engine.step():
            got.setdefault(chunk.request_id, []).extend(chunk.token_ids)
    assert [got[str(i)] for i in range(len(ids))] == want


@pytest.mark.parametrize("method", ["none", "draft_model", "eagle3"])
def test_cancel_frees_the_slot_and_leaves_neighbours_alone(method):
    ids = prompts(6, 32)
    target = tiny_model()
    want = [g.token_ids for g in run(tiny_engine(target=target), ids)]
    engine = tiny_engine(method, target, max_batch_size=3)
    for index, tokens in enumerate(ids):
        engine.add(Request(str(index), tokens, SamplingParams(max_tokens=24)))
    chunks = [*engine.step(), *engine.step()]
    for request_id in ("0", "5", "unknown"):
        engine.cancel(request_id)
    while engine.has_work:
        chunks += engine.step()
    ended = {chunk.request_id: chunk.completion for chunk in chunks if chunk.completion}
    assert ended["0"].finish_reason == ended["5"].finish_reason == "cancelled"
    for index in (1, 2, 3, 4):
        assert [t for c in chunks if c.request_id == str(index) for t in c.token_ids] == want[index]
    assert not engine.scheduler.running
    assert engine.stats.num_cancelled == 2


def test_queue_bound_and_bad_requests():
    engine = tiny_engine("ngram", max_batch_size=1, max_queue_size=1)
    engine.add(Request("a", (1,)))
    engine.add(Request("b", (1,)))
    with pytest.raises(OverloadedError, match="queue is full"):
        engine.add(Request("c", (1,)))
    while engine.has_work:
        engine.step()
    for request, name in (
        (Request("d", ()), "input_ids"),
        (Request("d", (99,)), "input_ids"),
        (Request("d", (1,) * 96), "prompt is longer"),
        (Request("d", (1,), max_draft_len=5), "max_draft_len"),
        (Request("d", (1,), SamplingParams(stop=("x",))), "stop"),
        (Request("d", (1,), SamplingParams(logit_bias={77: 1.0})), "logit_bias"),
    ):
        with pytest.raises(RequestError, match=name):
            engine.add(request)
    greedy = tiny_engine("ngram", rule="greedy")
    with pytest.raises(RequestError, match="temperature"):
        greedy.add(Request("d", (1,), SamplingParams(temperature=0.5)))


def test_max_draft_len_per_request():
    engine = tiny_engine("ngram")
    prompt = (1, 2, 3) * 8
    for limit in (0, 1, 2):
        [got] = engine.generate([Request("r", prompt, SamplingParams(max_tokens=20), max_draft_len=limit)])
        drafted = got.completion.total_draft_tokens
        assert drafted == 0 if limit == 0 else 0 < drafted <= limit * got.completion.num_drafts
        assert len(got.completion.accepted_per_position) <= limit


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle3"])
def test_every_token_says_where_it_came_from(method):
    engine = tiny_engine(method)
    for limit in (0, 1, 3):
        params = SamplingParams(max_tokens=40, temperature=0.7, seed=limit, ignore_eos=True)
        [got] = engine.generate([Request("r", (1, 2, 3) * 4, params, max_draft_len=limit)])
        origins, done = got.token_origins, got.completion
        assert len(origins) == len(got.token_ids) == 40
        assert origins.count(ACCEPTED) == done.total_accepted_draft_tokens
        assert origins[0] == TARGET  # the prompt's last row checks no draft
        steps = "".join(map(str, origins)).replace("0", "0 ").replace("2", "2 ").split()
        assert sum(step != "0" for step in steps) == done.num_drafts
        assert sum(step.endswith("2") for step in steps) == sum(
            1 for step in steps if step != "0" and not step.endswith("0")
        )
        if limit:
            assert max(len(step) for step in steps) <= limit + 1


def test_non_finite_logits_fail_one_request_only():
    engine = tiny_engine("draft_model")
    want = run(engine, [(3, 4)])[0].token_ids
    engine.target.embedding[31] = float("nan")
    engine.add(Request("bad", (31, 5), SamplingParams(max_tokens=8)))
    engine.add(Request("good", (3, 4), SamplingParams(max_tokens=24)))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    [error] = [chunk.error for chunk in chunks if chunk.error]
    assert "not finite" in str(error)
    good = [token for chunk in chunks if chunk.request_id == "good" for token in chunk.token_ids]
    assert 31 in want or good == want
    again = run(engine, [(3, 4)] * 4)
    assert all(31 in want or g.token_ids == want for g in again), "a slot that held a NaN must be clean"


@pytest.mark.parametrize("method", ["none", "draft_model", "eagle"])
@pytest.mark.parametrize("kind", ["overflow", "all masked"])
def test_a_request_that_leaves_no_token_fails_alone(method, kind):
    engine = tiny_engine(method)
    vocab = engine.target.vocab_size
    params = {
        "overflow": SamplingParams(max_tokens=8, temperature=1.0, repetition_penalty=1e-45),
        "all masked": SamplingParams(max_tokens=8, temperature=1.0, min_tokens=4, stop_token_ids=tuple(range(vocab))),
    }[kind]
    want = run(engine, [(3, 4)])[0].token_ids
    engine.add(Request("bad", tuple(range(vocab)), params))
    engine.add(Request("good", (3, 4), SamplingParams(max_tokens=24)))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    [error] = [chunk.error for chunk in chunks if chunk.request_id == "bad" and chunk.is_last]
    assert isinstance(error, RequestError)
    assert "no token to choose" in str(error)
    assert [token for chunk in chunks if chunk.request_id == "good" for token in chunk.token_ids] == want


@pytest.mark.parametrize("shape", ["chain", *TREES])
def test_a_draft_whose_whole_vocabulary_is_masked_is_none(shape):
    draft_shape = Chain(4) if shape == "chain" else TREES[shape]
    engine = tiny_engine()
    engine.add(Request("r", (3, 4), SamplingParams(max_tokens=8, temperature=1.0, logit_bias={5: 1.0})))
    [sequence] = engine._in_flight.values()
    tree = GrowingTree(sequence, 4, sequence.stream(engine.source))
    draft_shape.grow(tree, torch.full((1, engine.target.vocab_size), float("-inf")))
    assert tree.frontier == []
    assert len(draft_shape.finish(tree).token_ids) == 0
