"""Calibration on tiny engines whose clock stands still but for what the test charges: what was charged is found."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.models import prompts, tiny_engine
from trt_spec.errors import CapabilityError
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.tuning.calibration import (
    check_prediction,
    clocked,
    drafts_of,
    measure_costs,
    measure_survival,
)
from trt_spec.tuning.planner import Planner
from trt_spec.tuning.survival import AcceptanceProfile


class Charged:
    """An engine that costs, in milliseconds: 10 a forward, 1 a row, 0.01 a cached token of its longest sequence, 2 a
    drafted level, 0.5 for scheduling, and 3 for each output layer."""

    def __init__(self, engine):
        self.engine, self.ms = engine, 0.0
        engine.now = self.now
        self._charge(engine.target, "forward", self._forward)
        self._charge(engine.target, "logits", lambda *args: 3.0)
        self._charge(engine.scheduler, "schedule", lambda *args: 0.5)
        if engine.drafter is not None:
            self._charge(engine.drafter, "propose", lambda sequences, lens, source: 2.0 * max(lens))

    def _charge(self, owner, name, price):
        original = getattr(owner, name)

        def charged(*args, **kwargs):
            self.ms += price(*args)
            return original(*args, **kwargs)

        setattr(owner, name, charged)

    def _forward(self, batch, *args):
        return 10.0 + batch.offsets[-1] + 0.01 * max(row.start for row in batch.rows)

    def now(self):
        return self.ms / 1e3


def charged(method="ngram", **kwargs):
    return Charged(tiny_engine(method, max_seq_len=256, max_batch_size=4, **kwargs))


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle3", "none"])
def test_costs_are_what_was_charged(method):
    subject = charged(method)
    costs = measure_costs(
        subject.engine,
        list(range(3, 30)),
        (0.6, 0.3),
        batches=(1, 3),
        draft_lens=(0, 1, 2),
        context=60,
    )
    assert (costs.batches, costs.draft_lens, costs.contexts) == ([1, 3], [0, 1, 2], [60, 120])
    for batch in (1, 3):
        for length in (0, 1, 2):
            rows = batch * (length + 1)
            assert costs.verify_ms(batch, length + 1) == pytest.approx(13 + rows + 0.6, abs=0.35)
            assert costs.overhead_ms(batch, length + 1) == pytest.approx(0.5)
            assert costs.draft_ms(batch, length) == pytest.approx(0 if method == "none" else 2 * length)
    slope = (costs._verify[:, :, 1] - costs._verify[:, :, 0]).mean() / 60
    assert slope == pytest.approx(0.01, abs=0.003)
    assert costs.prefill_ms_per_token == pytest.approx((13 + 60 + 0.5) / 60, rel=0.25)
    assert not subject.engine.has_work


def test_what_a_drafter_asks_of_the_target_is_drafting():
    """A head that goes through the target's output layer: those 3 ms are the draft's, and the target's own stay 3."""
    engine = tiny_engine("ngram", max_seq_len=128)
    subject = Charged(engine)
    propose = engine.drafter.propose

    def through_the_target(*args):
        engine.target.logits(torch.zeros(1, engine.target.config.hidden_size))
        return propose(*args)

    engine.drafter.propose = through_the_target
    engine.add(Request("a", (1, 2, 3, 4), SamplingParams(max_tokens=30, ignore_eos=True)))
    engine.now = before = lambda: 0.0
    with clocked(engine, subject.now), drafts_of(engine, 3):
        engine.step()
        record = engine.step()
    assert engine.now is before
    assert (record.batch, record.has_prompt) == (1, False)
    rows = 1 + sum(draft.drafted for draft in record.drafts)
    assert record.target_s * 1e3 == pytest.approx(10 + rows + 3, abs=0.1)
    assert record.draft_s * 1e3 == pytest.approx(6 + 3)
    assert record.overhead_s * 1e3 == pytest.approx(0.5)


