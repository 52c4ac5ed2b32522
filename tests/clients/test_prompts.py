"""Workloads are there, named, and of the length that they promise; arrivals are repeatable and have the right law."""

from __future__ import annotations

import itertools
import statistics

import pytest

from trt_spec.clients import prompts as workload
from trt_spec.clients.prompts import Prompt
from trt_spec.config.latency_config import WORKLOADS
from trt_spec.errors import UsageError
from trt_spec.gate.arrivals import ClosedLoop, Poisson


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_of_the_config_is_shipped(name):
    prompts = workload.load(name)
    assert len(prompts) >= 6
    assert len({prompt.name for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)
    assert all(prompt.text == prompt.text.rstrip("\n") and "===" not in prompt.text for prompt in prompts)
    assert all(prompt.is_chat == (name != "code_completion") for prompt in prompts)


def test_no_other_file_lies_there():
    assert {path.name for path in workload.DATA_DIR.iterdir()} == {f"{name}.txt" for name in WORKLOADS}


def test_summaries_have_long_prompts():
    assert min(len(prompt.text.split()) for prompt in workload.load("summarising")) > 350
    assert max(len(prompt.text.split()) for prompt in workload.load("chat")) < 60


def test_an_unknown_workload():
    with pytest.raises(UsageError, match="unknown workload"):
        workload.load("poetry")


def test_prompts_of_ones_own(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("first\n\n  third \n", encoding="utf-8")
    assert workload.read(path) == [Prompt("line 1", "first"), Prompt("line 3", "third")]
    path.write_text(" \n", encoding="utf-8")
    with pytest.raises(UsageError, match="no prompts"):
        workload.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        workload.read(path)


def test_take_goes_round():
    prompts = [Prompt("a", "a"), Prompt("b", "b")]
    assert [prompt.name for prompt in workload.take(prompts, 5)] == ["a", "b", "a", "b", "a"]


def test_poisson_arrivals():
    """Gaps of a Poisson process: mean and standard deviation are both 1/rate. 4000 gaps: 5 % is three sigma."""
    due = Poisson(8.0).due_ns(4001, seed=3)
    assert due == Poisson(8.0).due_ns(4001, seed=3) != Poisson(8.0).due_ns(4001, seed=4)
    assert due[0] == 0
    gaps_s = [(b - a) / 1e9 for a, b in itertools.pairwise(due)]
    assert min(gaps_s) >= 0
    assert statistics.mean(gaps_s) == pytest.approx(1 / 8, rel=0.05)
    assert statistics.stdev(gaps_s) == pytest.approx(1 / 8, rel=0.05)


def test_names():
    assert ClosedLoop(4).name == "concurrency 4"
    assert ClosedLoop(4).due_ns(3, 0) is None
    assert Poisson(2.5).name == "2.5 requests/s"
