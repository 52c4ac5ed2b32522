"""`trt-spec verify` from outside: verdicts, exit codes, files, evidence that is kept, a server as the subject."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.engines.runs import tiny_run, write_run
from trt_spec.cli.app import main
from trt_spec.config import loader
from trt_spec.equivalence import subject

FAST = ("--temperature", "1.0", "--max-tokens", "24")
# By verdict, the paths of all keys of certificate.json but those of its provenance and of the self-check.
KEYS = json.loads((Path(__file__).parents[1] / "data" / "certificate_keys.json").read_text(encoding="utf-8"))


def keys(found, path=""):
    """Sorted paths; the items of a list share theirs."""
    if isinstance(found, list):
        return sorted({key for item in found for key in keys(item, path + "[]")})
    if not isinstance(found, dict):
        return []
    below = {key for name, item in found.items() if name != "provenance" for key in keys(item, f"{path}{name}.")}
    return sorted({path + name for name in found} | below)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs a command line in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        return (caught.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def config_path(tmp_path, call):
    """A built tiny run with n-gram drafts that asks for a certificate at τ = 0.2."""
    path = write_run(tmp_path, tiny_run(tmp_path))
    config = loader.load(path)
    equivalence = config.equivalence.model_copy(update={"tau": 0.2, "alpha": 1e-3})
    path.write_text(loader.dump(config.model_copy(update={"equivalence": equivalence})), encoding="utf-8")
    assert call("build", path)[0] == 0
    return path


def test_a_certificate(call, config_path, tmp_path):
    code, out, _ = call("verify", config_path, *FAST, "--json")
    found = json.loads(out)
    assert (code, found["verdict"]) == (0, "equivalent")
    assert found["tau"] == 0.2
    assert found["sampling"]["temperature"] == 1.0
    assert found["provenance"]["config_digest"]
    assert found["assumptions"]
    directory = tmp_path / "reports" / found["run"]
    assert {**json.loads((directory / "certificate.json").read_text()), "files": found["files"]} == found
    assert keys(found) == KEYS["equivalent"]
    suite = ElementTree.parse(directory / "junit.xml").getroot()
    assert suite.get("failures") == "0"
    assert int(suite.get("tests")) >= 6
    page = (directory / "index.html").read_text()
    assert "Equivalent" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_evidence_is_kept_and_gone_on_from(call, config_path):
    arguments = ("verify", config_path, *FAST, "--budget", "60", "--set", "equivalence.tau=0.021", "--json")
    first = json.loads(call(*arguments)[1])
    code, out, err = call(*arguments)
    second = json.loads(out)
    assert code == 4
    assert second["verdict"] == "inconclusive"
    before = first["arms"]["speculation"]["num_tokens"]
    assert second["arms"]["speculation"]["num_earlier_tokens"] == before
    assert second["arms"]["speculation"]["num_tokens"] > before
    assert "going on from" in err
    fresh = json.loads(call(*arguments, "--fresh")[1])
    assert fresh["arms"]["speculation"]["num_earlier_tokens"] == 0


def test_evidence_that_cannot_be_read_is_refused(call, config_path, tmp_path):
    """As of an older version, whose evidence had no parts."""
    arguments = ("verify", config_path, *FAST, "--budget", "20", "--json")
    call(*arguments)
    [path] = (tmp_path / "reports").glob("*/evidence-*.json")
    saved = json.loads(path.read_text())
    del saved["arms"]["plain"]["evidence"]["parts"]
    for text in (json.dumps(saved), "{", "[]"):
        path.write_text(text, encoding="utf-8")
        code, _, err = call(*arguments)
        assert code == 2
        assert "--fresh" in err
        assert path.name in err.replace("\n", "")
    assert call(*arguments, "--fresh")[0] in (0, 4)


def test_a_broken_contract_is_not_forgotten(call, config_path, monkeypatch):
    from trt_spec.runtime.sequence import Sequence

    arguments = ("verify", config_path, *FAST, "--budget", "20", "--json")
    finish_at = Sequence._finish_at

    def early(self, token):
        text = finish_at(self, token)
        if self.num_output_tokens == 3 and self.request.params.temperature > 0:
            self.finish_reason = "length"
        return text

    with monkeypatch.context() as patched:
        patched.setattr(Sequence, "_finish_at", early)
        assert call(*arguments)[0] == 1
    code, out, _ = call(*arguments)
    assert code == 1
    assert "without an end" in json.loads(out)["reason"]


def test_what_evidence_is_of(call, config_path, monkeypatch):
    """Not of another server, nor of other code."""
    arguments = ("verify", config_path, *FAST, "--budget", "20", "--json")

    def num_earlier_tokens():
        return json.loads(call(*arguments)[1])["arms"]["speculation"]["num_earlier_tokens"]

    assert num_earlier_tokens() == 0
    assert num_earlier_tokens() > 0
    with monkeypatch.context() as patched:
        patched.setattr("trt_spec.provenance.source_digest", lambda rooms: "other")
        assert num_earlier_tokens() == 0
    with monkeypatch.context() as patched:
        patched.setattr(subject, "in_process", elsewhere(subject.in_process))
        assert num_earlier_tokens() == 0


def elsewhere(in_process):
    return lambda *arguments: replace(in_process(*arguments), identity="127.0.0.1:8000")


def test_long_runs_keep_what_they_have(call, config_path, monkeypatch, tmp_path):
    from trt_spec.equivalence import store
    from trt_spec.equivalence.harness import Harness

    monkeypatch.setattr(store, "SAVE_INTERVAL_S", 0.0)
    judge, seen = Harness.judge, []

    def interrupted(self):
        seen.append(self)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return judge(self)

    monkeypatch.setattr(Harness, "judge", interrupted)
    arguments = ("verify", config_path, *FAST, "--set", "equivalence.tau=0.021", "--json")
    assert call(*arguments)[0] == 130
    monkeypatch.setattr(Harness, "judge", judge)
    code, out, _ = call(*arguments, "--budget", "20")
    assert code == 4
    assert json.loads(out)["arms"]["speculation"]["num_earlier_tokens"] > 0


def test_a_wrong_engine(call, config_path, monkeypatch):
    from trt_spec.equivalence.self_check.mutants import always_accept
    from trt_spec.runtime.acceptance import ACCEPTANCE_RULES, AcceptanceRule

    monkeypatch.setitem(ACCEPTANCE_RULES, "rejection", AcceptanceRule("rejection", True, True, always_accept))
    code, out, _ = call("verify", config_path, *FAST, "--json")
    assert code == 1
    assert json.loads(out)["verdict"] == "different"
    assert keys(json.loads(out)) == KEYS["different"]


@pytest.fixture
def greedy_path(tmp_path, call):
    """A built run that serves greedy requests only."""
    config = tiny_run(tmp_path, "draft_model")
    speculation = config.speculation.model_copy(update={"acceptance": "greedy"})
    path = write_run(tmp_path, config.model_copy(update={"speculation": speculation}))
    assert call("build", path)[0] == 0
    return path


def test_an_engine_that_serves_no_sampling(call, greedy_path, tmp_path):
    code, out, _ = call("verify", greedy_path, "--max-tokens", "24", "--json")
    found = json.loads(out)
    assert (code, found["verdict"]) == (0, "equivalent")
    assert keys(found) == KEYS["greedy"]
    assert found["greedy"]["num_tokens"] > 100
    assert found["greedy"]["reported_logprobs"]["all tokens"]["num_tokens"] == found["greedy"]["num_tokens"]
    assert "Equivalent" in (tmp_path / "reports" / found["run"] / "index.html").read_text()


def test_a_wrong_engine_that_serves_no_sampling(call, greedy_path, monkeypatch, tmp_path):
    from trt_spec.equivalence.self_check.mutants import always_accept
    from trt_spec.runtime.acceptance import ACCEPTANCE_RULES, AcceptanceRule

    monkeypatch.setitem(ACCEPTANCE_RULES, "greedy", AcceptanceRule("greedy", True, False, always_accept))
    code, out, _ = call("verify", greedy_path, "--max-tokens", "24", "--json")
    found = json.loads(out)
    assert (code, found["verdict"]) == (1, "different")
    assert keys(found) == KEYS["different, greedy"]
    assert "greedy output has" in found["reason"]
    assert "Greedy faults" in (tmp_path / "reports" / found["run"] / "index.html").read_text()


def test_transformers_as_the_reference(call, config_path):
    code, out, _ = call("verify", config_path, *FAST, "--reference", "transformers", "--json")
    found = json.loads(out)
    assert (code, found["reference"]) == (0, "transformers")


def test_lossy_is_never_certified(call, config_path):
    code, out, _ = call("verify", config_path, "--set", "speculation.acceptance=typical", "--json")
    assert code == 1
    assert json.loads(out)["verdict"] == "lossy by configuration"
    assert keys(json.loads(out)) == KEYS["lossy by configuration"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--temperature", "0"), "temperature"), (("--stop", "x"), "stop"), (("--set", "equivalence.tau=1e-9"), "tau")],
)
def test_what_cannot_be_verified(call, config_path, arguments, word):
    code, _, err = call("verify", config_path, *arguments)
    assert code == 2
    assert word in err


def test_without_an_engine(call, tmp_path):
    assert call("verify", write_run(tmp_path, tiny_run(tmp_path)))[0] == 2


def test_prompts_of_ones_own(call, config_path, tmp_path):
    (tmp_path / "prompts.txt").write_text("the cat\n\nthe dog\n", encoding="utf-8")
    arguments = ("--prompts", tmp_path / "prompts.txt", "--budget", "40", "--json")
    found = json.loads(call("verify", config_path, *FAST, *arguments)[1])
    assert [prompt["label"] for prompt in found["prompts"]] == ["the cat", "the dog"]
    (tmp_path / "prompts.txt").write_text("\n", encoding="utf-8")
    assert call("verify", config_path, "--prompts", tmp_path / "prompts.txt")[0] == 2


def test_a_server_that_is_not_there(call, config_path):
    assert call("verify", config_path, *FAST, "--url", "127.0.0.1:9")[0] == 3


def test_a_server_as_the_subject(call, config_path, monkeypatch):
    """The client is replaced by the built engine: ids in and out, speculation by the request's flag."""
    from trt_spec.clients import triton as client
    from trt_spec.runtime.loading import load_engine
    from trt_spec.runtime.request import Chunk, Request, SamplingParams

    config = loader.load(config_path)
    engine, asked = load_engine(Path("engines") / config.name), []

    def generate(self, prompt, *, request_id="", speculation=True, max_draft_len=None, **parameters):
        asked.append((speculation, parameters))
        params = SamplingParams(**parameters)
        [answer] = engine.generate([Request(request_id, tuple(prompt), params, speculation, max_draft_len)])
        return Chunk(request_id, answer.text, answer.token_ids, completion=answer.completion)

    monkeypatch.setattr(client.TritonClient, "generate", generate)
    monkeypatch.setattr(subject.WholeAnswers, "concurrency", 1)  # the engine here has one thread
    code, out, _ = call("verify", config_path, *FAST, "--url", "127.0.0.1:8000", "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["server"]) == (0, "equivalent", "127.0.0.1:8000")
    assert {speculation for speculation, _ in asked} == {True, False}
    seeds = [parameters["seed"] for _, parameters in asked if "seed" in parameters]
    assert len(set(seeds)) > len(seeds) // 2
    assert any("the server honours" in words for words in found["assumptions"])
    for words in ("does not say where tokens came from", "no log-probabilities"):  # as of this client
        assert any(words in assumption for assumption in found["assumptions"])


def test_a_wrong_forward_is_seen_by_the_cross_check(call, config_path, monkeypatch):
    """The engine and a native reference share it, so only transformers can tell."""
    from trt_spec.runtime import norm

    right = norm.RmsNorm
    monkeypatch.setattr("trt_spec.runtime.models.base.RmsNorm", lambda weight, eps: right(weight, eps + 0.02))
    code, out, _ = call("verify", config_path, *FAST, "--json")
    found = json.loads(out)
    assert (code, found["verdict"]) == (1, "different")
    assert "transformers" in found["reason"]
    assert not found["cross_check"]["is_right"]
    assert keys(found) == KEYS["different, cross-check"]


def test_tokens_alone(call, tmp_path, monkeypatch):
    from trt_spec.equivalence.self_check.mutants import always_accept
    from trt_spec.runtime.acceptance import ACCEPTANCE_RULES, AcceptanceRule

    path = write_run(tmp_path, tiny_run(tmp_path, "draft_model"))
    assert call("build", path)[0] == 0
    arguments = ("verify", path, "--black-box", "--temperature", "0.5", "--max-tokens", "12")
    arguments = (*arguments, "--set", "equivalence.alpha=0.001", "--json")
    code, out, _ = call(*arguments, "--budget", "300")
    assert (code, json.loads(out)["verdict"]) == (4, "inconclusive")
    monkeypatch.setitem(ACCEPTANCE_RULES, "rejection", AcceptanceRule("rejection", True, True, always_accept))
    code, out, _ = call(*arguments, "--budget", "1000")
    found = json.loads(out)
    assert (code, found["verdict"]) == (1, "different")
    assert keys(found) == KEYS["different, black box"]
    assert found["black_box"]["worst"][0]["count_on"] != found["black_box"]["worst"][0]["count_off"]


def test_a_draft_model_joins_the_bank(call, tmp_path):
    path = write_run(tmp_path, tiny_run(tmp_path, "draft_model"))
    assert call("build", path)[0] == 0
    code, out, _ = call("verify", path, *FAST, "--budget", "100", "--json")
    found = json.loads(out)
    assert code == 4
    assert "residual is p" in {row["direction"] for row in found["arms"]["speculation"]["deviations"]}
    assert "draft ratio" in found["arms"]["speculation"]["histogram"]