def test_the_engine_is_as_it_was_afterwards():
    subject = charged()
    engine = subject.engine
    before = (engine.drafter, engine.draft_lengths, engine.rule, engine.limits, engine.target.forward)
    measure_survival(engine, prompts(2, 32), batch=2, num_tokens=8)
    measure_costs(engine, list(range(30)), (0.5,), batches=(1,), draft_lens=(0, 1), context=40)
    assert (engine.drafter, engine.draft_lengths, engine.rule, engine.limits, engine.target.forward) == before
    del engine.target.forward, engine.target.logits  # the test's own; nothing of the recorder is left below
    assert "forward" not in vars(engine.target)


@pytest.mark.parametrize("method", ["ngram", "draft_model", "medusa"])
def test_survival_counts_what_the_engine_counts(method):
    """Prompt by prompt, but for the steps at the end, whose drafts were cut."""
    engine = tiny_engine(method, max_draft_len=3, max_seq_len=128)
    asked = prompts(5, 32, longest=12)
    found = measure_survival(engine, asked, batch=4, num_tokens=40)
    alone = tiny_engine(method, engine.target, max_draft_len=3, max_seq_len=128)
    if method == "draft_model":
        alone.drafter.model = engine.drafter.model
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    for index, answer in enumerate(alone.generate([Request(str(i), ids, params) for i, ids in enumerate(asked)])):
        done, drafted = answer.completion, [drafted for drafted, _ in found[index]]
        steps = done.num_output_tokens - 1 - done.total_accepted_draft_tokens
        cut = steps - len(drafted)
        assert 0 <= cut <= 3  # the last drafts are cut to what may still come
        accepted = [*done.accepted_per_position, 0, 0, 0][:3]
        for position, ours in enumerate(accepted):
            assert 0 <= ours - sum(kept > position for _, kept in found[index]) <= cut
        assert done.total_draft_tokens - 3 * cut <= sum(drafted) <= done.total_draft_tokens
        assert method == "ngram" or set(drafted) == {3}


def test_a_right_prediction_is_found_right():
    """Survival and costs measured, then checked at a batch size in between: the clock's charges leave no noise."""
    subject = charged("draft_model")
    engine, asked = subject.engine, [tuple(prompt[:20]) for prompt in prompts(6, 32, longest=12)]
    found = measure_survival(engine, asked, batch=4, num_tokens=48)
    profile = AcceptanceProfile.measured(found, 4)
    costs = measure_costs(engine, list(range(30)), profile.rates, batches=(1, 4), draft_lens=(0, 1, 2, 4), context=40)
    planner = Planner(costs, profile)
    checked = check_prediction(engine, asked, planner, [(2, 4), (3, 2)], num_tokens=48)
    assert [(one.batch, one.draft_len) for one in checked] == [(2, 4), (3, 2)]
    assert sum(abs(one.error) for one in checked) / len(checked) < 0.04
    for one in checked:
        plain = 1e3 * one.batch / (13 + one.batch + 0.5 + 0.01 * 40)
        assert one.plain_tokens_per_s == pytest.approx(plain, rel=0.01)
        assert one.predicted_plain_tokens_per_s == pytest.approx(plain, rel=0.01)


def test_a_wrong_prediction_is_found_wrong():
    subject = charged("draft_model")
    asked = [tuple(prompt[:20]) for prompt in prompts(4, 32, longest=12)]
    costs = measure_costs(subject.engine, list(range(30)), (0.9, 0.9), batches=(1, 4), draft_lens=(0, 2), context=40)
    planner = Planner(costs, AcceptanceProfile.given([1.0, 1.0]))
    [one] = check_prediction(subject.engine, asked, planner, [(2, 2)], num_tokens=32)
    assert one.error > 0.1


def test_drafts_are_of_the_length_that_is_asked_whatever_the_config_says():
    engine = tiny_engine("draft_model", max_draft_len=4)
    with drafts_of(engine, 2):
        [answer] = engine.generate([Request("a", (1, 2, 3), SamplingParams(max_tokens=20, ignore_eos=True))])
    assert answer.completion.total_draft_tokens <= 2 * answer.completion.num_drafts


def test_a_context_too_short_to_time_in_is_refused():
    engine = tiny_engine("ngram", max_seq_len=40)
    with pytest.raises(CapabilityError, match="too short"):
        measure_costs(engine, [1, 2, 3], (0.9,) * 4, batches=(1,), draft_lens=(0, 2, 4), context=30)
    assert not engine.has_work
