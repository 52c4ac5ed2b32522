"""The pages of an equivalence check, from hand-made results."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from pydantic import TypeAdapter
from rich.console import Console

from trt_spec.equivalence import report as certificate
from trt_spec.equivalence.certificate import Certificate, Judged
from trt_spec.equivalence.report import page
from trt_spec.report import plots
from trt_spec.report.schema import as_json

ARM = {
    "num_tokens": 1000,
    "num_earlier_tokens": 0,
    "log_e": -1.0,
    "log_e_peak": 0.5,
    "path": [[500, 0.5, 0.4, 0.6], [1000, -1.0, -1.0, -1.0]],
    "bets": [],
    "histogram": {"probability": [10, 11, 9, 10], "id": [10, 10, 10, 10]},
    "deviations": [
        {"direction": "sharper", "deviation": 0.01, "excluded_above": 0.05, "shown_above": None},
        {"direction": "histogram by id", "deviation": -0.02, "excluded_above": None, "shown_above": None},
    ],
    "violations": [],
    "profile": {
        "num_requests": 20,
        "num_tokens": 1000,
        "num_drafts": 10,
        "num_draft_tokens": 30,
        "num_accepted_tokens": 9,
        "num_accepted_per_pos": [5, 3, 1],
        "acceptance_rate": 0.3,
        "mean_acceptance_length": 1.9,
        "rate_per_pos": [0.5, 0.3, 0.1],
    },
    "roles": [
        {"role": "no draft", "num_tokens": 990, "log_e": -0.5, "excluded_above": 0.05, "demanded": 0.05},
        {"role": "bonus token", "num_tokens": 10, "log_e": 0.5, "excluded_above": None, "demanded": None},
    ],
    "reported_logprobs": {
        "all tokens": {"num_tokens": 1000, "mean": 0.001, "largest": 0.02},
        "no draft": {"num_tokens": 990, "mean": 0.001, "largest": 0.02},
        "bonus token": {"num_tokens": 10, "mean": 0.0015, "largest": 0.003},
    },
    "per_prompt": [{"prompt": 0, "num_tokens": 1000, "surprise": 1.0, "expected": 1.1, "z": -0.5}],
}
FOUND = {
    "run": "toy",
    "words": "toy.yaml",
    "acceptance": "rejection",
    "server": "in process",
    "provenance": {"git": None, "versions": {"torch": "2"}, "hardware": {"processor": "cpu", "num_cores": 2}},
    "verdict": "equivalent",
    "reason": "all good",
    "tau": 0.05,
    "alpha": 1e-4,
    "tolerance": 1e-4,
    "log_e_limit": 9.21,
    "num_tokens_needed": 900,
    "reference": "native runtime",
    "excluded_above": 0.05,
    "sampling": {"temperature": 0.8, "top_p": 1.0, "top_k": 0},
    "prompts": [{"label": "<b>say</b> & hello", "num_tokens": 4}],
    "arms": {"speculation": ARM, "plain": ARM},
    "greedy": {
        "num_tokens": 90,
        "num_ties": 2,
        "largest_tie": 1e-5,
        "tolerance": 1e-4,
        "places": {},
        "faults": [],
        "violations": [],
        "reported_logprobs": None,
        "is_right": True,
    },
    "seconds": {"serving": 10.0, "scoring": 2.0},
    "assumptions": ["none"],
}
EXAMPLE = {
    "frequencies": [
        {
            "prompt": 0,
            "position": 1,
            "token": 5,
            "text": "<x>",
            "target_probability": 0.1,
            "served_frequency": 0.4,
            "num_samples": 50,
        }
    ],
    "tokens": [{"gain_nats": 2.0, "prompt": 0, "position": 1, "token": 5, "target_probability": 0.01, "bet": "draft"}],
}
ROW = {"num_tokens": 50, "num_tokens_omnibus": 90, "bound": 25, "caught_by": "draft", "is_caught": True}
SELF_CHECK = {
    "is_right": False,
    "survivors": [],
    "flagged": ["block"],
    "num_omnibus": 0,
    "num_bounded": 1,
    "num_mutants": 1,
    "num_controls": 1,
    "median_ratio": 2.0,
    "median_ratio_omnibus": None,
    "rows": [
        {**ROW, "name": "always accept", "is_control": False, "is_right": True},
        {**ROW, "name": "block", "is_control": True, "is_right": False},
    ],
}
SILENT = {**FOUND, "arms": {name: {**ARM, "roles": [], "reported_logprobs": None} for name in ("speculation", "plain")}}
DIFFERENT = {**FOUND, "verdict": "different", "counter_example": EXAMPLE, "self_check": SELF_CHECK}
LOSSY = {key: FOUND[key] for key in ("run", "words", "acceptance", "server", "provenance")}
LOSSY |= {"verdict": "lossy by configuration", "reason": "by design"}


def typed(found):
    """The certificate that is written as `found`."""
    return TypeAdapter(Judged if "arms" in found else Certificate).validate_python(found)


class Tags(HTMLParser):
    """Collects open tags, and fails where one closes that is not open."""

    VOID = ("meta", "br", "line", "rect", "polyline")

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("found", [FOUND, SILENT, DIFFERENT, LOSSY, {**FOUND, "verdict": "inconclusive"}])
def test_the_page_is_one_well_formed_file(found):
    text = page(typed(found))
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not {"script", "link", "img"} & set(tags.seen)
    assert found["verdict"].capitalize() in text
    assert "<b>say" not in text
    if found is DIFFERENT:
        assert "Counter-example" in text
        assert "&lt;x&gt;" in text
        assert "always accept" in text
    assert ("Places in a step" in text) == (found is not SILENT and found is not LOSSY)


def test_the_terminal_shows_the_same():
    for found in (FOUND, SILENT, DIFFERENT, LOSSY):
        console = Console(width=120, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
        console.print(certificate.view(typed(found)))
        text = console.export_text()
        assert found["verdict"] in text
        assert ("too rare" in text) == ("arms" in found and found is not SILENT)
    console = Console(width=120, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(certificate.view(typed(DIFFERENT)))
    assert "0.4000 of 50" in console.export_text()


def test_junit_has_a_case_per_check():
    suite = ElementTree.fromstring(certificate.junit(typed(FOUND)))
    assert (suite.get("tests"), suite.get("failures")) == ("9", "0")
    assert len(ElementTree.fromstring(certificate.junit(typed(SILENT)))) == 7
    about = {"layer": "reported log-probabilities", "arm": "speculation"}
    wrong = {**FOUND, "verdict": "different", "reason": "any words", **about}
    failed = [case.get("name") for case in ElementTree.fromstring(certificate.junit(typed(wrong))) if len(case)]
    assert failed == ["equivalence", "reported log-probabilities, speculation"]
    suite = ElementTree.fromstring(certificate.junit(typed(DIFFERENT)))
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["equivalence", "self-check, control: block"]
    assert len(ElementTree.fromstring(certificate.junit(typed(LOSSY)))) == 1


def test_files(tmp_path):
    paths = certificate.write(typed(FOUND), tmp_path / "new")
    assert sorted(path.name for path in paths) == ["certificate.json", "index.html", "junit.xml"]
    assert json.loads((tmp_path / "new" / "certificate.json").read_text()) == FOUND
    assert len(list((tmp_path / "new").iterdir())) == 3


def test_ticks_are_round_and_inside():
    assert plots.ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert plots.ticks(0, 43_000) == pytest.approx([0, 10_000, 20_000, 30_000, 40_000])
    assert plots.ticks(2, 2) == [2]
    assert plots.number(20_000) == "20k"
    assert plots.number(0.05) == "0.05"


def test_greedy_faults_and_broken_contracts_are_shown():
    fault = {
        "prompt_index": 0,
        "position": 17,
        "token": 5,
        "best_token": 6,
        "gap": 1.25,
        "text": "<a>",
        "best_text": "b",
    }
    violations = [{"prompt": 0, "what": "3 tokens without an end where max_tokens is 8"}]
    greedy = {**FOUND["greedy"], "faults": [fault] * 12, "violations": violations, "is_right": False}
    example = {"frequencies": [], "tokens": []}
    found = {**FOUND, "verdict": "different", "reason": "greedy: wrong", "greedy": greedy, "counter_example": example}
    text = page(typed(found))
    for words in ("Greedy faults", "the first 10 of 12", "&lt;a&gt;", "1.25", "Broken contracts", "without an end"):
        assert words in text
    assert "Counter-example" not in text
    failed = {name for name, wrong in certificate.checks(typed(found)) if wrong}
    assert failed == {"equivalence", "greedy outputs", "contract, greedy"}
    assert "Greedy faults" not in page(typed(FOUND))
    silent = {**FOUND["arms"]["speculation"], "num_tokens": 0, "path": [], "deviations": []}
    text = page(typed({**FOUND, "arms": {"speculation": silent, "plain": silent}}))
    assert "PIT" not in text
    assert "Where this comes from" in text


def test_what_limits_a_certificate_is_told_and_no_reason_is_read():
    limited = {**FOUND, "warning": "only 3 tokens had a draft", "reason": "all good; not a warning"}
    assert certificate.sentence(typed(limited)).endswith(" Only 3 tokens had a draft.")
    assert "warning" not in certificate.sentence(typed({**FOUND, "reason": "all good; not a warning"}))


@pytest.mark.parametrize("found", [FOUND, DIFFERENT, LOSSY])
def test_what_is_written_is_read_again(found):
    assert as_json(typed(found)) == json.loads(json.dumps(found))
