"""The loop: losses fall, a run that was stopped ends where it would have, rates and figures are what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.training.test_recipes import recipe_of
from tests.training.tools import CPU, FixedCorpus, load, make_target
from trt_spec.errors import MachineError
from trt_spec.training.feature_cache import FeatureCache
from trt_spec.training.losses import PositionLoss
from trt_spec.training.trainer import Figures, Trainer, TrainSettings

SETTINGS = TrainSettings(num_steps=12, batch_tokens=120, learning_rate=3e-3)
METHODS = ("eagle3", "medusa", "mtp", "draft_model")


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("target") / "t")


@pytest.fixture(scope="module")
def target(target_dir):
    return load(target_dir)


@pytest.fixture(scope="module")
def cache(tmp_path_factory, target):
    cache = FeatureCache(tmp_path_factory.mktemp("features"), FixedCorpus(), (2, 3, 6))
    cache.write(target, 2, lambda done, wanted: None)
    return cache


def make(tmp_path, method, target_dir, target, cache, settings=SETTINGS, key="key") -> Trainer:
    recipe = recipe_of(method, target_dir, target)
    initial = recipe.initial(torch.Generator().manual_seed(0))
    return Trainer(recipe, initial, settings, cache, 2, tmp_path / "state.safetensors", key, torch.float32, CPU)


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_falls(tmp_path, method, target_dir, target, cache):
    trainer = make(tmp_path, method, target_dir, target, cache, replace(SETTINGS, num_steps=60))
    seen = []
    trainer.run(lambda figures: seen.append(list(figures.losses)))
    assert len(seen) == trainer.figures.step == 60
    for first, last in zip(seen[0], seen[-1], strict=True):
        assert last < first  # smoothed over fifty steps, so it lags behind
    assert all(weight.isfinite().all() for weight in trainer.weights.values())


@pytest.mark.parametrize("method", ["eagle3", "medusa"])
def test_a_stopped_run_ends_where_it_would_have(tmp_path, method, target_dir, target, cache):
    class Stopped(Exception):
        pass

    def stop(figures):
        if figures.step == 5:
            raise Stopped

    whole = make(tmp_path / "whole", method, target_dir, target, cache)
    expected = whole.run(lambda figures: None)
    first = make(tmp_path / "parts", method, target_dir, target, cache)
    with pytest.raises(Stopped):
        first.run(stop)
    first.save()
    second = make(tmp_path / "parts", method, target_dir, target, cache)
    assert second.figures.step == 5
    found = second.run(lambda figures: None)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert second.figures.num_visits == whole.figures.num_visits
    assert second.figures.losses == pytest.approx(whole.figures.losses)


def test_the_state_of_another_run_is_not_taken(tmp_path, target_dir, target, cache):
    make(tmp_path, "medusa", target_dir, target, cache).run(lambda figures: None)
    assert make(tmp_path, "medusa", target_dir, target, cache, key="other").figures.step == 0


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, target_dir, target, cache):
    trainer = make(tmp_path, "medusa", target_dir, target, cache)
    with torch.no_grad():
        trainer.weights["0.0.linear.bias"].fill_(float("nan"))
    with pytest.raises(MachineError, match="not finite"):
        trainer.run(lambda figures: None)
    assert not (tmp_path / "state.safetensors").exists()


def test_an_empty_cache_ends(tmp_path, target_dir, target, cache):
    recipe = recipe_of("medusa", target_dir, target)
    initial = recipe.initial(torch.Generator().manual_seed(0))
    trainer = Trainer(recipe, initial, SETTINGS, cache, 0, tmp_path / "s", "key", torch.float32, CPU)
    trainer.run(lambda figures: None)
    assert trainer.figures.step == 0


def test_the_rate_rises_then_falls_to_its_end():
    settings = TrainSettings(num_steps=100, learning_rate=1.0, warmup=0.1, final_rate=0.05)
    rates = [settings.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0.05 <= rates[-1] < 0.06


def test_figures_are_smoothed_means_by_position():
    figures = Figures()
    figures.add(
        [PositionLoss(torch.tensor(8.0), torch.tensor(1), 4), PositionLoss(torch.tensor(0.0), torch.tensor(0), 0)]
    )
    assert (figures.losses, figures.accuracies) == ([2.0], [0.25])
    figures.add([PositionLoss(torch.tensor(4.0), torch.tensor(4), 4)])
    assert figures.losses[0] == pytest.approx(2.0 - 0.02)
    assert figures.accuracies[0] == pytest.approx(0.25 + 0.02 * 0.75)
    figures.step, figures.seconds = 10, 600.0
    assert figures.text(20) == "step 10 of 20, loss 1.980, accuracy 26 %, 10 min left"
