"""`trt-spec gate` from outside: verdicts, exit codes, files, floors, records, servers; and what is refused by name.

Times here are real, and judged against demands that no machine could miss or meet by chance.
"""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.clients.openai_server import FakeOpenAI
from tests.engines.runs import tiny_run, write_run
from tests.gate.test_verdict import records as made_records
from trt_spec.cli.app import main
from trt_spec.gate import records as files

SMALL = ("--set", "latency.concurrencies=[1]", "--set", "latency.max_tokens=4")
FILES = ("gate.json", "records.jsonl", "junit.xml", "index.html")
GENEROUS = ("--set", "latency.min_speedup.1=0.001", "--set", "latency.max_ttft_p99_ratio=1000")


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs a command line in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        return (caught.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def config_path(tmp_path):
    return write_run(tmp_path, tiny_run(tmp_path))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("the cat sat\nthe dog ran after the dog\n", encoding="utf-8")
    return ("--prompts", path)


@pytest.fixture
def records_path(tmp_path):
    """Records of a run that was made up: 1.29 times as fast, without noise to speak of."""
    header = {"run": "old", "words": "old.yaml", "server": "s", "plain_server": "s", "workload": "chat"}
    header |= {"max_tokens": 9, "num_pairs": 20, "seconds": 1.0, "notes": []}
    header["provenance"] = {"git": None, "versions": {"torch": "2"}, "hardware": {"processor": "c", "num_cores": 2}}
    path = tmp_path / "old.jsonl"
    path.write_text(files.dump(header, made_records()), encoding="utf-8")
    return path


def test_the_engine_in_process(call, config_path, prompts, tmp_path):
    assert call("build", config_path)[0] == 0
    code, out, err = call("gate", config_path, *prompts, *SMALL, *GENEROUS, "--json")
    found = json.loads(out)
    assert (code, found["verdict"]) == (0, "pass"), err
    directory = tmp_path / "reports" / found["run"] / "gate"
    assert {path.name for path in directory.iterdir()} == set(FILES)
    [load] = found["loads"]
    assert (load["load"], load["floor"], len(load["per_pair"])) == ("concurrency 1", 0.001, 20)
    assert load["arms"]["plain"]["num_output_tokens"] == 20 * 4 * 4
    assert load["arms"]["plain"]["acceptance"]["num_draft_tokens"] == 0
    suite = ElementTree.parse(directory / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")
    page = (directory / "index.html").read_text(encoding="utf-8")
    assert "http" not in page.replace("http://www.w3.org", "")
    _, rows = files.load(directory / "records.jsonl")
    assert len(rows) == 42 * 4

    code, out, _ = call("gate", config_path, *SMALL, "--set", "latency.min_speedup.1=500", "--report", "elsewhere",
                        "--records", directory / "records.jsonl", "--json")  # fmt: skip
    again = json.loads(out)
    assert (code, again["verdict"]) == (1, "fail")
    assert again["loads"][0]["ratios"] == load["ratios"]
    assert (tmp_path / "elsewhere" / "records.jsonl").read_text() == (directory / "records.jsonl").read_text()
    suite = ElementTree.parse(tmp_path / "elsewhere" / "junit.xml").getroot()
    assert "floor 500" in suite.find(".//failure").get("message")


PINNED = Path(__file__).parents[1] / "gate" / "data"  # records of format 1 and what was said of them then
OF_PINNED = ("--set", "latency.concurrencies=[1, 2]", "--set", "latency.min_speedup.1=1.1")


def _close(found, pinned):
    """The same keys and types everywhere, and numbers but for rounding."""
    if isinstance(pinned, dict):
        assert list(found) == list(pinned)
        pairs = zip(found.values(), pinned.values(), strict=True)
    elif isinstance(pinned, list):
        pairs = zip(found, pinned, strict=True)
    else:
        assert type(found) is type(pinned)
        assert found == (pytest.approx(pinned, rel=1e-9) if isinstance(pinned, float) else pinned)
        return
    for one, other in pairs:
        _close(one, other)


def test_records_of_the_first_format_have_the_same_verdict_in_the_same_words(call, config_path, tmp_path):
    """Every key of gate.json, in its order; without an SLO there is no goodput."""
    arguments = ("gate", config_path, "--records", PINNED / "records_1.jsonl", *OF_PINNED, "--report", "r", "--json")
    code, out, _ = call(*arguments, "--set", "latency.slo_ttft_ms=25")
    pinned = json.loads((PINNED / "gate.json").read_text(encoding="utf-8"))
    written = json.loads((tmp_path / "r" / "gate.json").read_text(encoding="utf-8"))
    assert code == 0
    _close(written, pinned)
    assert json.loads(out) == {**written, "files": [f"r/{name}" for name in FILES]}

    assert call(*arguments)[0] == 0
    for load in pinned["loads"]:
        for part in (load["ratios"], load["noise"]):
            del part["goodput"]
        for arm in load["arms"].values():
            del arm["goodput_per_s"]
    _close(json.loads((tmp_path / "r" / "gate.json").read_text(encoding="utf-8")), {**pinned, "slo": None})


@pytest.mark.parametrize(
    ("floor", "code", "verdict"), [(1.1, 0, "pass"), (1.2862, 4, "inconclusive"), (1.6, 1, "fail")]
)
def test_the_three_verdicts(call, config_path, records_path, floor, code, verdict):
    found = call("gate", config_path, "--records", records_path, *SMALL, "--set", f"latency.min_speedup.1={floor}")
    assert found[0] == code
    assert f"old: {verdict}" in found[1]


def test_floors_of_a_machine(call, config_path, records_path, tmp_path):
    """A file of floors lies over the run's config, and --set over both; configs/gates/<run>.yaml is found by itself."""
    arguments = ("gate", config_path, "--records", records_path, "--json")
    floors = tmp_path / "floors.yaml"
    floors.write_text("latency: {concurrencies: [1], min_speedup: {1: 1.6}}\n", encoding="utf-8")
    assert call(*arguments, "--floors", floors)[0] == 1
    assert call(*arguments, "--floors", floors, "--set", "latency.min_speedup.1=1.1")[0] == 0
    committed = tmp_path / "configs" / "gates" / "tiny-ngram.yaml"
    committed.parent.mkdir(parents=True)
    floors.rename(committed)
    code, out, err = call(*arguments)
    assert code == 1
    assert json.loads(out)["floors_from"] == "configs/gates/tiny-ngram.yaml"
    assert "floors from" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("build: {max_batch_size: 2}\n", "one section, latency"),
        ("latency: 3\n", "one section, latency"),
        ("latency: {min_speedups: {1: 1.0}}\n", "min_speedup"),
        ("latency: {min_speedup: {1: fast}}\n", "latency.min_speedup"),
        ("latency: {min_speedup: {3: 1.0}}\n", "judged but not measured"),
    ],
)
def test_unsound_floors(call, config_path, records_path, tmp_path, text, words):
    (tmp_path / "floors.yaml").write_text(text, encoding="utf-8")
    code, _, err = call("gate", config_path, "--records", records_path, "--floors", tmp_path / "floors.yaml")
    assert code == 2
    assert words in err
    assert "floors.yaml" in err


