"""Opening and strict loading: nothing missing, extra, mis-shaped, doubled, cut short or non-finite passes."""

from __future__ import annotations

import json
import struct
from typing import ClassVar

import pytest
import torch
from safetensors.torch import save_file

from tests import tiny
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.errors import CheckpointError


@pytest.fixture
def checkpoint(tmp_path):
    tensors = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.weight": torch.ones(4, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors")
    tiny.write_json(tmp_path / "config.json", {"model_type": "llama"})
    return tmp_path


def refused(call) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        call()
    return caught.value


def shard(folder, index: bool = True) -> None:
    """Two shards, one tensor each."""
    (folder / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    save_file({"a.weight": torch.zeros(2, 3)}, folder / names[0])
    save_file({"b.weight": torch.zeros(4)}, folder / names[1])
    if index:
        weight_map = {"a.weight": names[0], "b.weight": names[1]}
        tiny.write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def test_what_an_open_checkpoint_tells(checkpoint):
    opened = CheckpointDir.open(checkpoint)
    assert opened.config == {"model_type": "llama"}
    assert opened.tensors["a.weight"][:3] == ((2, 3), "float32", "model.safetensors")
    assert opened.tensors["b.weight"].dtype == "bfloat16"
    assert sum(info.num_elements for info in opened.tensors.values()) == 10
    assert torch.equal(opened.read("a.weight"), torch.arange(6.0).reshape(2, 3))
    assert CheckpointDir.open(checkpoint / "model.safetensors").config == {"model_type": "llama"}


@pytest.mark.parametrize("index", [True, False])
def test_shards_with_and_without_an_index(checkpoint, index):
    shard(checkpoint, index)
    assert set(CheckpointDir.open(checkpoint).tensors) == {"a.weight", "b.weight"}


@pytest.mark.parametrize("index", [True, False])
def test_a_missing_shard_is_named(checkpoint, index):
    shard(checkpoint, index)
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    error = refused(lambda: CheckpointDir.open(checkpoint))
    assert error.what == "shards are missing"
    assert error.got == "model-00002-of-00002.safetensors"


def test_an_index_that_disagrees_with_its_files(checkpoint):
    shard(checkpoint)
    save_file({"c.weight": torch.zeros(4)}, checkpoint / "model-00002-of-00002.safetensors")
    error = refused(lambda: CheckpointDir.open(checkpoint))
    assert any("b.weight" in line for line in error.details)
    assert any("c.weight" in line for line in error.details)


def test_an_index_may_not_leave_its_directory(checkpoint):
    shard(checkpoint)
    tiny.write_json(checkpoint / "model.safetensors.index.json", {"weight_map": {"a": "../model.safetensors"}})
    assert "outside" in refused(lambda: CheckpointDir.open(checkpoint)).what


def test_a_tensor_in_two_files(checkpoint):
    save_file({"a.weight": torch.zeros(2, 3)}, checkpoint / "extra.safetensors")
    error = refused(lambda: CheckpointDir.open(checkpoint))
    assert "a.weight" in error.details[0]
    assert "extra.safetensors" in error.details[0]


def test_the_second_copy_that_mistral_ships_is_left_alone(checkpoint):
    save_file({"layers.0.wq": torch.zeros(2)}, checkpoint / "consolidated.safetensors")
    assert set(CheckpointDir.open(checkpoint).tensors) == {"a.weight", "b.weight"}


def test_a_key_that_is_there_twice_in_one_header(tmp_path):
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = f'{{"a":{entry},"a":{entry}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert refused(lambda: CheckpointDir.open(tmp_path)).got == "a"


@pytest.mark.parametrize("length", [0, 4, 20, -3])
def test_a_file_cut_short(checkpoint, length):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert "copy or download it again" in refused(lambda: CheckpointDir.open(checkpoint)).remedy


def test_a_git_lfs_pointer(checkpoint):
    (checkpoint / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n", encoding="utf-8")
    assert "git lfs pull" in refused(lambda: CheckpointDir.open(checkpoint)).remedy


def test_nothing_there(tmp_path):
    assert "fetch" in refused(lambda: CheckpointDir.open(tmp_path / "smollm2-135m")).remedy
    assert "check the path" in refused(lambda: CheckpointDir.open(tmp_path / "other")).remedy
    assert refused(lambda: CheckpointDir.open(tmp_path)).what == "no tensor files here"
    (tmp_path / "model.gguf").touch()
    assert "GGUF" in refused(lambda: CheckpointDir.open(tmp_path)).remedy
    assert "GGUF" in refused(lambda: CheckpointDir.open(tmp_path / "model.gguf")).remedy


def test_a_config_that_is_not_json(checkpoint):
    (checkpoint / "config.json").write_text('{\n"a": }', encoding="utf-8")
    assert refused(lambda: CheckpointDir.open(checkpoint)).where.endswith("config.json:2")


class TestPickles:
    def test_tensors_are_read(self, tmp_path):
        torch.save({"0.0.linear.weight": torch.ones(2)}, tmp_path / "medusa_lm_head.pt")
        for path in (tmp_path, tmp_path / "medusa_lm_head.pt"):
            opened = CheckpointDir.open(path)
            assert opened.tensors["0.0.linear.weight"][:2] == ((2,), "float32")
            assert torch.equal(opened.read("0.0.linear.weight"), torch.ones(2))

    def test_the_old_format_and_a_wrapped_state_dict(self, tmp_path):
        torch.save({"state_dict": {"a": torch.ones(2)}}, tmp_path / "model.bin", _use_new_zipfile_serialization=False)
        assert list(CheckpointDir.open(tmp_path).tensors) == ["a"]

    def test_code_is_never_run(self, tmp_path):
        class Trap:
            def __reduce__(self):
                return (open, (str(tmp_path / "sprung"), "w"))

        torch.save({"a": Trap()}, tmp_path / "model.pt")
        error = refused(lambda: CheckpointDir.open(tmp_path))
        assert "not unpickled" in error.what
        assert not (tmp_path / "sprung").exists()

    def test_more_than_tensors(self, tmp_path):
        torch.save({"a": torch.ones(1), "epoch": 3}, tmp_path / "model.pt")
        assert refused(lambda: CheckpointDir.open(tmp_path)).got == "epoch"


class TestLoadExact:
    EXPECTED: ClassVar = {"a.weight": (2, 3), "b.weight": (4,)}

    def test_everything_there(self, checkpoint):
        loaded = CheckpointDir.open(checkpoint).load_exact(self.EXPECTED)
        assert set(loaded) == set(self.EXPECTED)

    def test_all_findings_in_one_error(self, tmp_path):
        bad = {"a": torch.zeros(3), "b": torch.tensor([1.0, float("nan")]), "c": torch.zeros(1)}
        save_file(bad, tmp_path / "model.safetensors")
        error = refused(lambda: CheckpointDir.open(tmp_path).load_exact({"a": (2,), "b": (2,), "d": (1,)}))
        assert error.details == (
            "missing: d",
            "unexpected: c",
            "wrong shape: a is [3], not [2]",
            "not finite: b",
        )

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
    def test_non_finite_values(self, tmp_path, value, dtype):
        save_file({"a": torch.tensor([0.0, value, 1.0]).to(dtype)}, tmp_path / "model.safetensors")
        opened = CheckpointDir.open(tmp_path)
        assert refused(lambda: opened.load_exact({"a": (3,)})).details == ("not finite: a",)

    def test_optional_and_ignored(self, checkpoint):
        opened = CheckpointDir.open(checkpoint)
        loaded = opened.load_exact({}, optional={"a.weight": (2, 3), "z": (1,)}, ignored=[r"b\..*"])
        assert set(loaded) == {"a.weight"}
        assert "a.weight" in str(refused(lambda: opened.load_exact({}, optional={"a.weight": (9,)}, ignored=["b.*"])))
        assert "b.weight" in str(refused(lambda: opened.load_exact({"a.weight": (2, 3)}, ignored=["b"])))

    @pytest.mark.parametrize(
        ("config", "stored", "expected", "words"),
        [
            ({}, {"model.x": (1,), "model.y": (1,)}, {"x": (1,), "y": (1,)}, "prefix 'model.'"),
            ({}, {"x": (1,), "y": (1,)}, {"model.x": (1,), "model.y": (1,)}, "lack the prefix 'model.'"),
            ({}, {"x": (1,)}, {"x": (1,), "lm_head.weight": (1,)}, "tie_word_embeddings"),
            ({}, {"x.weight": (1,), "x.bias": (1,)}, {"x.weight": (1,)}, "biases"),
            ({}, {"x.qweight": (1,)}, {"x.weight": (1,)}, "quantised"),
            ({"quantization_config": {"bits": 4}}, {"x": (1,)}, {"y": (1,)}, "quantised"),
            ({}, {"x": (1,)}, {"x": (2,)}, "config.json describes another size"),
            ({}, {"x": (1,)}, {"x": (1,), "y": (1,)}, "incomplete"),
        ],
    )
    def test_the_likely_remedy(self, tmp_path, config, stored, expected, words):
        tiny.save_draft(tmp_path, stored, **{"model_type": "llama", **config})
        assert words in refused(lambda: CheckpointDir.open(tmp_path).load_exact(expected)).remedy


def test_renaming_keeps_the_tensors_and_refuses_collisions(checkpoint):
    opened = CheckpointDir.open(checkpoint)
    renamed = opened.renamed({"a.weight": "first"})
    assert set(renamed.tensors) == {"first", "b.weight"}
    assert torch.equal(renamed.read("first"), opened.read("a.weight"))
    error = refused(lambda: opened.renamed({"a.weight": "b.weight"}))
    assert "a.weight" in error.got
    assert "b.weight" in error.got


def test_the_header_of_a_real_file_agrees_with_the_library(tmp_path):
    dtypes = [torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn]
    save_file({str(i): torch.zeros(i, 2).to(dtype) for i, dtype in enumerate(dtypes)}, tmp_path / "m.safetensors")
    opened = CheckpointDir.open(tmp_path)
    for name, info in opened.tensors.items():
        tensor = opened.read(name)
        assert info.shape == tuple(tensor.shape)
        assert info.dtype == str(tensor.dtype).removeprefix("torch.")
    assert json.loads(json.dumps(opened.tensors["0"]))[:4] == [[0, 2], "float64", "m.safetensors", "0"]
