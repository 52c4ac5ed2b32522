"""The harness catches wrong engines and passes right ones. Seeded; at alpha 1e-4 a control is flagged with that chance.

The quick test runs what is caught within seconds, the nightly one everything.
"""

from __future__ import annotations

import pytest

from trt_spec.equivalence.self_check.mutants import CONTROLS, MUTANTS
from trt_spec.equivalence.self_check.outcome import SelfCheck
from trt_spec.equivalence.self_check.run import run, run_one

ALPHA = 1e-4
QUICK = (
    "always accept",
    "greedy fallback after rejection",
    "bonus token from the wrong node",
    "one seed re-used every step",
    "one stream shared by requests",
    "penalties do not see earlier drafts",
    "stale KV after rejection",
    "EOS accepted in mid-block and ignored",
    "own: residual max(q − p, 0)",
    "own: verification forgets top-p",
)
QUICK_CONTROLS = ("rejection", "exact match, argmax draft", "siblings without replacement", "repeated prompts")


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.name in QUICK], ids=lambda m: m.name)
def test_a_mutant_is_caught(mutant):
    found = run_one(mutant, ALPHA, max_tokens=3000)
    assert found.is_caught
    assert found.caught_by
    assert found.bound is None or found.num_tokens <= 6 * found.bound


@pytest.mark.parametrize("control", [m for m in CONTROLS if m.name in QUICK_CONTROLS], ids=lambda m: m.name)
def test_a_control_passes(control):
    assert not run_one(control, ALPHA, max_tokens=900).is_caught


def test_the_documented_list_is_there():
    assert len([mutant for mutant in MUTANTS if mutant.name.startswith("own: ")]) >= 5
    assert set(QUICK) <= {mutant.name for mutant in MUTANTS}
    assert len({mutant.name for mutant in (*MUTANTS, *CONTROLS)}) == len(MUTANTS) + len(CONTROLS)


@pytest.mark.nightly
def test_the_whole_self_check():
    found = SelfCheck.of(run(ALPHA))
    assert found.is_right
    assert found.survivors == []
    assert found.flagged == []
    assert found.median_ratio <= 3
    assert found.median_ratio_omnibus <= 6
