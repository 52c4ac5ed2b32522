"""A drafter that raises costs drafts and nothing else: no request, no neighbour's output, no engine.

Against plain decoding, where the rule gives plain decoding's tokens, and against an undisturbed engine of the same
drafter, where a seeded output depends on the drafts.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import pytest

from tests.runtime.models import prompts, tiny_engine, tiny_head, tiny_model
from tests.runtime.test_drafter_life import Watch
from trt_spec.runtime.acceptance import Draft
from trt_spec.runtime.draft_lengths import DraftLengths, StepCosts
from trt_spec.runtime.drafters.draft_shapes import DynamicTree
from trt_spec.runtime.drafters.guard import DrafterGuard
from trt_spec.runtime.drafters.ngram import NgramDrafter
from trt_spec.runtime.drafters.ngram_first import NgramFirstDrafter
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.runtime.stats import EngineStats
from trt_spec.runtime.worker import EngineWorker

pytestmark = pytest.mark.drafter_raises

# One method for each way of keeping state: none but an index, a count, a row, features, features by layer.
STATES = ["ngram", "draft_model", "medusa", "eagle3", "multi-layer mtp", "eagle3, lookup first"]
# The calls in which it changes, for those that have them.
CHANGES = [
    *((method, "propose") for method in STATES),
    *((method, "prefill") for method in ("draft_model", "eagle3", "multi-layer mtp", "eagle3, lookup first")),
    *((method, "commit") for method in ("medusa", "eagle3", "multi-layer mtp", "eagle3, lookup first")),
]
CALLS = ["prefill", "reachable_lengths", "propose", "commit"]
PARAMS = [SamplingParams(max_tokens=14 + 3 * i, temperature=0.9 * (i % 2), seed=i, top_p=0.9) for i in range(6)]
REQUESTS = [Request(str(i), tokens, PARAMS[i]) for i, tokens in enumerate(prompts(6, 32))]


def engine_of(method, target, *, rule="exact_match", is_adaptive=False, **kwargs):
    """Three slots and prompts in chunks, so that sequences move and every call meets several of them."""
    lengths = DraftLengths(None, StepCosts() if is_adaptive else None)
    name, _, lookup = method.partition(", ")
    kwargs = {"max_draft_len": 3, "max_batch_size": 3, "max_num_tokens": 24} | kwargs
    engine = tiny_engine(name, target, rule=rule, draft_lengths=lengths, **kwargs)
    if lookup:
        engine.drafter = NgramFirstDrafter(NgramDrafter(1, 3), engine.drafter)
    return engine


def token_ids(answers):
    return [answer.token_ids for answer in answers]


@pytest.fixture(scope="module")
def plain():
    target = tiny_model()
    return target, token_ids(tiny_engine(target=target).generate(REQUESTS))


@cache
def undisturbed(method, target):
    """What a method gives under a rule whose outputs depend on the drafts."""
    return engine_of(method, target, rule="rejection").generate(REQUESTS)


class Fault:
    """Makes a function raise at its `first` call, or from there on, before or after its work; for `request` alone."""

    def __init__(self, function, *, first=2, is_lasting=False, is_late=False, request=None):
        self.function, self.first, self.is_lasting, self.is_late = function, first, is_lasting, is_late
        self.request, self.num_calls, self.num_raised = request, 0, 0

    def __call__(self, *args):
        self.num_calls += 1
        is_due = self.num_calls >= self.first if self.is_lasting else self.num_calls == self.first
        if self.request is not None:
            ids = {getattr(item, "sequence", item[0] if isinstance(item, tuple) else item) for item in args[0]}
            is_due = self.request in {sequence.request.request_id for sequence in ids}
        if is_due and not self.is_late:
            self.fail()
        result = self.function(*args)
        if is_due:
            self.fail()
        return result

    def fail(self):
        self.num_raised += 1
        raise IndexError("index out of range in self")


def break_call(monkeypatch, drafter, call, **kwargs) -> Fault:
    fault = Fault(getattr(drafter, call), **kwargs)
    monkeypatch.setattr(drafter, call, fault)
    return fault


@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "always"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("method", ["draft_model", "eagle3, lookup first"])
def test_every_request_ends_as_in_plain_decoding(method, call, is_lasting, plain, monkeypatch):
    target, want = plain
    engine = engine_of(method, target, is_adaptive=call == "reachable_lengths")
    fault = break_call(monkeypatch, engine.drafter, call, is_lasting=is_lasting)
    assert token_ids(engine.generate(REQUESTS)) == want
    assert 0 < fault.num_raised <= engine.stats.num_drafter_errors
    if not is_lasting:
        assert engine.stats.num_drafts > 5
    if is_lasting and call in ("propose", "prefill"):
        # Nobody asks again and again: twice each, together and alone, but for what comes before the first fault.
        assert fault.num_raised <= 3 * len(REQUESTS)


@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize(("method", "call"), CHANGES)
def test_a_fault_that_passes_changes_nothing(method, call, first, plain, monkeypatch):
    """What a call had changed when it raised is taken back: the same drafts, so the same seeded outputs."""
    target, _ = plain
    engine = engine_of(method, target, rule="rejection")
    fault = break_call(monkeypatch, engine.drafter, call, first=first, is_late=True)
    got, want = engine.generate(REQUESTS), undisturbed(method, target)
    assert token_ids(got) == token_ids(want)
    assert [g.completion.accepted_per_position for g in got] == [g.completion.accepted_per_position for g in want]
    assert fault.num_raised == engine.stats.num_drafter_errors == 1


@pytest.mark.parametrize(("method", "call"), CHANGES)
def test_one_bad_request_costs_its_neighbours_nothing(method, call, plain, monkeypatch):
    target, plain_ids = plain
    want = undisturbed(method, target)
    engine = engine_of(method, target, rule="rejection")
    fault = break_call(monkeypatch, engine.drafter, call, request="2")  # the greedy one with the longest prompt
    got = engine.generate(REQUESTS)
    assert got[2].token_ids == plain_ids[2]
    assert got[2].completion.num_drafts == 0
    others = [index for index in range(6) if index != 2]
    assert [got[i].token_ids for i in others] == [want[i].token_ids for i in others]
    assert [got[i].completion.num_drafts for i in others] == [want[i].completion.num_drafts for i in others]
    assert 0 < fault.num_raised <= 3


def spots(engine):
    """Where a drafter's networks run: what raises there leaves the drafter in the middle of its work."""
    drafter = engine.drafter
    network = getattr(drafter, "model", None) or getattr(drafter, "head", None) or drafter.heads
    return [(network, name) for name in ("forward", "logits", "target_features") if hasattr(network, name)] + [
        (drafter.draft_shape, "grow"),
        (drafter.draft_shape, "finish"),
    ]


