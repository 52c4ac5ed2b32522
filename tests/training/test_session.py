"""A run from end to end on a tiny target: the result loads, passes inspection, drafts without loss, and has a card."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.tools import CPU, make_target
from trt_spec.checkpoints.detect import inspect
from trt_spec.config import loader
from trt_spec.errors import CapabilityError, PairError, UsageError
from trt_spec.runtime.loading import make_engine
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.training.options import TrainOptions, split_prompts
from trt_spec.training.session import Session, draft_vocabulary, measured_config


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("target") / "tiny")


@contextmanager
def stage(label):
    yield lambda part, text: None


def run_config(target_dir, method, draft=None, *overrides):
    fixed = ("target.dtype=float32", "build.max_seq_len=200", "build.max_batch_size=4", "build.device=cpu", *overrides)
    return loader.load_or_compose(str(target_dir), method, draft, "torch", fixed)


def options(tmp_path, name, **changes) -> TrainOptions:
    small = {"num_tokens": 400, "reply_tokens": 12, "num_steps": 8, "batch_tokens": 512, "held_out_tokens": 6}
    return TrainOptions(output=tmp_path / name, **({"cache_dir": tmp_path / "cache"} | small | changes))


METHODS = {
    "eagle3": ["speculation.max_draft_len=3"],
    "eagle3 tree": ["speculation.tree.top_k=2", "speculation.tree.max_total_draft_tokens=5"],
    "medusa": ["speculation.max_draft_len=3"],
    "draft_model": ["speculation.max_draft_len=3"],
    "mtp": ["speculation.max_draft_len=2"],
}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("case", METHODS)
def test_the_result_is_sound_and_drafts_without_loss(tmp_path, cache_dir, target_dir, case):
    method = case.split()[0]
    output = tmp_path / "out"
    draft = None if method == "mtp" else str(output)
    config = run_config(target_dir, method, draft, *METHODS[case])
    chosen = options(tmp_path, "out", num_layers=2)
    chosen = TrainOptions(**{**chosen.__dict__, "cache_dir": cache_dir})
    card = Session(config, chosen, stage, lambda text: None).run()
    found = inspect(output, None if method == "mtp" else target_dir)
    assert (found.method, found.problems) == (method, ())
    if method == "medusa":
        assert found.details.num_heads == 4  # of a run that drafts 3
    assert json.loads((output / "card.json").read_text()) == json.loads(json.dumps(card))
    assert {path.stat().st_mode & 0o777 for path in output.iterdir()} == {0o644}
    measured = card["acceptance"]["by_temperature"]
    assert [row["temperature"] for row in measured] == [0.0, 0.7, 1.0]
    assert all(row["num_output_tokens"] > 0 for row in measured)
    assert card["training"]["num_steps"] == 8
    assert "## Acceptance" in (output / "README.md").read_text()
    served = measured_config(config, output, None)
    engine = make_engine(served, Path(served.target.checkpoint), output, CPU)
    plain = make_engine(run_config(target_dir, "none"), target_dir, output, CPU)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    prompts = [tuple(range(5 + index, 25 + index)) for index in range(3)]
    requests = [Request(str(index), ids, params) for index, ids in enumerate(prompts)]
    speculative = engine.generate(requests)
    assert [one.token_ids for one in speculative] == [one.token_ids for one in plain.generate(requests)]
    assert all(one.completion.num_drafts > 0 for one in speculative)


def test_a_second_run_makes_no_text_and_no_features_again(tmp_path, target_dir):
    def train(name, seed_of_training=0):
        config = run_config(target_dir, "medusa", str(tmp_path / name), "speculation.max_draft_len=2")
        Session(config, options(tmp_path, name), stage, lambda text: None).run()

    def times():
        files = [path for path in (tmp_path / "cache").rglob("shard-*")]
        return {path: path.stat().st_mtime_ns for path in files}

    train("first")
    before = times()
    assert {path.suffix for path in before} == {".jsonl", ".safetensors"}
    train("second")
    assert times() == before
    first, second = (tmp_path / name / "medusa_lm_head.safetensors" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
def test_a_run_goes_on_from_an_earlier_checkpoint(tmp_path, cache_dir, target_dir, method):
    def train(name, **changes):
        config = run_config(target_dir, method, str(tmp_path / name), "speculation.max_draft_len=2")
        chosen = options(tmp_path, name, **({"num_layers": 2, "cache_dir": cache_dir, "held_out_tokens": 0} | changes))
        return Session(config, chosen, stage, lambda text: None).run()

    first = train("first", draft_vocab_size=50)
    second = train("second", start_dir=tmp_path / "first", draft_vocab_size=60)
    losses = [card["training"]["loss_by_position"][0] for card in (first, second)]
    assert losses[1] < losses[0]
    assert second["continues"]["training"] == json.loads(json.dumps(first["training"]))
    assert "Went on from an earlier run" in (tmp_path / "second" / "README.md").read_text()
    if method == "eagle3":
        d2t = [load_file(tmp_path / name / "model.safetensors")["d2t"] for name in ("first", "second")]
        assert torch.equal(*d2t)
    with pytest.raises(PairError):
        train("third", start_dir=tmp_path / "first", num_layers=3) if method == "draft_model" else Session(
            run_config(target_dir, "medusa", str(tmp_path / "x")),
            options(tmp_path, "x", start_dir=tmp_path / "first"),
            stage,
            print,
        )


def test_given_prompts_are_split_and_said(tmp_path, target_dir):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "the cat {index}"}}\n' for index in range(40)))
    config = run_config(target_dir, "medusa", str(tmp_path / "out"), "speculation.max_draft_len=2")
    session = Session(config, options(tmp_path, "out", prompts_path=prompts), stage, lambda text: None)
    assert len(session.held_out) == 2
    assert not set(session.held_out) & set(session.prompts)
    card = session.run()
    assert list(card["corpus"]["reply_tokens_by_source"]) == ["file"]
    assert card["acceptance"]["by_temperature"][0]["num_prompts"] == 2


def test_one_given_prompt_is_trained_on_and_measured():
    assert split_prompts(["a"]) == (["a"], ["a"])


def test_measuring_can_be_left_out(tmp_path, target_dir):
    config = run_config(target_dir, "medusa", str(tmp_path / "out"), "speculation.max_draft_len=2")
    card = Session(config, options(tmp_path, "out", held_out_tokens=0), stage, lambda text: None).run()
    assert "acceptance" not in card
    assert "Not measured" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("method", ["none", "ngram"])
def test_methods_without_a_checkpoint_are_refused(tmp_path, target_dir, method):
    with pytest.raises(CapabilityError, match=f"method {method} is not trained"):
        Session(run_config(target_dir, method), options(tmp_path, "out"), stage, print)


def test_a_directory_of_something_else_is_left_alone(tmp_path, target_dir):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="no training run wrote"):
        Session(run_config(target_dir, "medusa", str(tmp_path / "out")), options(tmp_path, "out"), stage, print)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_the_draft_vocabulary_is_what_occurs_most_and_what_ends_a_text():
    counts = torch.tensor([0, 5, 0, 9, 9, 1, 0])
    assert draft_vocabulary(counts, 3, frozenset({6})).tolist() == [3, 4, 6]
    assert draft_vocabulary(counts, 4, ()).tolist() == [1, 3, 4, 5]
    assert draft_vocabulary(torch.zeros(5), 3, ()).tolist() == [0, 1, 2]
    assert draft_vocabulary(counts, 99, ()).tolist() == list(range(7))
