"""Synthetic acceptance: coins at the stated rates, full drafts, an engine that is as it was afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.models import prompts, tiny_engine
from trt_spec.config.rates import check_rates, parse_rates
from trt_spec.errors import CapabilityError, UsageError
from trt_spec.runtime.acceptance import ACCEPTANCE_RULES
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.runtime.synthetic import SYNTHETIC, FullLengthDrafter, synthetic_acceptance

RATES = (0.9, 0.6, 0.3)


def run(engine, *, num_requests=24, temperature=0.0, num_tokens=48):
    params = [
        SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=temperature, seed=seed)
        for seed in range(num_requests)
    ]
    requests = [
        Request(str(index), prompt, one)
        for index, (prompt, one) in enumerate(zip(prompts(num_requests, 32, longest=12), params, strict=True))
    ]
    return engine.generate(requests)


@pytest.mark.parametrize("method", ["none", "ngram", "draft_model", "medusa", "eagle3"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_each_position_stands_as_often_as_its_coin_says(method, temperature):
    """Within 4.5 standard deviations at each position: a wrong alarm in 1 of 100 000 runs; the runs are seeded."""
    engine = tiny_engine(method, max_draft_len=3)
    with synthetic_acceptance(engine, RATES):
        answers = run(engine, temperature=temperature)
    stats = engine.stats
    assert stats.num_output_tokens == sum(len(answer.token_ids) for answer in answers) == 24 * 48
    reached = stats.num_drafts
    for rate, accepted in zip(RATES, stats.num_accepted_tokens_per_pos, strict=True):
        deviation = np.sqrt(rate * (1 - rate) * reached)
        # The last draft of a request is cut to what may still come, so a few positions were not there to be accepted.
        assert -4.5 * deviation - 24 <= accepted - rate * reached <= 4.5 * deviation
        reached = accepted


def test_drafts_are_filled_to_their_length():
    """A lookup that finds nothing still costs rows: every drafted step but the last ones has all of them."""
    engine = tiny_engine("ngram", max_draft_len=4)
    with synthetic_acceptance(engine, (0.0, 0.0, 0.0)):
        [answer] = engine.generate(
            [Request("a", (1, 2, 3, 4, 5), SamplingParams(max_tokens=12, ignore_eos=True))],
        )
    done = answer.completion
    assert done.total_accepted_draft_tokens == 0
    assert (done.num_drafts, done.total_draft_tokens) == (10, 8 * 3 + 2 + 1)  # the last three have room for 3, 2, 1, 0


def test_the_engine_is_as_it_was_afterwards():
    engine = tiny_engine("ngram")
    before = run(engine, num_requests=3)
    kept = (engine.rule, engine.drafter, engine.limits)
    with synthetic_acceptance(engine, (0.5,)):
        assert engine.rule.name == SYNTHETIC
        assert not engine.rule.is_lossless
        assert isinstance(engine.drafter, FullLengthDrafter)
        run(engine, num_requests=2)
    assert (engine.rule, engine.drafter, engine.limits) == kept
    assert [one.token_ids for one in run(engine, num_requests=3)] == [one.token_ids for one in before]


def test_a_refusal_leaves_the_engine_alone():
    engine = tiny_engine("ngram", max_draft_len=2)
    kept = (engine.rule, engine.drafter, engine.limits)
    with pytest.raises(UsageError, match="more positions"), synthetic_acceptance(engine, (0.5,) * 3):
        pass
    assert (engine.rule, engine.drafter, engine.limits) == kept


def test_an_engine_without_a_drafter_gets_a_free_one():
    """All coins heads: every step gives as many tokens as were drafted, and one more."""
    engine = tiny_engine("none")
    with synthetic_acceptance(engine, (1.0, 1.0)):
        [answer] = engine.generate([Request("a", (1, 2), SamplingParams(max_tokens=16, ignore_eos=True))])
    assert answer.completion.num_drafts == 5  # 1 token from the prompt, then 3 a step
    assert answer.completion.mean_acceptance_length == 3


def test_no_config_can_ask_for_it():
    assert SYNTHETIC not in ACCEPTANCE_RULES


@pytest.mark.parametrize("rates", [(), (1.2,), (-0.1, 0.5), (float("nan"),), (0.5,) * 65])
def test_what_is_no_profile_is_refused(rates):
    with pytest.raises(UsageError, match="acceptance profile"):
        check_rates(rates)


@pytest.mark.parametrize("text", ["", "0.8,", "high", "0.8;0.7", "1.5"])
def test_what_is_no_profile_on_the_command_line_is_refused(text):
    with pytest.raises(UsageError, match="acceptance profile"):
        parse_rates(text)
    assert parse_rates("0.8, 0.7,1") == (0.8, 0.7, 1.0)
    assert parse_rates(None) is None


def test_a_context_without_room_is_refused():
    engine = tiny_engine("none", max_seq_len=8)
    with pytest.raises(CapabilityError, match="no room"), synthetic_acceptance(engine, (0.5,) * 4):
        pass
    assert engine.drafter is None
