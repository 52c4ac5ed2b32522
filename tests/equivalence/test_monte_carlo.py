"""The production engine with its real generators, one prompt served thousands of times, in a ragged batch with
cancellations: joint law of three tokens, and independence between requests.

Nightly: 6 000 outputs, 0.001 family-wise over the tests of one engine (Holm). Sees TV 0.1 in the joint law of about 150
pooled cells with power .95 (see `min_detectable_tv`), and rejects mutants in the same run. The quick version has 500.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.equivalence.goodness_of_fit import g_test, holm, min_detectable_tv
from trt_spec.equivalence.reference.scoring import NativeScorer, Served
from trt_spec.equivalence.self_check.mutants import MUTANTS, SAMPLED
from trt_spec.equivalence.self_check.toys import VOCAB_SIZE, toy_engine
from trt_spec.runtime.request import Request

ALPHA = 1e-3
PROMPT, DEPTH = (1, 2, 3, 4), 3
SHAPES = ("chain 3", "siblings", "top tokens")


def joint_law(model):
    """[V ** 3] law of three tokens after the prompt, from teacher-forced forwards of every prefix."""
    prefixes = list(itertools.product(range(VOCAB_SIZE), repeat=DEPTH))
    items = [Served(PROMPT, prefix, SAMPLED) for prefix in prefixes]
    law = []
    for prefix, logits in zip(prefixes, NativeScorer(model).logits(items), strict=True):
        probs = (logits.double() / SAMPLED.temperature).softmax(-1)
        law.append(math.prod(float(probs[place, token]) for place, token in enumerate(prefix)))
    return np.array(law)


def serve(engine, count):
    """First tokens of `count` outputs; between them shorter and longer prompts, every fifth of which is cancelled."""
    found = {}
    params = replace(SAMPLED, max_tokens=6)
    for start in range(0, count, 40):
        for index in range(start, min(start + 40, count)):
            engine.add(Request(f"{index}", PROMPT, replace(params, seed=index + 1)))
            other = (5,) * (1 + index % 9)
            engine.add(Request(f"other {index}", other, replace(params, seed=10**6 + index)))
            if index % 5 == 0:
                engine.cancel(f"other {index}")
            if engine.limits.capacity - 4 <= len(engine._in_flight):
                collect(engine, found)
        while engine.has_work:
            collect(engine, found)
    return [tuple(found[str(index)][:DEPTH]) for index in range(count)]


def collect(engine, found):
    for chunk in engine.step():
        found.setdefault(chunk.request_id, []).extend(chunk.token_ids)


def pvalues(outputs, law):
    """Holm-adjusted p-values: joint law, its three marginals, and repeats between neighbouring requests."""
    size = (VOCAB_SIZE,) * DEPTH
    cube = np.zeros(size)
    for output, count in Counter(outputs).items():
        cube[output] = count
    found = [g_test(cube.reshape(-1), law)]
    for axis in range(DEPTH):
        others = tuple(other for other in range(DEPTH) if other != axis)
        found.append(g_test(cube.sum(others), law.reshape(size).sum(others)))
    pairs = list(zip(outputs[::2], outputs[1::2], strict=False))
    repeats, rate = sum(one == other for one, other in pairs), float((law**2).sum())
    found.append(g_test(np.array([repeats, len(pairs) - repeats]), np.array([rate, 1 - rate])))
    return holm(found)


def check(shape, count, mutant=None):
    engine = toy_engine(shape)
    law = joint_law(engine.target)
    assert law.sum() == pytest.approx(1)
    if mutant is not None:
        [wrong] = [item for item in MUTANTS if item.name == mutant]
        wrong.apply(engine)
    return min(pvalues(serve(engine, count), law))


def test_a_few_outputs():
    assert check("chain 3", 500) > ALPHA
    assert check("chain 3", 500, "always accept") < ALPHA
    assert check("chain 3", 500, "one stream shared by requests") < ALPHA


@pytest.mark.nightly
@pytest.mark.parametrize("shape", SHAPES)
def test_many_outputs(shape):
    assert min_detectable_tv(6000, 150, ALPHA / 5) < 0.1
    assert check(shape, 6000) > ALPHA


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mutant",
    ["residual = p", "greedy fallback after rejection", "stale KV after rejection", "one seed re-used every step"],
)
def test_mutants_are_rejected(mutant):
    assert check("chain 3", 6000, mutant) < ALPHA
