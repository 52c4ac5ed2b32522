"""`trt-spec tune` from outside: measured on a tiny engine, planned from numbers, and what it refuses."""

from __future__ import annotations

import json

import pytest

from tests.bench.keys import paths, under
from tests.engines.runs import tiny_run, write_run
from trt_spec.cli.app import main
from trt_spec.clients.prompts import Prompt
from trt_spec.config import loader
from trt_spec.tuning import report
from trt_spec.tuning.result import PlannedBatch

PLANNED = ["--gpu", "H200", "--acceptance", "0.8,0.75,0.7,0.7,0.7"]
DEPLOYMENT = """\
name: big
target: {checkpoint: checkpoints/llama-3.3-70b-instruct}
speculation: {method: draft_model, checkpoint: checkpoints/llama-3.2-1b-instruct}
build: {target: llmapi, tensorrt_llm_version: 1.4.0rc4, tensor_parallel_size: 4, max_batch_size: 128}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "big.yaml").write_text(DEPLOYMENT)
    return tmp_path


@pytest.fixture
def call(capsys):
    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        return (caught.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def engine(project, call):
    """A built engine with n-gram drafts, and short prompts to tune it on."""
    config = tiny_run(project)
    build = config.build.model_copy(update={"max_seq_len": 256})
    path = write_run(project, config.model_copy(update={"build": build}))
    assert call("build", path, "-q")[0] == 0
    (project / "prompts.txt").write_text("the cat sat on the mat\nthe dog ran after the cat\nx + 1, x + 1, x + 1\n")
    return path


# Keys of `tune --json`, measured or planned, beside those of each.
FREE = dict.fromkeys(("draft_len_schedule", "schedule", "one length", "one length, and off", "form", "points"))
FREE |= {"staircase_ms": 1, "break_points": 1, "step": 1, "arms": 1, "forms": None}
SHARED_KEYS = (
    under("", "run method rule min_gain max_draft_len mode is_synthetic written snippet notes files")
    | under("acceptance", "rates drafted_tokens num_prompts num_steps")
    | under("plan", "batch draft_len speedup speedup_low step_ms tokens_per_s by_draft_len")
    | {f"acceptance.{name}.{end}" for name in ("survival", "expected_tokens") for end in ("estimate", "low", "high")}
    | {"draft_len_schedule", "plans.schedule", "plans.one length, and off", "plans.one length", "forms"}
    | under("open_loop", "requests_per_s output_tokens prefill_ms arms.*.points arms.*.is_overloaded")
)
FAST = ("--prompts", "prompts.txt", "--tokens", "16")


def json_of(outcome):
    code, out, _ = outcome
    assert code == 0, outcome
    return json.loads(out)


# ---- measured ----


def test_an_engine_is_measured_planned_and_checked(call, engine):
    found = json_of(call("tune", engine, *FAST, "--rate", "5", "--json"))
    cells = "batch draft_len context draft_ms verify_ms overhead_ms"
    check = "batch draft_len predicted measured plain_tokens_per_s predicted_plain_tokens_per_s error"
    assert paths(found, FREE) == (
        SHARED_KEYS
        | {"workload", "temperature", "num_tokens", "mean_absolute_error"}
        | {
            f"acceptance.{name}.{end}"
            for name in ("survival", "expected_tokens")
            for end in ("estimate", "low", "high")
        }
        | under("costs", "context contexts batches draft_lens staircase_ms.* break_points.* prefill_ms_per_token")
        | under("costs.cells", cells)
        | {"costs.section.step.*", "costs.section.draft_level"}
        | under("check", check)
    )
    assert found["mode"] == "measured"
    assert found["acceptance"]["num_prompts"] == 3
    assert len(found["acceptance"]["survival"]) == 8
    assert [one["batch"] for one in found["plan"]] == [1, 2, 3, 4]
    assert {(cell["batch"], cell["draft_len"]) for cell in found["costs"]["cells"]} == {
        (batch, length) for batch in (1, 4) for length in (0, 1, 2, 4, 8)
    }
    [checked] = found["check"]
    assert checked["batch"] == 2  # neither of the two that were measured
    assert found["mean_absolute_error"] == pytest.approx(abs(checked["predicted"] / checked["measured"] - 1))
    assert set(found["open_loop"]["arms"]) == {"plain", "schedule"}
    saved = json.loads((engine.parent / "reports/tiny-ngram/tuning.json").read_text())
    assert saved["plan"] == found["plan"]


def test_given_coins_stand_in_for_the_drafts_that_there_are(call, engine):
    """With all coins heads every step gives five tokens; the plan is written, and the build is said to be stale."""
    before = loader.load(engine)
    found = json_of(call("tune", engine, *FAST, "--acceptance", "1,1,1,1", "--json"))
    assert found["is_synthetic"]
    assert found["acceptance"]["expected_tokens"][-1]["estimate"] == 5
    assert found["written"] == str(engine)
    assert any("build it again" in note or "trt-spec build" in note for note in found["notes"])
    after = loader.load(engine).speculation
    assert after.max_draft_len == found["max_draft_len"] >= 1
    assert (after.draft_len_schedule or {1: after.max_draft_len}) == {
        int(start): length for start, length in found["draft_len_schedule"].items()
    }
    assert loader.load(engine).model_copy(update={"speculation": before.speculation}) == before


def test_costs_are_written_for_drafts_that_adapt(call, engine, project):
    text = engine.read_text().replace("adaptive_draft_len: false", "adaptive_draft_len: true")
    engine.write_text(text)
    assert call("build", engine, "-q")[0] == 0
    found = json_of(call("tune", engine, *FAST, "--acceptance", "1,1,1,1", "--json"))
    costs = loader.load(engine).speculation.costs
    assert costs.step == {int(rows): cost for rows, cost in found["costs"]["section"]["step"].items()}
    assert costs.step[1] == 1
    assert list(costs.step.values()) == sorted(costs.step.values())


def test_no_write_leaves_the_file_alone_and_shows_the_lines(call, engine):
    before = engine.read_text()
    code, out, err = call("tune", engine, *FAST, "--acceptance", "1,1", "--no-write")
    assert code == 0
    assert engine.read_text() == before
    assert "max_draft_len:" in out
    assert "--no-write" in err
    assert "Mean absolute error" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpu", "H200"], "--acceptance"),
        (["--params", "8e9"], "--gpu"),
        (["--gpu", "H200", "--acceptance", "0.8", "--tokens", "16"], "--tokens"),
        (["--output-tokens", "9"], "--rate"),
        (["--acceptance", "0.8,1.2"], "acceptance profile"),
        (["--acceptance", ",".join(["0.5"] * 9)], "more positions"),
    ],
)
def test_what_would_be_ignored_is_refused(call, engine, arguments, says):
    code, _, err = call("tune", engine, *arguments)
    assert code == 2
    assert says in err


def test_a_run_without_drafts_is_tuned_with_coins_only(call, project):
    config = tiny_run(project, "none")
    path = write_run(project, config.model_copy(update={"build": config.build.model_copy(update={"max_seq_len": 200})}))
    assert call("build", path, "-q")[0] == 0
    code, _, err = call("tune", path)
    assert (code, "drafts nothing" in err) == (2, True)
    (project / "prompts.txt").write_text("the cat\nthe dog\n")
    found = json_of(call("tune", path, *FAST, "--acceptance", "0.9,0.9", "--json"))
    assert found["written"] is None
    assert any("no drafter" in note or "does not pay" in note for note in found["notes"])


def test_an_engine_of_tensorrt_llm_is_planned_not_measured(call, project):
    code, _, err = call("tune", "big.yaml")
    assert (code, "--gpu NAME" in err) == (2, True)


# ---- planned ----


def test_a_deployment_is_planned_without_anything_of_it_here(call, project):
    found = json_of(call("tune", "big.yaml", *PLANNED, "--rate", "2", "--json"))
    machine = "gpu num_gpus params draft_params weights context plain_tokens_per_s max_batch"
    costs = "plain_tokens_per_s target_params draft_params memory_efficiency compute_efficiency layer_overhead_us"
    assert paths(found, FREE) == (
        SHARED_KEYS
        | {
            f"acceptance.{name}.{end}"
            for name in ("survival", "expected_tokens")
            for end in ("estimate", "low", "high")
        }
        | under("machine", machine)
        | under("costs", costs + " max_batch_by_memory")
        | {"max_batch"}
    )
    assert {frozenset(form) for form in found["forms"]} <= {frozenset({"engine", "plan", "form"})}
    points = found["open_loop"]["arms"]["schedule"]["points"]
    assert paths(points) == {"batch", "draft_len", "is_stable", "tpot_ms"}
    config = loader.load(project / "big.yaml")
    schedule = {int(start): length for start, length in found["draft_len_schedule"].items()}
    assert config.speculation.draft_len_schedule == schedule
    assert schedule[1] == config.speculation.max_draft_len == 5
    assert found["machine"]["num_gpus"] == 4
    assert found["costs"]["target_params"] == pytest.approx(70.55e9, rel=1e-3)
    assert found["plan"][0]["speedup"] > 2
    assert [point["is_stable"] for point in found["open_loop"]["arms"]["schedule"]["points"]] == [True]


def test_flags_name_a_run_that_has_no_file(call, project):
    named = ["--model", "x", "--method", "draft_model", "--draft", "y", "--params", "8e9", "--draft-params", "5e8"]
    code, out, err = call("tune", *named, *PLANNED)
    assert code == 0, err
    assert "max_draft_len" in out
    assert "no file" in err
    code, _, err = call("tune", *named[:6], *PLANNED)
    assert (code, "--draft-params" in err) == (2, True)


def test_trees_are_refused(call, project):
    code, _, err = call("tune", "big.yaml", *PLANNED, "--set", "speculation.tree.top_k=2")
    assert code == 2
    setting = [
        "--set",
        "speculation.tree={top_k: 2, max_total_draft_tokens: 6}",
        "--set",
        "speculation.max_draft_len=4",
    ]
    code, _, err = call("tune", "big.yaml", *PLANNED, *setting)
    assert (code, "tree" in err) == (2, True)


def test_the_page_shows_a_line_per_length_and_the_schedule_on_top(call, project):
    found = json_of(call("tune", "big.yaml", *PLANNED, "--no-write", "--json"))
    page = (project / "reports/big/tuning.html").read_text()
    assert page.count('class="length"') == 5
    assert page.count('class="chosen"') == 1
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    rows = report.shown_rows([PlannedBatch(**one) for one in found["plan"]])
    assert [row.batch for row in rows] == sorted({row.batch for row in rows})
    lengths = {one["draft_len"] for one in found["plan"]}
    assert {row.draft_len for row in rows} == lengths


# ---- coins elsewhere ----


def test_generate_marks_what_means_nothing(call, engine):
    asked = ["generate", engine, "--prompt", "the cat", "--max-tokens", "12", "--ignore-eos"]
    found = json_of(call(*asked, "--acceptance", "1,1", "--json"))
    assert found["is_synthetic"]
    assert found["mean_acceptance_length"] > 2.5
    assert "means nothing" in call(*asked, "--acceptance", "1,1")[2]
    assert "is_synthetic" not in json_of(call(*asked, "--json"))
    code, _, err = call(*asked, "--acceptance", "1", "--url", "127.0.0.1:1")
    assert (code, "--url" in err) == (2, True)


def test_bench_takes_coins_for_drafting_only(call, engine):
    code, _, err = call("bench", engine, "--acceptance", "0.5")
    assert (code, "--what drafting" in err) == (2, True)


def test_bench_drafts_by_coin_and_says_so(call, engine, monkeypatch):
    from trt_spec.bench import drafting

    prompts = [Prompt(f"{kind}: a", "the cat") for kind in ("chat", "copy", "edit")]
    monkeypatch.setattr(drafting, "DEMO_PROMPTS", prompts)
    found = json_of(call("bench", engine, "--what", "drafting", "--acceptance", "1,1", "--json"))
    figures = under("kinds.*.*", "tokens_per_s speedup mean_acceptance_length draft_tokens_per_draft acceptance_rate")
    assert paths(found, {"kinds": 2}) == figures | {"dtype", "num_tokens", "synthetic_acceptance"}
    assert found["synthetic_acceptance"] == [1, 1]
    assert found["kinds"]["chat"]["fixed"]["mean_acceptance_length"] == pytest.approx(3, abs=0.1)
    assert found["kinds"]["chat"]["plain"]["mean_acceptance_length"] == 1
    assert "by coin" in call("bench", engine, "--what", "drafting", "--acceptance", "1,1")[1]


def test_nothing_that_certifies_or_serves_takes_coins(call, engine):
    for command in ("verify", "emit", "serve", "build", "plan"):
        code, _, err = call(command, engine, "--acceptance", "0.5")
        assert (code, "No such option" in err) == (2, True), command
