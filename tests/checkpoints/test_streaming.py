"""Tensors go from file to file byte for byte, with a block of memory and one open file, whatever the sizes."""

from __future__ import annotations

import os
import tracemalloc
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from trt_spec.checkpoints import streaming
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.streaming import Piece, piece, write_safetensors
from trt_spec.checkpoints.tensor_files import list_tensors
from trt_spec.errors import CheckpointError

TENSORS = {
    "odd": torch.arange(7, dtype=torch.uint8),
    "flag": torch.tensor([True, False, True]),
    "half": torch.arange(6.0).reshape(2, 3).to(torch.bfloat16),
    "wide": torch.arange(5, dtype=torch.int64),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
    "small": torch.arange(8.0).to(torch.float8_e4m3fn),
}


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        left.shape == right.shape
        and left.dtype == right.dtype
        and torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
    )


@pytest.fixture(params=["safetensors", "bin"])
def source(request, tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    if request.param == "safetensors":
        save_file(TENSORS, folder / "model.safetensors")
    else:
        torch.save(TENSORS, folder / "pytorch_model.bin")
    return CheckpointDir.open(folder)


def test_every_type_arrives_byte_for_byte(source, tmp_path):
    counts = []
    total = write_safetensors(tmp_path / "out.safetensors", [piece(source, name) for name in TENSORS], counts.append)
    written = load_file(tmp_path / "out.safetensors")
    assert written.keys() == TENSORS.keys()
    assert all(same(written[name], TENSORS[name]) for name in TENSORS)
    assert sum(counts) == total == sum(tensor.nbytes for tensor in TENSORS.values())


def test_tensors_are_aligned_to_their_types(source, tmp_path):
    """Readers map the file and look at the bytes where they are."""
    write_safetensors(tmp_path / "out.safetensors", [piece(source, name) for name in TENSORS])
    for name, info in list_tensors(tmp_path / "out.safetensors").items():
        assert info.place[0] % TENSORS[name].element_size() == 0, name


def test_new_names_doubles_and_zeros(source, tmp_path):
    pieces = [piece(source, "half", "a"), piece(source, "half", "b"), Piece("zeros", "float16", (3, 5))]
    write_safetensors(tmp_path / "out.safetensors", pieces)
    written = load_file(tmp_path / "out.safetensors")
    assert same(written["a"], TENSORS["half"])
    assert same(written["b"], TENSORS["half"])
    assert same(written["zeros"], torch.zeros(3, 5, dtype=torch.float16))


def test_a_tensor_that_is_not_contiguous(tmp_path):
    transposed = torch.arange(12.0).reshape(3, 4).T
    torch.save({"t": transposed}, tmp_path / "heads.pt")
    write_safetensors(tmp_path / "out.safetensors", [piece(CheckpointDir.open(tmp_path / "heads.pt"), "t")])
    assert torch.equal(load_file(tmp_path / "out.safetensors")["t"], transposed)


def test_a_file_that_shrinks_is_an_error(tmp_path):
    save_file({"t": torch.zeros(1000)}, tmp_path / "model.safetensors")
    pieces = [piece(CheckpointDir.open(tmp_path), "t")]
    os.truncate(tmp_path / "model.safetensors", 1000)
    with pytest.raises(CheckpointError, match="shorter"):
        write_safetensors(tmp_path / "out", pieces)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_memory_does_not_grow_with_the_checkpoint(tmp_path, monkeypatch, suffix):
    """96 MiB go through; Python holds a few blocks at most. Of safetensors no tensor is made; pickles are mapped."""
    save = save_file if suffix == "safetensors" else torch.save
    save({f"t{i}": torch.zeros(8 << 20, dtype=torch.bfloat16) for i in range(6)}, tmp_path / f"model.{suffix}")
    opened = CheckpointDir.open(tmp_path)
    pieces = [piece(opened, f"t{i}", f"n{i}") for i in range(6)] + [Piece("zeros", "bfloat16", (8 << 20,))]
    monkeypatch.setattr(CheckpointDir, "read", lambda *_: pytest.fail("a tensor was made"))
    if suffix == "safetensors":
        monkeypatch.setattr(streaming, "load_pickle", lambda *_: pytest.fail("a file was mapped"))
    tracemalloc.start()
    try:
        write_safetensors(tmp_path / "out.safetensors", pieces)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * streaming.BLOCK_BYTES


def test_one_pickled_shard_is_open_at_a_time(tmp_path, monkeypatch):
    for shard in range(4):  # transposed, so that only torch can make them
        tensors = {f"t{shard}.{i}": torch.zeros(4, 5).T for i in range(3)}
        torch.save(tensors, tmp_path / f"pytorch_model-{shard}.bin")
    opened = CheckpointDir.open(tmp_path)
    live, most, loaded = weakref.WeakSet(), [], streaming.load_pickle

    def load(path):
        tensors = loaded(path)
        live.update(tensors.values())
        most.append(len(live))
        return tensors

    monkeypatch.setattr(streaming, "load_pickle", load)
    write_safetensors(tmp_path / "out.safetensors", [piece(opened, name) for name in sorted(opened.tensors)])
    assert most == [3, 3, 3, 3]  # the three of this shard, and none of another
    assert len(live) == 0
