"""`trt-spec train` from outside: what it needs to be told, what it prints, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import tiny
from trt_spec.cli.app import cli
from trt_spec.cli.train import train

LITTLE = ("--tokens", "300", "--reply-tokens", "10", "--steps", "4", "--batch-tokens", "512", "--held-out-tokens", "4")
LITTLE = (*LITTLE, "--set", "target.dtype=float32", "--set", "build.device=cpu")
SMALL = (*LITTLE, "--set", "build.max_seq_len=200")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.llama_checkpoint(Path("checkpoints/small"))
    return tmp_path


def call(*arguments: str):
    return CliRunner().invoke(cli, ["train", *arguments], standalone_mode=False)


def test_one_command_makes_heads_that_inspect_accepts(project):
    words = ("--model", "small", "--method", "medusa", "--draft", "small-medusa")
    done = call(*words, *SMALL, "--json")
    assert done.return_value == 0, done.output
    card = json.loads(done.stdout)
    assert card["output"] == "checkpoints/small-medusa"
    assert card["training"]["num_steps"] == 4
    assert len(card["acceptance"]["by_temperature"]) == 3
    runner = CliRunner()
    found = runner.invoke(
        cli, ["inspect", "checkpoints/small-medusa", "--target", "checkpoints/small"], standalone_mode=False
    )
    assert found.return_value == 0, found.output


def test_the_table_shows_loss_accuracy_and_acceptance(project):
    done = call("--model", "small", "--method", "medusa", "--draft", "heads", *SMALL)
    assert done.return_value == 0, done.output
    for word in ("loss", "accuracy", "tokens per step", "0.7"):
        assert word in done.stdout


def test_the_readme_command_fits_a_target_with_few_positions_and_a_folder_that_is_not_there(project):
    (project / "checkpoints" / "small").rename(project / "small")  # 256 positions; a run has 2048 unless told
    (project / "checkpoints").rmdir()
    done = call("--model", "./small", "--method", "eagle3", "--draft", "checkpoints/my-eagle3", *LITTLE, "--json")
    assert done.return_value == 0, done.output
    assert json.loads(done.stdout)["output"] == "checkpoints/my-eagle3"
    assert len(json.loads(done.stdout)["acceptance"]["by_temperature"]) == 3


def test_mtp_has_to_be_told_where(project):
    done = call("--model", "small", "--method", "mtp", *SMALL)
    assert done.return_value == 2
    assert "--output" in done.stderr


def test_a_missing_target_is_said(project):
    done = call("--model", "nowhere", "--method", "medusa", "--draft", "heads", *SMALL)
    assert done.return_value == 2
    assert "nowhere" in done.stderr


def test_the_page_names_options_and_methods_that_exist():
    from trt_spec.training.options import TRAINABLE

    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    options = {option for parameter in train.params for option in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)", page)) <= options
    assert tuple(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == TRAINABLE
    links = re.findall(r"\]\(([^)#:]+)\)", page)
    assert [link for link in links if not (Path(__file__).parents[2] / "docs" / link).exists()] == []
