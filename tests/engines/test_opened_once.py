"""One open, one parse of each header and one tokenizer load for each checkpoint of a command; one look at the table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import tiny
from tests.engines.runs import tiny_run
from tests.engines.test_llmapi import eagle3_config
from tests.engines.test_methods import eagle, eagle3, medusa, mtp_mimo
from tests.engines.trtllm_runs import trtllm_run
from tests.engines.trtllm_stand_ins import StandIns
from tests.triton.llm_cases import llmapi_config
from trt_spec.checkpoints import checkpoint_dir, tensor_files
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.detect import inspect
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.config import capabilities
from trt_spec.engines.builder import build


@pytest.fixture
def counted(monkeypatch) -> Counter:
    """(what, path) -> how often, of paths as they were given; capabilities have none."""
    counts: Counter = Counter()

    def count(owner, name, what):
        real = getattr(owner, name)
        inner = real.__func__ if isinstance(real, type(Tokenizer.load)) else real

        def counting(*arguments, **options):
            path = arguments[-1] if isinstance(arguments[-1], str | Path) else ""
            counts[what, str(path)] += 1
            return inner(*arguments, **options)

        monkeypatch.setattr(owner, name, classmethod(counting) if inner is not real else counting)

    count(CheckpointDir, "open", "open")
    count(Tokenizer, "load", "tokenizer")
    count(tensor_files, "_read_header", "header")
    count(checkpoint_dir, "load_pickle", "map")
    count(capabilities, "check", "capabilities")
    return counts


def draft_model(root: Path):
    return tiny_run(root, "draft_model")


@pytest.mark.parametrize(
    "make", [tiny_run, draft_model, medusa, eagle, eagle3, mtp_mimo], ids=lambda make: make.__name__
)
def test_torch(tmp_path, counted, make):
    config = make(tmp_path)
    build(config, engines_dir=tmp_path / "engines")  # and loads it where it lies, which is another directory
    assert set(counted.values()) == {1}, counted
    assert ("header", str(tmp_path / "target" / "model.safetensors")) in counted
    loads = [path for what, path in counted if what == "tokenizer"]
    assert len(loads) == (3 if config.speculation.method == "draft_model" else 2)


@pytest.mark.parametrize("make", [llmapi_config, eagle3_config], ids=lambda make: make.__name__)
def test_llmapi(tmp_path, counted, make):
    build(make(tmp_path), engines_dir=tmp_path / "engines")
    assert set(counted.values()) == {1}, counted


@pytest.mark.parametrize("method", ["none", "draft_model", "medusa", "eagle", "lookahead", "redrafter"])
def test_tensorrt(tmp_path, counted, monkeypatch, method):
    stand_ins = StandIns(tmp_path / "tools")
    monkeypatch.setenv("PATH", str(stand_ins.bin), prepend=":")
    build(trtllm_run(tmp_path, method, stand_ins), engines_dir=tmp_path / "engines")
    assert set(counted.values()) == {1}, counted


def test_inspect_of_a_pair(tmp_path, counted):
    target = tiny.llama_checkpoint(tmp_path / "target")
    draft = tiny.llama_checkpoint(tmp_path / "draft", num_hidden_layers=1)
    assert inspect(draft, target).fits_target
    names = {"header": "/model.safetensors"}
    expected = {
        (what, f"{path}{names.get(what, '')}") for what in ("open", "header", "tokenizer") for path in (target, draft)
    }
    assert counted == dict.fromkeys(expected, 1)


def test_inspect_of_shards_with_an_index(tmp_path, counted):
    from safetensors.torch import load_file, save_file

    target = tiny.llama_checkpoint(tmp_path / "target")
    tensors = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensor for name, tensor in tensors.items() if files[name] == file}, target / file)
    tiny.write_json(target / "model.safetensors.index.json", {"weight_map": files})
    assert inspect(target).problems == ()
    assert [number for (what, _), number in counted.items() if what == "header"] == [1, 1]