def test_an_openai_compatible_server(call, config_path, prompts, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with FakeOpenAI(step_s=0.001) as server:
        arguments = ("--openai-url", server.url, "--set", "latency.min_speedup.1=1.2", *GENEROUS[2:])
        code, out, err = call(
            "gate", config_path, *prompts, *SMALL, "--set", "latency.max_tokens=9", *arguments, "--json"
        )
    found = json.loads(out)
    assert (code, found["verdict"], found["server"]) == (0, "pass", server.url), err
    assert found["loads"][0]["arms"]["speculation"]["tokens_per_chunk"] == 3
    assert set(server.keys) == {"Bearer secret"}
    assert "secret" not in out


def test_two_servers(call, config_path, prompts):
    with FakeOpenAI(switches=False, always_drafts=True) as server, FakeOpenAI(switches=False) as plain:
        arguments = ("--openai-url", server.url, "--plain-url", plain.url, *GENEROUS)
        code, out, err = call("gate", config_path, *prompts, *SMALL, *arguments, "--json")
    assert code == 0, err
    assert json.loads(out)["plain_server"] == plain.url
    assert len(server.bodies) == len(plain.bodies) == 84


@pytest.mark.parametrize(
    ("options", "words"),
    [({"always_drafts": True}, "plain arm drafts"), ({"switches": False}, "does not say whether it switched")],
)
def test_arms_that_may_be_the_same_are_refused(call, config_path, prompts, options, words):
    with FakeOpenAI(**options) as server:
        code, _, err = call("gate", config_path, *prompts, *SMALL, "--openai-url", server.url)
    assert code == 3
    assert words in err
    assert "--plain-url" in err


def test_poisson_arrivals_are_measured_and_their_speedup_is_not_judged(call, config_path, prompts):
    with FakeOpenAI() as server:
        arguments = ("--openai-url", server.url, "--rate", "2000", *GENEROUS)
        code, out, err = call("gate", config_path, *prompts, *SMALL, *arguments, "--json")
    found = json.loads(out)
    assert code == 0, err
    assert [check["name"] for check in found["checks"]] == ["TTFT p99, 2000 requests/s"]
    assert "latency.min_speedup is for concurrencies" in found["notes"][0]
    assert "latency.min_speedup is for concurrencies" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--url", "a:1", "--openai-url", "http://b:1"), "two servers"),
        (("--plain-url", "a:1"), "--plain-url needs"),
        (("--blocks", "21"), "even number"),
        (("--blocks", "18"), "--blocks"),
        (("--rate", "0"), "--rate"),
        (("--set", "speculation.method=none"), "drafts nothing"),
        (("--set", "latency.max_tokens=1"), "latency.max_tokens"),
        (("--set", "latency.workload=poetry"), "latency.workload"),
        (("--set", "latency.concurrencies=[4, 1]"), "does not rise"),
        (("--records", "missing.jsonl"), "missing.jsonl"),
        ((), "engine"),  # none is built
    ],
)
def test_what_is_refused_by_name(call, config_path, arguments, words):
    code, _, err = call("gate", config_path, *arguments)
    assert code == 2
    assert words in err


