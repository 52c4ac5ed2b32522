"""`trt-spec bench --what methods` on tiny engines: what is compared, what is refused, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.bench.keys import paths, under
from tests.cli.test_cli import call, json_of
from tests.engines.runs import tiny_run, write_run
from trt_spec.bench import methods
from trt_spec.bench.methods import MethodsResult
from trt_spec.equivalence.certificate import Judged
from trt_spec.errors import ConfigError, UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import resolve_run, runs_beside

__all__ = ["call"]  # a fixture
ROOT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Runs of one tiny target in configs/ of the working directory, with room for the shipped prompts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    for method in ("ngram", "draft_model", "none"):
        path = write_run(tmp_path / "configs", tiny_run(tmp_path, method, max_position_embeddings=1024))
        path.write_text(path.read_text().replace("max_seq_len: 128", "max_seq_len: 640"))
    return tmp_path


def quick(monkeypatch, num_tokens):
    for name, value in {"NUM_PROMPTS": 1, "NUM_TOKENS": num_tokens, "NUM_ROUNDS": 1}.items():
        monkeypatch.setattr(methods, name, value)


def names(runs):
    return [run.config.name for run in runs]


def test_every_run_of_the_target_that_drafts_is_beside(root):
    assert names(runs_beside(resolve_run("tiny-ngram"), ())) == ["tiny-ngram", "tiny-draft_model"]
    assert names(runs_beside(resolve_run("tiny-none"), ())) == ["tiny-draft_model", "tiny-ngram"]
    assert names(runs_beside(resolve_run("tiny-none"), ("tiny-ngram",))) == ["tiny-ngram"]


def test_what_is_set_for_all_of_them_and_what_for_one(root):
    overrides = ("speculation.max_draft_len=2", "build.max_batch_size=3", "target.dtype=bfloat16")
    first, other = runs_beside(resolve_run("tiny-ngram", overrides=overrides), ())
    assert (first.config.speculation.max_draft_len, other.config.speculation.max_draft_len) == (2, 4)
    assert first.config.build.max_batch_size == other.config.build.max_batch_size == 3
    assert other.config.target.dtype == "bfloat16"


def test_another_target_has_other_runs(root):
    elsewhere = resolve_run("tiny-ngram", overrides=("target.checkpoint=elsewhere",))
    assert names(runs_beside(elsewhere, ())) == ["tiny-ngram"]
    with pytest.raises(UsageError, match="one target"):
        runs_beside(elsewhere, ("tiny-draft_model",))


def test_the_shipped_runs_of_the_demo_target():
    assert names(runs_beside(resolve_run("smollm2-135m-eagle3"), ())) == [
        f"smollm2-135m-{method}" for method in ("eagle3", "medusa", "ngram")
    ]


def test_runs_that_cannot_be_compared_are_refused(root):
    with pytest.raises(UsageError, match="one name"):
        runs_beside(resolve_run("tiny-ngram"), ("tiny-ngram",))
    with pytest.raises(ConfigError):
        runs_beside(resolve_run("tiny-ngram"), ("tiny-nothing",))


def test_the_options_of_one_kind_are_refused_with_another(call, root):
    for option, kind in (("--certify", "methods"), ("--save=x.json", "methods"), ("--plot=x.svg", "sweep")):
        code, _, err = call("bench", "tiny-ngram", option)
        assert (code, f"--what {kind}" in err) == (2, True)
    code, _, err = call("bench", "tiny-none", "--what", "methods", "--beside", "tiny-none")
    assert (code, "no run drafts" in err or "one name" in err) == (2, True)


def test_methods_are_built_timed_and_saved(call, root, monkeypatch):
    quick(monkeypatch, num_tokens=8)
    found = json_of(call("bench", "tiny-ngram", "--what", "methods", "--save", "out/methods.json", "--json"))
    assert list(found["workloads"]) == ["chat", "code_editing"]
    for arms in found["workloads"].values():
        assert list(arms) == ["plain", "tiny-ngram", "tiny-draft_model"]
        assert "outputs" not in arms["plain"]
    figures = "tokens_per_s ttft_ms tpot_ms tokens_per_step speedup lowest highest"
    free = {"workloads": 2, "runs": 1, "speculation": None, "draft": None}
    assert paths(found, free) == (
        under("", "command target dtype num_tokens num_rounds num_prompts is_right")
        | under("machine", "processor num_cores torch")
        | under("workloads.*.*", figures)
        | under("runs.*", "method speculation draft greedy.equal greedy.tie greedy.different")
    )
    for run in found["runs"].values():
        assert run["greedy"] == {"equal": 2, "tie": 0, "different": 0}  # float32
        assert "certificate" not in run
    assert found["is_right"]
    assert found["runs"]["tiny-ngram"]["draft"] == {}
    assert set(found["runs"]["tiny-draft_model"]["draft"]) == {"config.json", "model.safetensors"}
    saved = json.loads((root / "out" / "methods.json").read_text())
    assert MethodsResult.from_json(json.dumps(saved)).as_dict() == saved
    assert saved["runs"] == found["runs"]
    assert saved["workloads"]["chat"]["plain"]["tpot_ms"] == pytest.approx(
        found["workloads"]["chat"]["plain"]["tpot_ms"], abs=1e-4
    )


@pytest.mark.parametrize("fault", ["an output differs", "a verdict is not equivalent"])
def test_what_is_wrong_is_an_exit_code(call, root, monkeypatch, fault):
    quick(monkeypatch, num_tokens=4)
    verdict = "equivalent"
    if fault == "an output differs":
        monkeypatch.setattr(methods, "_greedy", lambda *_: methods.Greedy(equal=1, different=1))
    else:
        verdict = "inconclusive"
    found = methods.Certificate(verdict, reason="", num_tokens=1, tau=0.05, alpha=1e-4)
    monkeypatch.setattr(methods, "_certify", lambda run, reporter: found)
    code, out, _ = call("bench", "tiny-none", "--what", "methods", "--beside", "tiny-ngram", "--certify", "--json")
    assert code == 1
    assert not json.loads(out)["is_right"]


def test_a_certificate_is_that_of_verify(root, monkeypatch):
    asked, written = [], []
    found = object.__new__(Judged)  # frozen, and most of it does not matter here
    arms = {"speculation": SimpleNamespace(num_tokens=7)}
    vars(found).update(verdict="equivalent", reason="why", arms=arms)
    monkeypatch.setattr(methods.certification, "verify", lambda *arguments: asked.append(arguments) or found)
    monkeypatch.setattr(methods.certificate, "write", lambda *arguments: written.append(arguments))
    gist = methods._certify(resolve_run("tiny-ngram"), Reporter(is_quiet=True))
    assert gist == methods.Certificate("equivalent", reason="why", num_tokens=7, tau=0.05, alpha=1e-4)
    [(run, options, _)] = asked
    assert run.config.equivalence.tau == 0.05
    assert run.config.name == "tiny-ngram"
    assert (options.url, options.reference, options.is_fresh, options.is_cross_checked) == (None, "native", False, True)
    assert written == [(found, Path("reports/tiny-ngram"))]


def test_the_table_of_the_readme_is_of_the_shipped_runs():
    """Whoever changes a head or a config of the demo target measures again: make speedups."""
    saved = json.loads((ROOT / "docs" / "speedups.json").read_text(encoding="utf-8"))
    shipped = {run.config.name: run.config.speculation for run in runs_beside(resolve_run("smollm2-135m-eagle3"), ())}
    assert set(saved["runs"]) == set(shipped)
    for name, run in saved["runs"].items():
        speculation = shipped[name]
        assert run["speculation"] == speculation.model_dump(mode="json", exclude_none=True), "run: make speedups"
        found = methods.draft_digests(ROOT / speculation.checkpoint) if speculation.checkpoint else {}
        assert run["draft"] == found, "run: make speedups"
        certificate = run.get("certificate", {"verdict": "equivalent", "tau": 0})  # without one the table says "none"
        assert certificate["verdict"] == "equivalent"
        assert certificate["tau"] <= methods.TAU
        assert run["greedy"]["different"] == 0
