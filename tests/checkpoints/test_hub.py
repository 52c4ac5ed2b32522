"""Hub ids become directories under checkpoints/, whole or not at all. The hub itself is not asked."""

from __future__ import annotations

import sys
import types

import pytest
from huggingface_hub import errors

from trt_spec.checkpoints import hub
from trt_spec.errors import MachineError


@pytest.fixture
def downloads(monkeypatch):
    """A hub client that writes what it was asked for; returns the calls."""
    calls = []
    of_the_library = next(base for base in errors.HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
    raised = {
        "nobody/nothing": OSError("no such repository\nwith details"),
        "nobody/answers": of_the_library("no such repository"),
    }

    def snapshot_download(hub_id, *, local_dir, allow_patterns, ignore_patterns):
        calls.append(hub_id)
        (local_dir / "config.json").write_text("{}")
        (local_dir / ".cache").mkdir()
        if hub_id in raised:
            raise raised[hub_id]

    module = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return calls


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        ("owner/model-1.5B", True),
        ("model", False),
        ("./owner/model", False),
        ("/owner/model", False),
        ("a/b/c", False),
        ("owner/", False),
    ],
)
def test_what_reads_as_a_hub_id(name, is_id):
    assert hub.is_hub_id(name) == is_id


def test_a_directory_that_is_there_is_no_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "model").mkdir(parents=True)
    assert not hub.is_hub_id("owner/model")


def test_a_path_whose_last_part_is_missing_is_no_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    assert not hub.is_hub_id("checkpoints/mistyped")


def test_what_goes_to_checkpoints_is_no_hub_id_before_that_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not hub.is_hub_id("checkpoints/my-eagle3")


def test_two_owners_models_stay_apart(tmp_path):
    assert hub.local_dir("a/m", tmp_path) != hub.local_dir("b/m", tmp_path)


def test_it_is_downloaded_once(tmp_path, downloads):
    directory = hub.download("owner/model", tmp_path)
    assert [path.name for path in directory.iterdir()] == ["config.json"]
    assert hub.download("owner/model", tmp_path) == directory
    assert downloads == ["owner/model"]


@pytest.mark.parametrize("hub_id", ["nobody/nothing", "nobody/answers"])
def test_a_failed_download_says_so_and_leaves_nothing(tmp_path, downloads, hub_id):
    with pytest.raises(MachineError) as caught:
        hub.download(hub_id, tmp_path)
    assert hub_id in str(caught.value)
    assert "no such repository" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
