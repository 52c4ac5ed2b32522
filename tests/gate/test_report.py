"""The pages of the latency gate, from made-up records of every verdict."""

from __future__ import annotations

import io
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from rich.console import Console

from tests.gate.test_verdict import records
from trt_spec.gate import plots as gate_plots
from trt_spec.gate import report as gate
from trt_spec.gate import verdict as gates
from trt_spec.gate.metrics import Acceptance, Slo
from trt_spec.gate.report import page
from trt_spec.gate.result import GateResult
from trt_spec.gate.verdict import Demands

ORIGIN = {
    "run": "<toy>",
    "words": "toy.yaml",
    "server": "in process",
    "plain_server": "in process",
    "workload": "chat",
    "max_tokens": 9,
    "num_pairs": 20,
    "seconds": 3.0,
    "notes": ["nothing & nobody"],
    "provenance": {"git": None, "versions": {"torch": "2"}, "hardware": {"processor": "cpu", "num_cores": 2}},
}
FLOORS = {"pass": 1.1, "inconclusive": 1.2862, "fail": 1.6}


def found_of(verdict: str) -> GateResult:
    rows = [*records(), *records("concurrency 4", speedup=0.7, seed=1)]
    found = gates.evaluate(rows, Demands({"concurrency 1": FLOORS[verdict]}, slo=Slo(30, None)))
    assert found.verdict == verdict
    return GateResult(**ORIGIN, **vars(found), reason="because", floors_from="the run config")


class Balanced(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open, self.num_figures = [], 0

    def handle_starttag(self, tag, attrs):
        self.num_figures += tag == "svg"
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("verdict", FLOORS)
def test_the_page(verdict):
    text = page(found_of(verdict))
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert parser.num_figures == 1 + 2 * 3
    assert verdict.capitalize() in text
    assert "&lt;toy&gt;" in text
    assert "nothing &amp; nobody" in text
    assert "does not tell what was accepted" in text
    assert not any(word in text for word in ("<script", "http://", "https://", "nan"))


def test_acceptance_is_drawn_where_it_is_told():
    found = found_of("pass")
    told = Acceptance(None, None, None, 0.5, 2.0, [0.7, 0.3])
    for load, one in zip(found.loads, (told, replace(told, rate_per_pos=None)), strict=True):
        load.arms["speculation"] = replace(load.arms["speculation"], acceptance=one)
    text = page(found)
    assert "2.00 tokens per step" in text
    assert "50% of draft tokens accepted" in text


@pytest.mark.parametrize(("verdict", "num_failures"), [("pass", 0), ("inconclusive", 1), ("fail", 1)])
def test_junit(verdict, num_failures):
    suite = ElementTree.fromstring(gate.junit(found_of(verdict)).encode())
    assert suite.get("failures") == str(num_failures) == str(len(suite.findall(".//failure")))
    names = [case.get("name") for case in suite]
    assert names == ["speed-up, concurrency 1", "TTFT p99, concurrency 1", "TTFT p99, concurrency 4"]
    if num_failures:
        assert suite.find(".//failure").get("message").startswith(verdict)


@pytest.mark.parametrize("verdict", FLOORS)
def test_the_terminal(verdict):
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(gate.view(found_of(verdict)))
    text = console.export_text()
    assert f"<toy>: {verdict}" in text
    assert "concurrency 4" in text
    assert "[" in text.split("concurrency 1", 1)[1].splitlines()[0]


def test_files_appear_whole(tmp_path):
    written = gate.write(found_of("pass"), "raw\n", tmp_path / "new" / "gate")
    assert [path.name for path in written] == ["gate.json", "records.jsonl", "junit.xml", "index.html"]
    assert sorted(path.name for path in (tmp_path / "new" / "gate").iterdir()) == sorted(path.name for path in written)
    assert written[1].read_text() == "raw\n"


def test_a_load_without_a_ratio_is_drawn():
    load = found_of("pass").loads[0]
    empty = replace(load, ratios={**load.ratios, "speedup": None}, noise={**load.noise, "speedup": None})
    assert "svg" in gate_plots.speedups([empty, load])
    assert "svg" in gate_plots.distributions({"plain": [1.0, 1.0], "speculation": [1.0, 1.0]}, "TTFT")
