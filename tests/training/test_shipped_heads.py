"""The heads in checkpoints/: sound, small, as their configs want them, with cards that say one thing twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trt_spec.checkpoints.detect import inspect
from trt_spec.checkpoints.method import max_draft_levels
from trt_spec.config import loader
from trt_spec.training import card

ROOT = Path(__file__).parents[2]
RUNS = {"smollm2-135m-eagle3": "eagle3", "smollm2-135m-medusa": "medusa"}
MAX_BYTES = 25_000_000


@pytest.mark.parametrize("name", RUNS)
def test_a_shipped_head_is_sound_and_small(name):
    directory = ROOT / "checkpoints" / name
    target = ROOT / "checkpoints" / "smollm2-135m"
    found = inspect(directory, target if target.is_dir() else None)
    assert (found.method, found.problems) == (RUNS[name], ())
    assert sum(path.stat().st_size for path in directory.iterdir()) <= MAX_BYTES


@pytest.mark.parametrize("name", RUNS)
def test_its_config_asks_for_no_more_than_it_drafts(name):
    config = loader.load(ROOT / "configs" / f"{name}.yaml")
    assert (config.speculation.method, config.speculation.checkpoint) == (RUNS[name], f"checkpoints/{name}")
    found = inspect(ROOT / config.speculation.checkpoint)
    levels = max_draft_levels(RUNS[name], found, found)
    assert levels is None or config.speculation.max_draft_len <= levels


@pytest.mark.parametrize("name", RUNS)
def test_both_forms_of_the_card_agree_and_tell_what_was_measured(name):
    directory = ROOT / "checkpoints" / name
    written = json.loads((directory / "card.json").read_text(encoding="utf-8"))
    assert (directory / "README.md").read_text(encoding="utf-8") == card.text(written)
    assert [row["temperature"] for row in written["acceptance"]["by_temperature"]] == [0.0, 0.7, 1.0]
