"""Evidence per place in a step, and reported log-probabilities against the reference."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from tests.equivalence.test_harness import PARAMS, PROMPTS, harness
from trt_spec.equivalence.ledger import Ledger
from trt_spec.equivalence.reference.reported import Reported, errors
from trt_spec.equivalence.reference.scoring import NativeScorer, Served
from trt_spec.equivalence.roles import FULL_SHARE, ROLES, bound_multiple, roles_of
from trt_spec.equivalence.self_check.toys import VOCABULARY, toy_model
from trt_spec.equivalence.statistics.evidence import Evidence
from trt_spec.equivalence.statistics.sequential import Positions
from trt_spec.runtime.request import ACCEPTED, RECOVERED, TARGET

NO_DRAFT, FIRST, LATER, BONUS = range(4)


def test_roles_by_hand():
    steps = ([TARGET], [RECOVERED], [ACCEPTED, RECOVERED], [ACCEPTED, ACCEPTED, TARGET], [ACCEPTED, ACCEPTED])
    wanted = ([NO_DRAFT], [FIRST], [FIRST, LATER], [FIRST, LATER, BONUS], [FIRST, LATER])  # the last one was cut
    assert roles_of([*chain(*steps)]).tolist() == [*chain(*wanted)]
    assert roles_of([]).tolist() == []


def test_rare_roles_are_held_to_less():
    assert [bound_multiple(share) for share in (1.0, FULL_SHARE)] == [1.0, 1.0]
    assert bound_multiple(FULL_SHARE / 4) == pytest.approx(2.0)


def drawn(law, served, count, role, seed):
    """Positions of one role with one law, drawn from another."""
    tokens = np.random.default_rng(seed).choice(len(law), count, p=served)
    return Positions(
        np.tile(law, (count, 1)), tokens, {}, {"id": np.tile(np.arange(len(law)), (count, 1))}, np.full(count, role)
    )


def test_a_fault_in_one_role_is_seen_there_and_not_certified():
    """5 % of the tokens deviate by 0.3: 0.015 per token on average, far below τ = 0.05."""
    law, wrong = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.7, 0.2, 0.1, 0.0])
    pooled, split = Evidence((), ("id",), 0.05), Evidence.with_roles((), ("id",), 0.05, 0.0)
    for seed in range(40):
        for evidence in (pooled, split):
            evidence.update(drawn(law, law, 190, FIRST, seed))
            evidence.update(drawn(law, wrong, 10, BONUS, 1000 + seed))
    assert not pooled.missing(1e-3)
    assert [name for name, _ in split.missing(1e-3)] == [ROLES[BONUS]]
    assert split.is_rejected(1e-4)
    assert split.loudest_part() == ROLES[BONUS]
    again = Evidence.from_dict(split.as_dict())
    assert again.parts[ROLES[BONUS]].log_e == pytest.approx(split.parts[ROLES[BONUS]].log_e)
    assert again.parts[ROLES[BONUS]].num_tokens == 400


def test_roles_cost_no_false_alarms():
    """400 null runs that are looked at after every output: at most 5 % ± 3 deviations (8.3 %) may pass at α = 0.05."""
    law, rejected = np.array([0.4, 0.3, 0.2, 0.1]), 0
    for seed in range(400):
        evidence = Evidence.with_roles((), ("id",), 0.05, 0.0)
        for index in range(8):
            evidence.update(drawn(law, law, 25, index % 4, 10_000 + 100 * seed + index), with_deviations=False)
        rejected += evidence.is_rejected(0.05)
    assert rejected <= 33


def test_reported_log_probabilities_of_a_right_engine_are_the_references():
    checked = harness(budget=300)
    checked.run()
    for arm in checked.arms.values():
        assert arm.reported.counts[0] > 0
        assert arm.reported.largest[0] < 1e-4
    by_role = checked.arms["speculation"].reported.summary()
    assert all(by_role[role].num_tokens > 0 for role in ROLES)


@pytest.mark.parametrize("mutant", ["stale KV after rejection", "own: draft rows at shifted positions"])
def test_a_wrong_forward_is_given_away_by_what_it_reports(mutant):
    finding = harness(mutant, greedy=False, budget=400).run()
    assert (finding.verdict, finding.layer) == ("different", "reported log-probabilities")
    assert "log-probabilit" in finding.reason


def test_the_scale_of_rounding_decides():
    logits = torch.randn(30, 10, generator=torch.Generator().manual_seed(0))
    tokens = tuple(range(10)) * 3
    right = logits.log_softmax(-1)[range(30), list(tokens)]
    served = Served((1,), tokens, PARAMS, 0, tuple((right + 0.02).tolist()), (TARGET,) * 30)
    seen = Reported()
    seen.add(served, errors(served, logits))
    assert seen.mean == pytest.approx(0.02, abs=1e-5)
    assert "on average" in seen.fault(0.001, 0.01)
    assert seen.fault(0.01, 0.05) is None
    assert "token" in seen.fault(0.01, 0.002)
    assert len(errors(replace(served, logprobs=()), logits)) == 0


def test_lists_of_the_wrong_length_break_the_contract():
    model = toy_model()
    ledger = Ledger(Evidence.with_roles((), ("id",), 0.1, 0.0), VOCABULARY, NativeScorer(model))
    [found] = ledger.add([Served(PROMPTS[0].input_ids, (1, 2, 3), PARAMS, 0, (-1.0,), (TARGET, TARGET))])
    assert "log-probabilities for 3 tokens" in found.violation


def test_every_fourth_request_drafts_one_token():
    checked = harness(budget=700, tau=0.05, greedy=False)
    checked.settings = replace(checked.settings, varies_draft_len=True)
    ask_all, asked = checked.client.ask_all, []
    checked.client.ask_all = lambda asks: asked.extend(asks) or ask_all(asks)
    checked.run()
    drafted = [ask for ask in asked if ask.params.speculation]
    short = [ask.prompt for ask in drafted if ask.params.max_draft_len == 1]
    assert len({*short}) > len(PROMPTS) // 2  # not the same prompts again and again
    assert {ask.params.max_draft_len for ask in drafted} == {None, 1}
    assert 0.2 < len(short) / len(drafted) < 0.3
    assert all(ask.params.max_draft_len is None for ask in asked if not ask.params.speculation)
