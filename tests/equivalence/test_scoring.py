"""The reference law: against the sampler's own, written apart from it; packed forwards against cold ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.runtime.models import cold_logits, tiny_model
from trt_spec.equivalence.ledger import Ledger, new_evidence, violation
from trt_spec.equivalence.reference.scoring import NativeScorer, Served, Vocabulary, score
from trt_spec.equivalence.statistics.alternatives import copied_tokens, names
from trt_spec.runtime.request import SamplingParams
from trt_spec.runtime.sampling import History, LogitsProcessor, logits_to_probs

V = 40
PARAMS = {
    "T=0.7": SamplingParams(temperature=0.7),
    "top-k": SamplingParams(temperature=1.0, top_k=5),
    "top-p": SamplingParams(temperature=1.3, top_p=0.8),
    "min-p": SamplingParams(temperature=1.0, min_p=0.1),
    "all filters": SamplingParams(temperature=1.1, top_k=12, top_p=0.9, min_p=0.02),
    "penalties": SamplingParams(
        temperature=1.0, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logit_bias={3: 1.5}
    ),
    "min tokens": SamplingParams(temperature=1.0, min_tokens=4),
}
PROMPT, OUTPUT = (1, 2, 3, 2), (5, 3, 5, 7, 1, 0)


def logits(scale=2.0):
    return torch.randn(len(OUTPUT), V, generator=torch.Generator().manual_seed(0)) * scale


def sampler_law(raw, params):
    """[n, V] by the code that serves, one row at a time."""
    rows = []
    for index in range(len(raw)):
        processor = LogitsProcessor(params, V - 2, (9,))
        history = History.of(PROMPT, V, torch.device("cpu"))
        history.add(OUTPUT[:index])
        rows.append(logits_to_probs(processor(raw[index : index + 1], history, index, [[]]), params)[0])
    return torch.stack(rows).double().numpy()


@pytest.mark.parametrize("width", [V, 16], ids=["whole vocabulary", "candidates"])
@pytest.mark.parametrize("name", PARAMS)
def test_the_reference_law_is_the_samplers(name, width):
    params, raw = PARAMS[name], logits()
    found = score(Served(PROMPT, OUTPUT, params), raw, Vocabulary(V - 2, (9,)), num_candidates=width)
    law = sampler_law(raw, params)
    wanted = law[np.arange(len(OUTPUT)), OUTPUT]
    is_candidate = found.tokens < found.target_probs.shape[1] - (found.target_probs.shape[1] <= width + 1 < V)
    assert found.served_probs[is_candidate] == pytest.approx(wanted[is_candidate], abs=1e-6)
    assert found.target_probs.sum(-1) == pytest.approx(1.0)
    largest = np.sort(law, axis=-1)[:, ::-1][:, :8]
    assert np.sort(found.target_probs, axis=-1)[:, ::-1][:, :1] == pytest.approx(largest[:, :1], abs=1e-6)
    for law in found.alternatives.values():
        assert law.sum(-1) == pytest.approx(1.0)
        assert (law >= 0).all()


@pytest.mark.parametrize("has_draft", [False, True])
@pytest.mark.parametrize("name", PARAMS)
def test_every_alternative_that_is_named_is_computed(name, has_draft):
    params, vocabulary = PARAMS[name], Vocabulary(V - 2, (9,))
    evidence = new_evidence(params, vocabulary, has_draft=has_draft, tau=0.05, tolerance=0.0)
    draft = logits(1.5) if has_draft else None
    found = score(Served(PROMPT, OUTPUT, params), logits(), vocabulary, draft_logits=draft)
    assert set(evidence.alternatives) == set(found.alternatives)
    assert set(evidence.orderings) == set(found.orderings)


def test_names_depend_on_the_request():
    flags = dict.fromkeys(
        ("has_filter", "has_temperature", "has_penalties", "has_bias", "has_ending", "has_draft"), False
    )
    assert "untruncated" not in names(**flags)
    assert "untruncated" in names(**flags | {"has_filter": True})


def test_native_scorer_packs_what_cold_forwards_give():
    model = tiny_model(V)
    items = [Served(PROMPT, OUTPUT, SamplingParams()), Served((4,), (8, 8), SamplingParams())]
    for rows in (NativeScorer(model), NativeScorer(model, max_rows=4)):
        for item, found in zip(items, rows.logits(items), strict=True):
            tokens = (*item.prompt_ids, *item.output_ids[:-1])
            wanted = cold_logits(model, tokens)[-len(item.output_ids) :]
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_copied_tokens():
    assert copied_tokens((1, 2, 3, 1, 2, 3), 3) == [-1, 2, 3]
    assert copied_tokens((7, 7, 7), 1) == [-1, 7]


def test_violations():
    vocabulary, params = Vocabulary(V, (9,)), SamplingParams(max_tokens=4)
    assert violation(Served((1,), (2, 9), params), vocabulary) is None
    assert "after the end" in violation(Served((1,), (9, 2), params), vocabulary)
    endless = replace(params, ignore_eos=True, max_tokens=2)
    assert violation(Served((1,), (9, 2), endless), vocabulary) is None
    assert "without an end" in violation(Served((1,), (9, 2), replace(endless, max_tokens=3)), vocabulary)
    assert "max_tokens" in violation(Served((1,), (2,) * 5, params), vocabulary)
    assert "vocabulary" in violation(Served((1,), (V,), params), vocabulary)
    assert violation(Served((1,), (), params), vocabulary) == "no tokens"
    assert "finite" in violation(Served((1,), (2, 9), params, 0, (-1.0, float("nan"))), vocabulary)


def test_an_end_may_be_told_where_origins_are_not():
    """TensorRT-LLM may leave the ending id out; an engine that tells origins sends it."""
    vocabulary, params = Vocabulary(V, (9,)), SamplingParams(max_tokens=4)
    assert violation(Served((1,), (2,), params, finish_reason="eos"), vocabulary) is None
    assert "without an end" in violation(Served((1,), (2,), params, finish_reason="length"), vocabulary)
    lying = Served((1,), (2,), params, token_origins=(0,), finish_reason="eos")
    assert "without an end" in violation(lying, vocabulary)


def test_twins_remember_the_latest_output_of_a_prefix():
    ledger = Ledger(None, Vocabulary(V), None)
    params = SamplingParams()
    assert ledger._twins(Served((1,), (2, 3), params)) == [-1, -1]
    assert ledger._twins(Served((1,), (2, 4), params)) == [2, 3]
    assert ledger._twins(Served((1,), (2, 5), params)) == [2, 4]
