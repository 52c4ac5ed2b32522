"""The places of tensors in torch's files, against torch; and nothing of a file is run."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict

import pytest
import torch

from tests import tiny
from trt_spec.checkpoints.tensor_files import list_tensors, load_pickle
from trt_spec.checkpoints.torch_zip import locate

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
DTYPES += [torch.int8, torch.uint8, torch.bool]


def assert_as_torch(path) -> None:
    loaded, located, data = load_pickle(path), locate(path), path.read_bytes()
    assert list(located) == list(loaded)
    for name, tensor in loaded.items():
        found = located[name]
        assert (found.dtype, found.shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert data[found.start : found.end] == raw


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_found_where_torch_finds_it(tmp_path, dtype):
    values = torch.arange(24).reshape(2, 3, 4)
    tensors = {"a": values.to(dtype), "b": torch.ones((), dtype=dtype), "c": torch.zeros(0, 7, dtype=dtype)}
    torch.save(tensors, tmp_path / "model.bin")
    assert_as_torch(tmp_path / "model.bin")


def test_views_of_one_storage_parameters_and_wrappers(tmp_path):
    storage = torch.arange(100.0)
    parts = OrderedDict(first=storage[:10], middle=storage[10:40].reshape(5, 6), all=storage, row=storage[None, 50:51])
    for index, saved in enumerate((parts, {"state_dict": parts}, {"model": dict(parts)})):
        torch.save(saved, tmp_path / f"{index}.pt")
        assert_as_torch(tmp_path / f"{index}.pt")
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    torch.save(module.state_dict(), tmp_path / "module.pt")
    assert_as_torch(tmp_path / "module.pt")
    torch.save({"p": torch.nn.Parameter(torch.ones(3))}, tmp_path / "parameter.pt")
    assert_as_torch(tmp_path / "parameter.pt")


@pytest.mark.parametrize(
    "saved",
    [
        {"t": torch.arange(12.0).reshape(3, 4).T},
        {"t": torch.arange(12.0)[::2]},
        {"t": torch.ones(3).expand(4, 3)},
        {"t": torch.zeros(4).to(torch.float8_e4m3fn)},
        {"t": torch._neg_view(torch.ones(3))},
        {"t": torch.ones(3), "step": 7},
        {"t": torch.ones(3), "nested": {"u": torch.ones(2)}},
        {},
        torch.ones(3),
        [torch.ones(3)],
    ],
)
def test_what_is_left_to_torch(tmp_path, saved):
    torch.save(saved, tmp_path / "model.pt")
    assert locate(tmp_path / "model.pt") is None


def test_old_and_damaged_files_are_left_to_torch(tmp_path):
    path = tmp_path / "old.pt"
    torch.save({"t": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    assert locate(path) is None
    assert list_tensors(path)["t"].shape == (3,)
    torch.save({"t": torch.ones(3000)}, tmp_path / "new.pt")
    whole = (tmp_path / "new.pt").read_bytes()
    for length in (0, 10, 1000, len(whole) - 30):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        assert locate(tmp_path / "cut.pt") is None


def archive(path, description: bytes, **storages: bytes) -> None:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("archive/data.pkl", description)
        for key, data in storages.items():
            made.writestr(f"archive/data/{key[1:]}", data)


def test_nothing_of_a_file_is_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

    for saved in ({"t": Evil()}, Evil(), {"t": torch.ones(2), "u": [Evil()]}):
        archive(tmp_path / "evil.pt", pickle.dumps(saved))
        assert locate(tmp_path / "evil.pt") is None
        assert not (tmp_path / "ran").exists()


def test_places_outside_a_storage_are_refused(tmp_path):
    """torch's own description with its numbers changed: a longer shape, another offset, a storage that is shorter."""
    torch.save({"t": torch.arange(4.0)}, tmp_path / "good.pt")
    with zipfile.ZipFile(tmp_path / "good.pt") as made:
        [name] = [name for name in made.namelist() if name.endswith("data.pkl")]
        description, data = made.read(name), made.read(name.replace("data.pkl", "data/0"))
    archive(tmp_path / "same.pt", description, _0=data)
    assert locate(tmp_path / "same.pt")["t"].shape == (4,)
    archive(tmp_path / "short.pt", description, _0=data[:-4])
    assert locate(tmp_path / "short.pt") is None
    place = description.index(b"K\x00K\x04\x85")  # offset 0, shape (4,)
    for changed in (b"K\x01K\x04\x85", b"K\x00K\x05\x85"):
        archive(tmp_path / "long.pt", description[:place] + changed + description[place + 5 :], _0=data)
        assert locate(tmp_path / "long.pt") is None


def test_listing_needs_no_torch(tmp_path):
    shapes = tiny.medusa_shapes()
    torch.save(tiny.random_tensors(shapes, 0, torch.bfloat16), tmp_path / "medusa_lm_head.pt")
    code = (
        "import sys; from trt_spec.checkpoints.detect import inspect; "
        f"assert inspect({str(tmp_path)!r}).details['num_heads'] == 3; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
