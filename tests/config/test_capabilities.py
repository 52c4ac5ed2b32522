"""The capability table covers every cell, and refuses by name."""

from __future__ import annotations

import importlib

import pytest

from trt_spec.config import capabilities, loader
from trt_spec.methods import ACCEPTANCE, BUILD_TARGETS, LINES, METHODS


def test_every_method_target_and_line_has_one_cell():
    cells = [(cell.method, cell.build_target, cell.line) for cell in capabilities.TABLE]
    lines = {target: list(LINES[target]) or [""] for target in BUILD_TARGETS}
    assert sorted(cells) == sorted(
        (method, target, line) for method in METHODS for target in BUILD_TARGETS for line in lines[target]
    )
    assert all(cell.is_supported or cell.remedy for cell in capabilities.TABLE)
    assert all(cell.is_supported for cell in capabilities.TABLE if cell.is_tested_here)


def test_the_runtime_promises_what_the_table_promises():
    from trt_spec.runtime.acceptance import ACCEPTANCE_RULES as REGISTRY

    assert set(ACCEPTANCE) == set(REGISTRY)
    for name, facts in ACCEPTANCE.items():
        rule = REGISTRY[name]
        assert (rule.is_lossless, rule.serves_sampling) == (facts.is_lossless, facts.serves_sampling)


@pytest.mark.parametrize("method", [method for method in METHODS if method not in ("lookahead", "redrafter")])
def test_the_torch_target_offers_every_method(method):
    capabilities.check(loader.compose("m", method, "d" if METHODS[method].needs_checkpoint else None))


def test_every_method_that_the_torch_target_offers_has_a_drafter():
    offered = {cell.method for cell in capabilities.TABLE if cell.is_supported and cell.build_target == "torch"}
    assert offered == {"none", *(name for name, method in METHODS.items() if method.drafter)}
    for method in METHODS.values():
        module, _, function = method.drafter.partition(":")
        assert not module or callable(getattr(importlib.import_module(module), function))


def test_every_target_offers_a_method_or_says_why_not():
    for method in METHODS.values():
        lacking = {absence.build_target for absence in method.absences}
        assert (lacking & set(method.targets), lacking | set(method.targets)) == (set(), set(BUILD_TARGETS))
