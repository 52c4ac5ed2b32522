"""The sweep on a tiny engine, its plot, and the vLLM peer's protocol on a stand-in for the library."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from tests.bench.keys import paths, under
from tests.cli.test_cli import call, json_of, ngram, project
from tests.cli.test_views import shown
from tests.runtime.models import prompts, tiny_engine
from trt_spec.bench import sweep
from trt_spec.bench.sweep import SweepResult, Worst, measure_sweep, own_arms, worst_adaptive
from trt_spec.bench.vllm_peer import VllmPeer
from trt_spec.clients.prompts import Prompt
from trt_spec.config.speculation import SpeculationConfig
from trt_spec.report.plots import speedups

__all__ = ["call", "ngram", "project"]  # fixtures


def test_every_arm_at_every_concurrency():
    engine = tiny_engine("ngram")
    engine.config = SimpleNamespace(
        speculation=SpeculationConfig(method="ngram", max_draft_len=4), target=SimpleNamespace(dtype="float32")
    )
    before, calls = (engine.draft_lengths, engine.rule), []

    def peer(batch, num_tokens):
        calls.append((len(batch), num_tokens))
        return 0.5

    kinds = measure_sweep(
        engine, {"a": prompts(2, 32)}, {"peer": peer}, concurrencies=(1, 3), num_tokens=6, num_rounds=2
    )
    assert list(kinds["a"]) == [1, 3]
    assert list(kinds["a"][3]) == ["plain", "fixed", "adaptive", "peer"]
    assert kinds["a"][3]["peer"] == 3 * 6 / 0.5
    assert calls == [(1, 4), *[(1, 6)] * 4, (3, 4), (3, 6), (3, 6)]
    assert (engine.draft_lengths, engine.rule) == before
    assert not engine.has_work
    shown(SweepResult(kinds, worst_adaptive(kinds), 6, 2, "float32", "tiny", {}).view())


def test_own_arms_all_give_the_text_they_are_told():
    """Also where the target's own next token is another: a text that it would never write."""
    engine, [prompt] = tiny_engine("ngram"), prompts(1, 32)
    engine.config = SimpleNamespace(speculation=SpeculationConfig(method="ngram", max_draft_len=4))
    text, given = [*prompt, *[7, 8, 9, 7, 8, 9, 7, 8, 9, 7]], []
    engine.generate, generate = lambda requests: given.extend(generate(requests)), engine.generate
    arms = own_arms(engine, {1: 1.0}, {tuple(prompt): text})
    assert all(arm([prompt], 10) > 0 for arm in arms.values())
    assert [answer.token_ids for answer in given] == [text[len(prompt) :]] * 3
    assert given[0].completion.num_drafts == 0
    assert all(answer.completion.total_accepted_draft_tokens >= 4 for answer in given[1:])


def test_the_worst_place_of_adaptive_drafts():
    arms = {"plain": 10.0, "fixed": 20.0, "adaptive": 19.0}
    kinds = {"a": {1: arms, 2: {**arms, "plain": 25.0}}, "b": {1: {**arms, "adaptive": 30.0}}}
    assert worst_adaptive(kinds) == Worst(ratio=19 / 25, kind="a", concurrency=2)
    root = ElementTree.fromstring(speedups(kinds))
    assert root.tag.endswith("svg")
    assert sum(item.tag.endswith("polyline") for item in root.iter()) == 5


def test_the_command_tells_the_run_and_the_versions_and_plots(call, project, ngram, monkeypatch):
    monkeypatch.setattr(sweep, "transformers_arm", lambda engine, target_dir: lambda batch, num_tokens: 0.5)
    monkeypatch.setattr(sweep, "CONCURRENCIES", (1, 64))
    monkeypatch.setattr(sweep, "DEMO_PROMPTS", [Prompt(f"{kind}: a", "the cat") for kind in ("chat", "edit")])
    call("build", ngram)
    found = json_of(call("bench", ngram, "--what", "sweep", "--plot", "plot.svg", "--json"))
    assert paths(found, {"kinds": 3, "versions": None}) == (
        under("", "run versions num_tokens num_rounds dtype kinds.*.*.*")
        | under("worst_adaptive", "ratio kind concurrency")
    )
    assert list(found["kinds"]) == ["chat", "copy and edit"]
    assert list(found["kinds"]["chat"]) == ["1"]  # the engine takes 4 at once
    assert ElementTree.fromstring((project / "plot.svg").read_text()).tag.endswith("svg")


FAKE_VLLM = """
__version__ = "9.9"
class SamplingParams:
    def __init__(self, **given):
        self.max_tokens = given["max_tokens"]
        assert given["ignore_eos"] and given["temperature"] == 0
class LLM:
    def __init__(self, **given): print("a line of its own"); assert given["dtype"] == "bfloat16", given
    def generate(self, prompts, params, use_tqdm):
        from types import SimpleNamespace as N
        return [N(outputs=[N(token_ids=[len(p["prompt_token_ids"])] * params.max_tokens)]) for p in prompts]
"""


def test_the_vllm_peer(tmp_path, monkeypatch):
    (tmp_path / "vllm.py").write_text(FAKE_VLLM, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    peer = VllmPeer(sys.executable, tmp_path, max_seq_len=64, max_batch_size=2)
    try:
        seconds, ids = peer.run([[1, 2], [3]], 3)
        assert peer.version == "9.9"
        assert ids == [[2, 2, 2], [1, 1, 1]]
        assert seconds >= 0
    finally:
        peer.close()
    (tmp_path / "vllm.py").write_text("raise SystemExit(3)", encoding="utf-8")
    with pytest.raises(ValueError, match="exit code 3"):
        VllmPeer(sys.executable, tmp_path, max_seq_len=64, max_batch_size=2)
