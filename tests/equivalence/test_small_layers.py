"""Greedy with ties, goodness of fit against closed forms, black box against mutants. All seeded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.equivalence.goodness_of_fit import g_test, holm, min_detectable_tv, pooled_cells
from trt_spec.equivalence.black_box import compare
from trt_spec.equivalence.greedy import check_greedy
from trt_spec.equivalence.reference.scoring import Served, Vocabulary
from trt_spec.runtime.request import SamplingParams


def greedy_findings(tokens, rows, tolerance=1e-4, **params):
    served = Served((1,), tuple(tokens), SamplingParams(max_tokens=len(tokens), **params), prompt_index=7)
    return check_greedy([served], [torch.tensor(rows)], Vocabulary(3), tolerance)


def test_greedy_tells_ties_from_faults():
    rows = [[1.0, 0.0, 0.5], [0.0, 2.0, 2.00005], [0.0, 3.0, 1.0]]
    found = greedy_findings([0, 1, 2], rows)
    assert (found.num_tokens, found.num_ties) == (3, 1)
    [fault] = found.faults
    assert (fault.prompt_index, fault.position, fault.token, fault.best_token) == (7, 2, 2, 1)
    assert fault.gap == pytest.approx(2.0)
    assert not found.is_right


def test_greedy_sees_the_request_and_goes_on_after_a_tie():
    rows = [[1.0, 0.0, 0.0], [1.0, 0.4, 0.0]]
    assert greedy_findings([0, 1], rows, frequency_penalty=1.0).is_right
    assert greedy_findings([1, 0], rows, logit_bias={1: 2.0}).faults[0].position == 1


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_cells_are_pooled():
    assert pooled_cells(np.array([10.0, 3.0, 4.0, 1.0])).tolist() == [0, 1, 1, 1]
    assert pooled_cells(np.array([1.0, 1.0])).tolist() == [0, 0]


def test_g_test():
    """5 000 samples of a law and of one at TV 0.05 from it; alpha 1e-3, which sees TV 0.05 with 10 cells at .95."""
    rng, probs = np.random.default_rng(0), np.full(10, 0.1)
    assert g_test(rng.multinomial(5000, probs), probs) > 1e-3
    assert g_test(rng.multinomial(5000, probs + np.tile([0.01, -0.01], 5)), probs) < 1e-3
    assert g_test(np.array([3, 1]), np.array([1.0, 0.0])) == 0


@pytest.mark.parametrize(
    ("cells", "tv", "samples"), [(10, 0.01, 9.7e4), (10, 0.05, 3.9e3), (100, 0.02, 5.4e4), (1000, 0.02, 1.4e5)]
)
def test_power_table(cells, tv, samples):
    assert min_detectable_tv(round(samples), cells, 1e-3) == pytest.approx(tv, rel=0.03)


def outputs(rng, count, change=0.0):
    """Markov outputs; `change` moves mass from one token to another after token 0."""
    law = np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])
    law[0] += np.array([-change, change, 0])
    made = []
    for index in range(count):
        tokens = [index % 3]
        for _ in range(12):
            tokens.append(int(rng.choice(3, p=law[tokens[-1]])))
        made.append((index % 3, tokens[1:]))
    return made


def test_black_box():
    rng = np.random.default_rng(1)
    wrong = compare(outputs(rng, 150), outputs(rng, 150, 0.25), num_permutations=199)
    assert wrong.pvalue <= 0.005
    assert wrong.worst[0].token in (0, 1)
    with pytest.raises(ValueError):
        compare([(0, [1])], [(1, [1])])


def test_black_box_false_alarms():
    """60 null comparisons at alpha = 0.1: 6 expected, 14 or more with chance 0.2 %."""
    rng = np.random.default_rng(2)
    alarms = [compare(outputs(rng, 24), outputs(rng, 24), seed=i, num_permutations=49).pvalue for i in range(60)]
    assert sum(pvalue <= 0.1 for pvalue in alarms) < 14
