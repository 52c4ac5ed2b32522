"""The harness on toy engines: verdicts, counter-examples, evidence that adds up, noise."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from trt_spec.clients.engine import SteppedClient
from trt_spec.clients.prompts import Prompt
from trt_spec.equivalence.harness import Harness
from trt_spec.equivalence.reference.noise import measure
from trt_spec.equivalence.reference.scoring import NativeScorer, Served
from trt_spec.equivalence.self_check.mutants import MUTANTS, SAMPLED
from trt_spec.equivalence.self_check.toys import VOCABULARY, toy_engine, toy_model
from trt_spec.equivalence.settings import Settings
from trt_spec.equivalence.verdict import DOUBT
from trt_spec.report.schema import as_json

PROMPTS = [Prompt(f"prompt {i}", input_ids=(1, 2, 3, i)) for i in range(8)]
ORIGIN = {"run": "toy", "words": "toy", "acceptance": "rejection", "server": "in process", "provenance": {}}
PARAMS = replace(SAMPLED, max_tokens=32)


def harness(mutant=None, *, tau=0.1, alpha=1e-3, budget=12_000, tolerance=1e-4, greedy=True, **params):
    engine, right = toy_engine("chain 3"), toy_engine("chain 3")
    scorers = NativeScorer(right.target), NativeScorer(right.drafter.model)
    if mutant is not None:
        [found] = [item for item in MUTANTS if item.name == mutant]
        found.apply(engine)
    settings = Settings(replace(PARAMS, **params), tau, alpha, tolerance, budget)
    made = Harness(settings, PROMPTS, SteppedClient(engine), scorers[0], VOCABULARY, scorers[1])
    if not greedy:
        made._check_greedy = lambda advance: None
    return made


def test_a_right_engine_gets_its_certificate():
    seen = []
    checked = harness(tau=0.15)
    finding = checked.run(lambda part, text: seen.append(text))
    assert finding.verdict == "equivalent"
    report = checked.certificate(finding, None, **ORIGIN)
    json.dumps(as_json(report), allow_nan=False)
    assert report.excluded_above <= 0.15
    assert report.greedy.num_tokens > 100
    assert {arm.num_tokens > 0 for arm in report.arms.values()} == {True}
    assert report.arms["speculation"].profile.mean_acceptance_length > 1
    assert report.arms["plain"].profile.num_drafts == 0
    assert any("log e" in text and "excluded >" in text for text in seen)


@pytest.mark.parametrize("mutant", ["residual = p", "greedy fallback after rejection"])
def test_a_wrong_engine_gets_a_counter_example(mutant):
    checked = harness(mutant, budget=20_000)
    finding = checked.run()
    assert finding.verdict == "different"
    assert "with speculation" in finding.reason
    assert (finding.arm, finding.layer.partition(" ")[0]) == ("speculation", "bets")
    example = checked.certificate(finding, lambda ids: f"<{ids}>", **ORIGIN).counter_example
    assert example.frequencies[0].text == f"<[{example.frequencies[0].token}]>"
    assert example.frequencies[0].prompt_text == PROMPTS[example.frequencies[0].prompt].name
    assert example.tokens[0].gain_nats > 0


def test_a_greedy_fault_is_seen_by_the_greedy_layer():
    finding = harness("always accept", budget=100).run()
    assert (finding.verdict, finding.layer, finding.arm) == ("different", "greedy", "greedy")


def test_a_wrong_engine_without_drafts_is_told_apart():
    """A sampler that is wrong in both arms: the plain arm says so."""
    finding = harness("one seed re-used every step", greedy=False).run()
    assert finding.verdict == "different"


def test_a_spent_budget_is_inconclusive_and_says_what_is_missing():
    checked = harness(tau=0.02, budget=600)
    finding = checked.run()
    assert finding.verdict == "inconclusive"
    assert finding.num_tokens_needed is None or finding.num_tokens_needed > 600


def test_no_certificate_in_doubt():
    """Evidence of a deviation below τ that does not reject yet, as of a block rule that overlooks what may follow."""
    checked = harness(tau=0.2)
    assert checked.run().verdict == "equivalent"
    evidence = checked.arms["speculation"].ledger.evidence
    evidence.log_directed[0] += (
        6.5 - evidence.log_e + np.log(evidence.log_directed.size) - evidence.log_directed[0].max()
    )
    assert -np.log(DOUBT) < evidence.log_e < -np.log(checked.settings.arm_alpha)
    assert not evidence.missing(checked.settings.alpha)
    finding = checked.judge()
    assert finding.verdict == "inconclusive"
    assert "a smaller one" in finding.reason


def test_what_is_missing_is_named():
    checked = harness(tau=0.1, budget=300)
    finding = checked.run()
    assert finding.verdict == "inconclusive"
    assert "0.1 for all tokens" in finding.reason
    assert "token" in finding.reason


def test_time_is_a_budget_too():
    checked = harness(tau=0.005, budget=10**9)
    checked.settings = replace(checked.settings, max_seconds=0.2)
    assert checked.run().verdict == "inconclusive"


def test_an_end_that_is_ignored_breaks_the_contract():
    checked = harness("EOS accepted in mid-block and ignored", ignore_eos=False, greedy=False)
    finding = checked.run()
    assert finding.verdict == "different"


def changed(checked, change):
    """The harness with fields of every answer of its server changed, see `Trace`."""
    ask_all = checked.client.ask_all

    def wrong(asks):
        return [replace(trace, **change(ask, trace)) for ask, trace in zip(asks, ask_all(asks), strict=True)]

    checked.client.ask_all = wrong
    return checked


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing at all", "no tokens"),
        ("the first half", "without an end"),
        ("an id that does not exist", "vocabulary"),
        ("log-probabilities that are no numbers", "finite"),
    ],
)
@pytest.mark.parametrize("is_greedy", [False, True])
def test_broken_contracts(name, words, is_greedy):
    def change(ask, trace):
        if (ask.params.sampling.temperature == 0) != is_greedy:
            return {}
        if name == "an id that does not exist":
            return {"token_ids": (*trace.token_ids[:-1], 10**6)}
        if name == "log-probabilities that are no numbers":
            return {"logprobs": (*trace.logprobs[:-1], float("nan"))}
        end = 0 if name == "nothing at all" else len(trace.token_ids) // 2 + 1
        return {part: getattr(trace, part)[:end] for part in ("token_ids", "logprobs", "token_origins")}

    checked = changed(harness(budget=100), change)
    finding = checked.run_greedy() if is_greedy else checked.run()
    assert (finding.verdict, finding.layer) == ("different", "contract")
    assert finding.arm == ("greedy" if is_greedy else "speculation")
    assert finding.reason.startswith(f"{finding.arm}: ")
    assert words in finding.reason
    json.dumps(as_json(checked.certificate(finding, None, **ORIGIN)), allow_nan=False)


def test_greedy_log_probabilities_are_compared_too():
    def change(ask, trace):
        is_greedy = ask.params.sampling.temperature == 0
        return {"logprobs": (*trace.logprobs[:-1], trace.logprobs[-1] - 0.01)} if is_greedy else {}

    finding = changed(harness(budget=100), change).run_greedy()
    assert (finding.verdict, finding.layer, finding.arm) == ("different", "reported log-probabilities", "greedy")
    assert finding.reason.startswith("greedy: log-probabilities")


def test_evidence_of_two_runs_adds_up_with_new_seeds():
    first = harness(budget=300, tau=0.05)
    first.run()
    saved = {name: arm.kept() for name, arm in first.arms.items()}
    second = harness(budget=300, tau=0.05)
    second.next_seed = first.next_seed
    for name, arm in second.arms.items():
        arm.restore(json.loads(json.dumps(saved[name])))
        assert arm.reported.summary() == first.arms[name].reported.summary()
    second.run()
    assert second.next_seed > first.next_seed > 1
    tokens = [h.arms["speculation"].ledger.evidence.num_tokens for h in (first, second)]
    assert tokens[1] >= 2 * tokens[0] > 0


def test_greedy_alone():
    checked = harness()
    finding = checked.run_greedy()
    assert finding.verdict == "equivalent"
    assert sum(checked.greedy.places.values()) == checked.greedy.num_tokens
    assert f"bonus token {checked.greedy.places['bonus token']}" in finding.reason


def test_noise_of_a_float32_model_is_rounding():
    outputs = [Served((1, 2, index), (3, 4, 5, 6), SAMPLED) for index in range(4)]
    noise = measure(toy_model(), outputs, VOCABULARY)
    assert noise.mean_tv < 1e-5
    assert noise.tolerance <= 1e-5
    assert noise.greedy_tolerance == 1e-4


def test_kept_prompts_change_nothing():
    model = toy_model()
    scorer = NativeScorer(model)
    items = [Served((1, 2, 3), (4, 5, 6), SAMPLED), Served((2,), (7, 8), SAMPLED)]
    for once, again in zip(scorer.logits(items), scorer.logits(items), strict=True):
        torch.testing.assert_close(once, again, atol=1e-5, rtol=1e-5)
    assert len(scorer._prompts) == 2