@pytest.mark.parametrize(
    ("method", "draft_shape"),
    [
        *((method, None) for method in ("draft_model", "medusa", "eagle3", "multi-layer mtp")),
        ("eagle3", DynamicTree(max_depth=3, top_k=2, max_total_draft_tokens=5)),
    ],
    ids=lambda value: value if isinstance(value, str) else "tree" if value else "chain",
)
def test_a_fault_in_the_middle_of_the_work(method, draft_shape, plain, monkeypatch):
    """In a later call of each part, once and for good; then drafts are again those from nothing."""
    target, want = plain
    checked = 0
    for spot in range(len(spots(engine_of(method, target)))):
        for first, is_lasting in ((4, False), (2, True))[: 1 if spot else 2]:
            # The heads of a target are shared by engines, hence the context.
            with monkeypatch.context() as patch:
                engine = engine_of(method, target, draft_shape=draft_shape)
                place, name = spots(engine)[spot]
                fault = break_call(patch, place, name, first=first, is_lasting=is_lasting)
                assert token_ids(engine.generate(REQUESTS)) == want, (name, first)
                assert fault.num_raised
            if draft_shape is None:
                watch = Watch(method, engine, stride=5)
                engine.generate(REQUESTS[::2])
                checked += watch.num_checked
    assert checked > 10 or draft_shape is not None


