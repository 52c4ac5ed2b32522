"""Logits to probabilities, against transformers' own warpers and against the definitions."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from trt_spec.errors import RequestError
from trt_spec.runtime.request import SamplingParams
from trt_spec.runtime.sampling import (
    ARGMAX_BLOCK,
    NUCLEUS_CANDIDATES,
    History,
    LogitsProcessor,
    finite_rows,
    first_argmax,
    logits_to_probs,
    nucleus_threshold,
)


def random_logits(rows=4, vocab=300, seed=0, scale=3.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("min_p", [0.0, 0.02])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-6])
@pytest.mark.parametrize("top_k", [0, 1, 50, 1000])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
def test_equals_transformers(temperature, top_k, top_p, min_p):
    logits = random_logits()
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    want = warpers(None, logits.clone()).softmax(-1)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    got = logits_to_probs(logits, params)
    assert torch.equal(got > 0, want > 0)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)


def test_zero_temperature_is_a_one_hot_at_the_first_argmax():
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]])
    assert logits_to_probs(logits, SamplingParams(temperature=0, top_p=0.1)).tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize("temperature", [1e-5, 1e-40, 1e-300])
def test_tiny_temperature_does_not_overflow(temperature):
    probs = logits_to_probs(random_logits() * 100, SamplingParams(temperature=temperature))
    assert torch.equal(probs.argmax(-1), random_logits().argmax(-1))
    assert probs.isfinite().all()


def test_ties_at_the_edge_are_all_kept():
    logits = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]])
    assert (logits_to_probs(logits, SamplingParams(temperature=1.0, top_k=2)) > 0).tolist() == [[True] * 4 + [False]]
    kept = logits_to_probs(logits, SamplingParams(temperature=1.0, top_p=0.8)) > 0
    assert kept.tolist() == [[True] * 4 + [False]]


def test_top_p_looks_at_what_top_k_left():
    """0.45 + 0.30 reach 0.9 of the top-3 mass only after it is renormalised: 0.75 / 0.85 < 0.9, so the third stays."""
    logits = torch.tensor([[0.45, 0.30, 0.10, 0.15]]).log()
    kept = logits_to_probs(logits, SamplingParams(temperature=1.0, top_k=3, top_p=0.83)) > 0
    assert kept.tolist() == [[True, True, False, False]]
    kept = logits_to_probs(logits, SamplingParams(temperature=1.0, top_p=0.83)) > 0
    assert kept.tolist() == [[True, True, False, True]]


def test_flat_laws_fall_back_to_a_full_sort():
    """More tokens than the candidates are needed for the mass: the threshold must still be the exact one."""
    probs = random_logits(3, 4 * NUCLEUS_CANDIDATES, scale=0.1).softmax(-1)
    probs[1] = random_logits(1, 4 * NUCLEUS_CANDIDATES, scale=9.0).softmax(-1)
    got = nucleus_threshold(probs, 0.9)
    for row, threshold in zip(probs, got, strict=True):
        ordered = row.sort(descending=True).values
        reached = ordered.double().cumsum(0)
        assert threshold == ordered[int((reached < 0.9).sum())]


def test_penalties_by_definition_and_with_drafted_tokens():
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.25)
    logits = random_logits(3, 12)
    history = History.of([1, 1, 2], 12, logits.device)
    history.add([3, 3, 4])
    got = LogitsProcessor(params, 12, ())(logits, history, 3, [[], [5], [5, 3]])
    for row, drafted in enumerate([[], [5], [5, 3]]):
        output = [3, 3, 4, *drafted]
        seen = torch.tensor([[1, 2, *output]])
        want = RepetitionPenaltyLogitsProcessor(1.5)(seen, logits[row : row + 1].clone())[0]
        for token in range(12):
            want[token] -= 0.25 * output.count(token) + 0.4 * (token in output)
        torch.testing.assert_close(got[row], want)


def test_min_tokens_masks_by_position_in_the_draft():
    processor = LogitsProcessor(SamplingParams(min_tokens=3), 8, (0, 7))
    got = processor(torch.zeros(3, 8), None, 1, [[], [1], [1, 2]])
    assert got.isinf().tolist() == [[t in (0, 7) for t in range(8)]] * 2 + [[False] * 8]


def test_bias_and_padding():
    processor = LogitsProcessor(SamplingParams(logit_bias={2: 5.0, 3: -5.0}), 6, ())
    got = processor(torch.zeros(1, 8), None, 0, [[]])
    assert got[0].tolist() == [0, 0, 5, -5, 0, 0, float("-inf"), float("-inf")]
    assert LogitsProcessor(SamplingParams(), 8, ()).is_identity(8, 0)
    assert not processor.is_identity(8, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 1.5),
        ("min_p", 2.0),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("min_tokens", 65),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("inf")),
        ("frequency_penalty", None),
        ("seed", -1),
        ("seed", 2**64),
        ("stop", ("",)),
        ("stop_token_ids", (-1,)),
        ("logit_bias", {0: float("nan")}),
    ],
)
def test_bad_parameters_are_named(name, value):
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("vocab", [ARGMAX_BLOCK, 3 * ARGMAX_BLOCK, 300])
def test_the_first_argmax_of_ties_is_torch_s_own(vocab):
    logits = random_logits(rows=40, vocab=vocab).round()  # many ties, within blocks and between them
    assert first_argmax(logits) == logits.argmax(-1).tolist()
    logits[0] = 0.0
    logits[1, :-1] = float("-inf")
    logits[2, 7] = float("nan")
    assert first_argmax(logits)[:3] == [0, vocab - 1, 7]
    assert first_argmax(logits[:0]) == []


def test_rows_that_are_finite_throughout():
    logits = torch.zeros(7, 300)
    logits[1, 5] = float("nan")
    logits[2, 5] = float("inf")
    logits[3, 5] = float("-inf")
    logits[4, 5:7] = torch.tensor([float("inf"), float("-inf")])
    logits[5] = 3e38  # finite, and their sum is not
    assert finite_rows(logits) == [True, False, False, False, False, True, True]
    assert finite_rows(logits[[0, 5]]) == [True, True]
    assert finite_rows(logits[:1]) == [True]