def test_records_go_with_no_server(call, config_path, records_path):
    code, _, err = call("gate", config_path, "--records", records_path, "--url", "a:1", "--rate", "3")
    assert code == 2
    assert "--url, --rate" in err


def test_records_without_the_load_of_a_floor(call, config_path, records_path):
    code, _, err = call("gate", config_path, "--records", records_path, "--set", "latency.min_speedup.4=1.0")
    assert code == 2
    assert "concurrency 4" in err


def test_records_that_do_not_say_where_they_come_from(call, config_path, tmp_path):
    (tmp_path / "bare.jsonl").write_text(files.dump({"run": "old"}, made_records()), encoding="utf-8")
    code, _, err = call("gate", config_path, "--records", tmp_path / "bare.jsonl", *SMALL)
    assert code == 2
    assert "provenance" in err


def test_more_clients_than_places(call, config_path, prompts):
    assert call("build", config_path)[0] == 0
    wide = ("--set", "latency.concurrencies=[8]", *GENEROUS[2:])
    code, _, err = call("gate", config_path, *prompts, *SMALL, *wide)
    assert code == 0, err
    assert "concurrency 8: more than build.max_batch_size 4" in err


def test_engines_of_tensorrt_llm_need_a_server(call, tmp_path):
    code, _, err = call("gate", "--model", "x", "--method", "ngram", "--build-target", "llmapi")
    assert code == 2
    assert "does not run in this process" in err


def test_a_prompt_that_does_not_fit(call, config_path, tmp_path):
    assert call("build", config_path)[0] == 0
    (tmp_path / "long.txt").write_text("the cat " * 200, encoding="utf-8")
    code, _, err = call("gate", config_path, "--prompts", tmp_path / "long.txt", *SMALL)
    assert code == 2
    assert "longer than the context" in err
    assert not (tmp_path / "reports").exists()


def test_nobody_there(call, config_path, prompts):
    assert call("gate", config_path, *prompts, *SMALL, "--openai-url", "http://127.0.0.1:9/v1")[0] == 3