def test_numbers_that_a_failed_call_left_do_not_reach_a_neighbour(plain, monkeypatch):
    """The cache of a sequence that is given up is wiped: its rows are padding of the neighbours' attention."""
    target, _ = plain
    engine = engine_of("eagle", target, rule="exact_match")
    head = tiny_head("eagle", target)
    forward = head.forward

    def spoil(features, batch, cache, layer=0):
        if any(rows.slot == 1 for rows in batch.rows):
            cache.rows.view(1, cache.num_slots, cache.slot_len, -1)[:, 1] = float("nan")
            raise RuntimeError("out of memory")
        return forward(features, batch, cache, layer)

    with monkeypatch.context() as patch:
        patch.setattr(head, "forward", spoil)
        engine.generate(REQUESTS[:3])
        assert not engine.drafter.cache.rows.isnan().any()
    assert engine.generate(REQUESTS)[0].completion.num_drafts > 2


@pytest.mark.parametrize("tokens", [[31, 32], [-1], [5] * 9], ids=["beyond", "negative", "too long"])
def test_what_the_target_cannot_verify_is_no_draft(tokens, plain, monkeypatch):
    """It would read past the target's embedding, or write into the next slot."""
    target, want = plain
    engine = engine_of("ngram", target)
    monkeypatch.setattr(
        engine.drafter, "propose", lambda sequences, max_lens, source: [Draft.chain(tokens) for _ in sequences]
    )
    assert token_ids(engine.generate(REQUESTS)) == want
    assert engine.stats.num_drafts == 0
    assert engine.stats.num_drafter_errors >= len(REQUESTS)


def test_nothing_is_kept_of_a_request_that_is_given_up(plain, monkeypatch):
    engine = engine_of("eagle3", plain[0])
    break_call(monkeypatch, engine.drafter, "propose", is_lasting=True)
    engine.add(REQUESTS[0])
    engine.add(REQUESTS[1])
    for _ in range(6):
        engine.step()
    assert [(s.is_drafting_over, s.drafter_states) for s in engine.scheduler.running] == [(True, {})] * 2


def test_neighbours_of_a_request_that_is_given_up_get_their_own_answers():
    """Asked together, which raises, and alone; the call for the second one, which is not followed, is never made."""
    sequences = [SimpleNamespace(is_drafting_over=index == 1, drafter_states={}, slot=index) for index in range(4)]

    def call(part):
        if part.stop - part.start > 1:
            raise RuntimeError("together")
        return "abcd"[part]

    guard = DrafterGuard(EngineStats())
    assert guard.ask(NgramDrafter(1, 2), sequences, call) == ["a", None, "c", "d"]
    assert guard.stats.num_drafter_errors == 1


def test_an_answer_for_each_sequence(plain, monkeypatch):
    target, want = plain
    engine = engine_of("ngram", target)
    monkeypatch.setattr(engine.drafter, "propose", lambda sequences, max_lens, source: [])
    assert token_ids(engine.generate(REQUESTS)) == want
    assert engine.stats.num_drafter_errors >= len(REQUESTS)


def test_it_is_logged_once_and_counted(plain, monkeypatch, caplog):
    target, _ = plain
    engine = engine_of("draft_model", target)
    break_call(monkeypatch, engine.drafter, "propose", is_lasting=True)
    engine.generate(REQUESTS)
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert record.exc_info[0] is IndexError
    assert engine.stats.num_drafter_errors > len(REQUESTS)


def test_what_is_no_error_passes(plain, monkeypatch):
    """Ctrl-C in the middle of a draft ends the run."""
    target, _ = plain
    engine = engine_of("draft_model", target)

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.drafter, "propose", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(REQUESTS)
    assert engine.stats.num_drafter_errors == 0


def test_the_worker_lives_on(plain, monkeypatch):
    target, want = plain
    engine = engine_of("eagle3", target)
    for call in CALLS:
        break_call(monkeypatch, engine.drafter, call, is_lasting=True)
    worker, chunks = EngineWorker(engine).start(), {request.request_id: [] for request in REQUESTS}
    worker.submit_all(REQUESTS, lambda chunk: chunks[chunk.request_id].append(chunk))
    assert worker.drain(60)
    worker.close()
    assert worker.failure is None
    assert [[t for chunk in chunks[r.request_id] for t in chunk.token_ids] for r in REQUESTS] == want
