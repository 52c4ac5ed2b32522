"""Numbers that overflow, in a draft or in the target, stay the business of one request."""

from __future__ import annotations

import pytest

from tests.runtime.models import HEAD_METHODS, prompts, tiny_engine, tiny_head, tiny_model
from trt_spec.runtime.drafters.draft_shapes import DynamicTree, StaticTree
from trt_spec.runtime.request import Request, SamplingParams

METHODS = ["draft_model", *HEAD_METHODS]
SHAPES = {
    "chain": None,
    "static": StaticTree([[0], [1], [0, 0]]),
    "drawn": StaticTree([[0], [1], [0, 0]], siblings="without_replacement"),
    "dynamic": DynamicTree(max_depth=2, top_k=2, max_total_draft_tokens=4),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", METHODS)
def test_draft_logits_without_a_law_end_a_draft_and_nothing_else(method, bad, shape, monkeypatch):
    """Every third run of the head gives one row that no token can be drawn from; seeded samples stay plain's."""
    if method == "multi-layer mtp" and SHAPES[shape] is not None:
        pytest.skip("chains only")
    target = tiny_model()
    engine = tiny_engine(method, target, draft_shape=SHAPES[shape], rule="exact_match", max_draft_len=3)
    head = engine.drafter.model if method == "draft_model" else tiny_head(method, target)
    logits, num_spoiled = head.logits, []

    def spoiled(*args):
        values = logits(*args).clone()
        num_spoiled.append(0)
        if len(num_spoiled) % 3 == 0:
            values.view(-1, values.shape[-1])[0, 5] = bad
        return values

    monkeypatch.setattr(head, "logits", spoiled)
    params = [SamplingParams(max_tokens=16, temperature=0.9 * (index % 2), seed=index) for index in range(4)]
    requests = [Request(str(i), tokens, params[i]) for i, tokens in enumerate(prompts(4, 32))]
    plain = tiny_engine(target=target).generate(requests)
    assert [g.token_ids for g in engine.generate(requests)] == [g.token_ids for g in plain]
    assert engine.stats.num_drafts > 0
    assert len(num_spoiled) > 3


@pytest.mark.parametrize("method", ["none", "draft_model", "eagle3", "multi-layer mtp"])
def test_a_failing_request_leaves_no_slot_behind_that_spoils_the_next_one(method):
    """It fails in the step in which its neighbour ends, when it could be moved, and its old slot forgotten."""
    target = tiny_model()
    plain = tiny_engine(target=target).generate([Request("x", (3, 4, 5), SamplingParams(max_tokens=30))])[0].token_ids
    if 31 in plain:
        pytest.fail("choose a prompt whose output does not hold token 31")
    engine = tiny_engine(method, target)
    target.embedding[31] = float("nan")
    engine.add(Request("ends", (3, 4, 5), SamplingParams(max_tokens=1)))
    engine.add(Request("fails", (31,) * 40, SamplingParams(max_tokens=9)))
    [failed] = [chunk for _ in range(3) for chunk in engine.step() if chunk.error]
    assert failed.request_id == "fails"
    for cache in (engine.cache, *(engine.drafter.caches if engine.drafter else ())):
        assert not cache.rows.isnan().any()
    again = engine.generate([Request(str(i), (3, 4, 5), SamplingParams(max_tokens=30)) for i in range(4)])
    assert [g.token_ids for g in again] == [plain] * 4


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "multi-layer mtp"])
def test_a_draft_that_overflowed_leaves_nothing_in_its_slot(method):
    """A token whose embedding the head lacks: its request is served, and the next ones in the slot are drafted for."""
    target = tiny_model()
    engine = tiny_engine(method, target, max_draft_len=3)
    spoiled = target.embedding.clone()
    spoiled[31] = float("nan")
    head = tiny_head(method, target)
    for part in getattr(head, "layers", [head]):
        part.embedding = spoiled
    params = SamplingParams(max_tokens=20, logit_bias={31: -100.0})
    ids = [(31,) * 30, *(tuple(token for token in tokens if token != 31) for tokens in prompts(3, 32))]
    requests = [Request(str(index), tokens, params) for index, tokens in enumerate(ids)]
    plain = tiny_engine(target=target).generate(requests)
    for _ in range(2):
        got = engine.generate(requests[::-1])[::-1]
        assert [g.token_ids for g in got] == [g.token_ids for g in plain]
    after = engine.generate(requests[1:])
    assert min(g.completion.num_drafts for g in after) > 3
    assert not any(cache.rows.isnan().any() for cache in engine.drafter.caches)


@pytest.mark.parametrize("ending", ["cancelled", "moved", "alone"])
@pytest.mark.parametrize("method", ["none", "draft_model", "eagle3"])
def test_an_overflow_in_the_middle_of_a_long_prompt_leaves_no_slot_spoiled(method, ending):
    """It is found at the end of its chunk, before the request can be cancelled or moved away from what it wrote."""
    target = tiny_model()
    [plain] = tiny_engine(target=target).generate([Request("x", (3, 4, 5), SamplingParams(max_tokens=30))])
    assert 31 not in plain.token_ids, "choose a prompt whose output does not hold token 31"
    engine = tiny_engine(method, target, max_num_tokens=24)
    target.embedding[31] = float("nan")
    if ending == "moved":
        engine.add(Request("ends", (3, 4, 5), SamplingParams(max_tokens=1)))
    engine.add(Request("fails", (31,) * 80, SamplingParams(max_tokens=9)))
    chunks = engine.step()
    if ending == "cancelled":
        engine.cancel("fails")
    while engine.has_work:
        chunks += engine.step()
    [failed] = [chunk for chunk in chunks if chunk.error]
    assert failed.request_id == "fails"
    requests = [Request(str(index), (3, 4, 5), SamplingParams(max_tokens=30)) for index in range(4)]
    assert all(answer.token_ids == plain.token_ids for answer in engine.generate(requests))
