"""The demo, serve and generate --url on a tiny engine and a real server."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.keys import paths, under
from tests.engines.runs import tiny_run, write_run
from trt_spec.bench.demo import PLAIN, Figures, Measured, Outcome, run_demo, summary
from trt_spec.clients.prompts import DEMO_PROMPTS, Prompt
from trt_spec.clients.trace import Trace
from trt_spec.report.console import Reporter
from trt_spec.run import DEMO_CHECKPOINT, Run, resolve_run
from trt_spec.runtime.stats import DraftCounts
from trt_spec.triton.server.installation import free_ports

FIGURES = "tokens_per_s ttft_ms tpot_ms tokens_per_step mean_acceptance_length"
SIDES = {f"{side}.{name}" for side in ("off", "on") for name in FIGURES.split()} | {"speedup"}
KEYS = (
    {"target", "dtype", "is_repeatable"}
    | under("runs", "run method engine_dir repository")
    | {f"runs.{part}.{name}" for part in ("rows", "kinds.*", "total") for name in SIDES}
    | under("runs.rows", "prompt outcome is_explained")
)


def answer(num_tokens, ttft_ms, latency_ms, num_drafts=0, num_accepted=0, ids=(1,)):
    times = [round(ttft_ms * 1e6), round(latency_ms * 1e6)][: min(num_tokens, 2)]
    counts = (1, num_tokens - 1)[: len(times)]
    drafts = DraftCounts(num_drafts, 9, num_accepted)
    return Trace(0, 0, tuple(times), counts, 5, num_tokens, token_ids=ids, drafts=drafts)


def test_figures_add_up_answers():
    found = Figures.of([answer(11, 100, 600, 2, 3), answer(11, 200, 700, 2, 5)])
    assert vars(found) == {
        "tokens_per_s": pytest.approx(22 / 1.3),
        "ttft_ms": 150.0,
        "tpot_ms": 1000 / 20,
        "tokens_per_step": 20 / 12,
        "mean_acceptance_length": 1 + 8 / 4,
    }


def test_figures_without_drafts_or_second_tokens_say_nothing_of_them():
    found = Figures.of([answer(1, 100, 100)])
    assert found.tpot_ms is None
    assert found.mean_acceptance_length is None


def test_the_summary_of_measured_prompts_and_its_json(tmp_path):
    runs = [Run(tiny_run(tmp_path, method), "run.yaml") for method in ("ngram", "draft_model")]
    off, on, slow = answer(11, 100, 1100), answer(11, 100, 600, 2, 5), answer(11, 100, 2100, 2, 1)
    names = ("copy: a", "chat: b")
    measured = [
        Measured(Prompt(name), {PLAIN: [off, off], "tiny-ngram": [on, on], "tiny-draft_model": [slow, slow]}, [1])
        for name in names
    ]
    tie = Outcome("tie at 3", True)
    outcomes = {"tiny-ngram": [Outcome(), tie], "tiny-draft_model": [Outcome(), Outcome("differs at 3", False)]}
    found = summary(runs, measured, outcomes)
    assert (found.exit_code, found.is_repeatable) == (1, True)
    ngram, draft_model = found.runs
    assert [row.prompt for row in ngram.rows] == list(names)
    assert ngram.rows[1].outcome == "tie at 3"
    assert list(ngram.kinds) == ["copy", "chat"]
    assert ngram.total.off == draft_model.total.off == Figures.of([off])
    assert (ngram.total.speedup, draft_model.total.speedup) == (pytest.approx(11 / 6), pytest.approx(11 / 21))
    assert paths(found.as_dict(), {"kinds": 1}) == KEYS
    for odd in (Measured(measured[0].prompt, measured[0].arms, [2]), twice(measured[0], "tiny-ngram")):
        assert not odd.is_repeatable


def twice(measured, arm):
    """With another second answer."""
    other = answer(11, 100, 600, ids=(2,))
    return Measured(measured.prompt, {**measured.arms, arm: [measured.arms[arm][0], other]}, measured.http_ids)


@pytest.fixture
def ports():
    return free_ports(3)


@pytest.fixture
def run_file(tmp_path, monkeypatch, ports):
    """A config file of a tiny run on free ports, in its own working directory."""
    monkeypatch.chdir(tmp_path)
    path = write_run(tmp_path, tiny_run(tmp_path, max_position_embeddings=1024))
    for key, port in zip(("http_port: 8000", "grpc_port: 8001", "metrics_port: 8002"), ports, strict=True):
        path.write_text(path.read_text().replace(key, f"{key.split()[0]} {port}"))
    return path


@pytest.mark.server
def test_the_demo_serves_measures_and_stops(run_file, ports, monkeypatch):
    from trt_spec.bench import demo

    monkeypatch.setattr(demo, "DEMO_PROMPTS", DEMO_PROMPTS[2:4])
    other_file = write_run(run_file.parent, tiny_run(run_file.parent, "draft_model"))
    out, err = io.StringIO(), io.StringIO()
    with socket.socket() as taken:  # the demo moves to other ports, and says so
        taken.bind(("127.0.0.1", ports[0]))
        taken.listen()
        runs = [resolve_run(str(run), overrides=("build.max_seq_len=512",)) for run in (run_file, other_file)]
        found = run_demo(runs, 8, Reporter(stdout=out, stderr=err))
    result = found.as_dict()
    assert paths(result, {"kinds": 1}) == KEYS
    assert [run["run"] for run in result["runs"]] == ["tiny-ngram", "tiny-draft_model"]
    for run in result["runs"]:
        assert [row["prompt"] for row in run["rows"]] == ["copy: notice", "copy: code"]
        assert list(run["kinds"]) == ["copy"]
        for row in (*run["rows"], run["total"]):
            assert row["speedup"] == row["on"]["tokens_per_s"] / row["off"]["tokens_per_s"] > 0
            assert row["off"] == result["runs"][0]["rows"][run["rows"].index(row)]["off"] if "prompt" in row else True
        assert all(row["outcome"] == "equal" for row in run["rows"])  # float32
    assert result["runs"][1]["total"]["on"]["mean_acceptance_length"] is not None  # both are drafted for
    assert result["is_repeatable"]
    json.dumps(result, allow_nan=False)
    assert "[copy: notice] Repeat the following text word for word:" in out.getvalue()
    assert f"port {ports[0]} is in use: using ports" in err.getvalue()
    for run in runs:
        assert f"of {run.config.name}\n" in err.getvalue()
    for stage in ("target checkpoint", "engine:", "model repository", "tritonserver: HTTP", "stopping tritonserver"):
        assert stage in err.getvalue()


@pytest.mark.server
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_serve_answers_and_stops_on_a_signal(run_file, ports, how):
    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "trt_spec", *map(str, arguments)], capture_output=True, text=True, check=False
        )

    for command in ("build", "emit"):
        assert call(command, run_file).returncode == 0
    server = subprocess.Popen(
        [sys.executable, "-m", "trt_spec", "serve", str(run_file), "--json"], stdout=subprocess.PIPE, text=True
    )
    lines = []
    while not lines or lines[-1] != "}\n":  # the one object, once the server is ready
        lines.append(server.stdout.readline())
        assert lines[-1], "the server ended"
    said = json.loads("".join(lines))
    request = ("generate", run_file, "--prompt", "the cat the cat", "--max-tokens", 12, "--json")
    here, *there = (
        json.loads(call(*request, *extra).stdout)
        for extra in ((), ("--url", said["http_url"]), ("--url", f"grpc://{said['grpc_url']}"))
    )
    for answered in there:
        assert answered["output_ids"] == here["output_ids"]
        assert answered.keys() == here.keys()
    refused = call(*request, "--url", said["http_url"], "--max-tokens", 0)
    assert refused.returncode == 2
    assert "max_tokens" in refused.stderr
    server.send_signal(how)
    assert server.wait(60) == 0
    assert call(*request, "--url", said["http_url"]).returncode == 3


@pytest.mark.server
@pytest.mark.demo_model
def test_the_demo_on_the_real_model(tmp_path, monkeypatch, ports):
    checkpoints = Path(__file__).parents[2] / DEMO_CHECKPOINT.parent
    if not (checkpoints / DEMO_CHECKPOINT.name).is_dir():
        pytest.skip(f"no {DEMO_CHECKPOINT}: run trt-spec fetch smollm2-135m")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").symlink_to(checkpoints)
    keys = ("serve.http_port", "serve.grpc_port", "serve.metrics_port")
    sets = [word for key, port in zip(keys, ports, strict=True) for word in ("--set", f"{key}={port}")]
    sets += ["--set", "target.dtype=float32"]  # bfloat16 is slow where the processor has none
    command = [sys.executable, "-m", "trt_spec", "demo", "--max-tokens", "24", "--json", *sets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # also: every difference is a tie
    result = json.loads(done.stdout)
    runs = {run["method"]: run for run in result["runs"]}
    assert list(runs) == ["eagle3", "medusa", "ngram"]
    lengths = {row["prompt"]: row["on"]["mean_acceptance_length"] for row in runs["ngram"]["rows"]}
    assert lengths["copy: notice"] > 3
    assert runs["eagle3"]["total"]["on"]["tokens_per_step"] > runs["medusa"]["total"]["on"]["tokens_per_step"] > 1
    assert result["is_repeatable"]
