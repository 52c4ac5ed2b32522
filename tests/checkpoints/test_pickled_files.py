"""Files that torch saved: listed as torch loads them, nothing of them is run, and damage is an error of ours."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import zipfile
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file

from tests import tiny
from trt_spec.checkpoints.tensor_files import list_tensors, load_pickle
from trt_spec.errors import CheckpointError

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
DTYPES += [torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_listed_as_torch_loads_it(tmp_path, dtype, zipped):
    values = torch.arange(24).reshape(2, 3, 4)
    tensors = {"a": values.to(dtype), "b": torch.ones((), dtype=dtype), "c": torch.zeros(0, 7, dtype=dtype)}
    torch.save(tensors, tmp_path / "model.bin", _use_new_zipfile_serialization=zipped)
    listed = list_tensors(tmp_path / "model.bin")
    assert list(listed) == ["a", "b", "c"]
    for name, tensor in torch.load(tmp_path / "model.bin", weights_only=True).items():
        assert (listed[name].dtype, listed[name].shape) == (str(tensor.dtype)[6:], tuple(tensor.shape))
        assert listed[name].place is None


def test_views_parameters_and_wrappers(tmp_path):
    storage = torch.arange(100.0)
    parts = OrderedDict(
        first=storage[:10], middle=storage[10:40].reshape(5, 6), step=storage[::2], turned=storage[None].T
    )
    parts["learnt"] = torch.nn.Parameter(torch.ones(3))
    for index, saved in enumerate((parts, {"state_dict": parts}, {"model": dict(parts)})):
        torch.save(saved, tmp_path / f"{index}.pt")
        loaded = load_pickle(tmp_path / f"{index}.pt")
        assert all(torch.equal(loaded[name], parts[name]) for name in parts)
        shapes = {name: info.shape for name, info in list_tensors(tmp_path / f"{index}.pt").items()}
        assert shapes == {name: tuple(tensor.shape) for name, tensor in parts.items()}


@pytest.mark.parametrize(
    "saved",
    [
        {"t": torch.ones(3), "step": 7},
        {"t": torch.ones(3), "nested": {"u": torch.ones(2)}},
        torch.ones(3),
        [torch.ones(3)],
    ],
)
def test_what_is_no_flat_mapping_is_refused(tmp_path, saved):
    torch.save(saved, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="flat mapping"):
        list_tensors(tmp_path / "model.pt")


def test_nothing_of_a_file_is_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

    for saved in ({"t": Evil()}, Evil(), {"t": torch.ones(2), "u": [Evil()]}):
        with zipfile.ZipFile(tmp_path / "evil.pt", "w") as made:
            made.writestr("archive/data.pkl", pickle.dumps(saved))
        (tmp_path / "plain.pt").write_bytes(pickle.dumps(saved))
        for name in ("evil.pt", "plain.pt"):
            with pytest.raises(CheckpointError):
                list_tensors(tmp_path / name)
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_damage_is_a_checkpoint_error_whatever_torch_raises(tmp_path, zipped):
    """Cut short at 20 places, and 200 times one byte changed; a change that torch does not mind is none."""
    torch.save(
        {f"t{i}": torch.arange(4.0) for i in range(3)}, tmp_path / "good.pt", _use_new_zipfile_serialization=zipped
    )
    whole, draw, refused = (tmp_path / "good.pt").read_bytes(), random.Random(0), 0
    damaged = [whole[: len(whole) * part // 20] for part in range(20)]
    for _ in range(200):
        place = draw.randrange(len(whole))
        damaged.append(whole[:place] + bytes([draw.randrange(256)]) + whole[place + 1 :])
    for content in damaged:
        (tmp_path / "bad.pt").write_bytes(content)
        try:
            list_tensors(tmp_path / "bad.pt")
        except CheckpointError:
            refused += 1
    assert refused >= 20


def test_listing_safetensors_needs_no_torch(tmp_path):
    save_file(tiny.random_tensors(tiny.medusa_shapes(), 0, torch.bfloat16), tmp_path / "medusa_lm_head.safetensors")
    code = (
        "import sys; from trt_spec.checkpoints.detect import inspect; "
        f"assert inspect({str(tmp_path)!r}).details.num_heads == 3; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
