"""One file of tensors: a safetensors header read without torch, or a .pt/.bin opened with weights_only.

Source of the safetensors layout: 8 bytes little-endian header length, a JSON header, then the tensors' bytes.
"""

from __future__ import annotations

import json
import math
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trt_spec.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

INDEX_FILE = "model.safetensors.index.json"  # as Hugging Face loaders look for it
PICKLE_SUFFIXES = (".pt", ".pth", ".bin")
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself

# What torch.load raises for files that are damaged, or hold more than tensors.
_UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_UNREADABLE += (AssertionError, ImportError, MemoryError, pickle.PickleError, struct.error, zipfile.BadZipFile)

# safetensors name -> (torch name, bytes per element)
_DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U64": ("uint64", 8),
    "U32": ("uint32", 4),
    "U16": ("uint16", 2),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
}


class TensorInfo(NamedTuple):
    """What is known of a tensor without reading it."""

    shape: tuple[int, ...]
    dtype: str  # torch's name without the prefix, such as "bfloat16"
    file: str  # name of the file inside the checkpoint directory
    stored_name: str  # its key in that file; differs from the key it is known by after a rename
    place: tuple[int, int] | None = None  # first byte and end in that file; None where only torch finds them

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def list_tensors(path: Path) -> dict[str, TensorInfo]:
    """Name, shape and type of every tensor in a file.

    Raises:
        CheckpointError: No tensor file, unreadable, truncated, a Git LFS pointer, a key that is there twice, or a
            pickle with more than tensors in it.
    """
    if path.suffix == ".safetensors":
        return _read_header(path)
    if path.suffix not in PICKLE_SUFFIXES:
        raise CheckpointError(
            "this is not a file of tensors",
            where=str(path),
            expected="a directory, or a file that ends in .safetensors, " + ", ".join(PICKLE_SUFFIXES),
            remedy="convert the GGUF file to a Hugging Face directory first" if path.suffix == ".gguf" else None,
        )
    return {
        name: TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), path.name, name)
        for name, tensor in load_pickle(path).items()
    }


def stored_dtype(name: str) -> tuple[str, int | None]:
    """The safetensors name of a torch type, and its bytes per element where they are known here."""
    for stored, (torch_name, width) in _DTYPES.items():
        if torch_name == name:
            return stored, width
    return name.upper(), None  # as `list_tensors` gives a type that it does not know


def _read_header(path: Path) -> dict[str, TensorInfo]:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            prefix = stream.read(8)
            _refuse_lfs_pointer(path, prefix)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise _damaged(path, f"{size} bytes, header said to be {length}")
            raw = json.loads(stream.read(length), object_pairs_hook=partial(_no_duplicates, path))
    except OSError as error:
        raise CheckpointError("a tensor file cannot be read", where=str(path), got=error.strerror) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _damaged(path, f"header is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise _damaged(path, "header is not a JSON object")
    raw.pop("__metadata__", None)
    return {name: _tensor_info(path, name, entry, 8 + length, size - 8 - length) for name, entry in raw.items()}


def _tensor_info(path: Path, name: str, entry: Any, data_start: int, num_data_bytes: int) -> TensorInfo:
    try:
        shape = tuple(int(size) for size in entry["shape"])
        start, end = entry["data_offsets"]
        dtype = entry["dtype"]
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, f"the header entry of {name} is malformed") from None
    torch_name, width = _DTYPES.get(dtype, (dtype.lower(), None))
    if not 0 <= start <= end <= num_data_bytes:
        raise _damaged(path, f"{name} ends at byte {end} of {num_data_bytes}: the file was cut short")
    if width is not None and end - start != math.prod(shape) * width:
        raise _damaged(path, f"{name} has {end - start} bytes for shape {list(shape)} of {torch_name}")
    return TensorInfo(shape, torch_name, path.name, name, (data_start + start, data_start + end))


def _no_duplicates(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()):
        raise CheckpointError(
            "a tensor is there twice", where=str(path), got=", ".join(twice), remedy="export the file again"
        )
    return dict(pairs)


def _refuse_lfs_pointer(path: Path, prefix: bytes) -> None:
    if prefix.startswith(b"version "):
        remedy = "run `git lfs pull` in that repository"
        raise CheckpointError("this is a Git LFS pointer, not the tensors", where=str(path), remedy=remedy)


def _damaged(path: Path, got: str) -> CheckpointError:
    return CheckpointError(
        "this is not a whole safetensors file", where=str(path), got=got, remedy="copy or download it again"
    )


def load_pickle(path: Path) -> dict[str, Tensor]:
    """Tensors of a .pt or .bin file, memory-mapped where the format allows; never runs code from it.

    A state dict one level down, under "state_dict" or "model", is unwrapped.

    Raises:
        CheckpointError: Not such a file, or one that holds more than tensors.
    """
    import torch

    with path.open("rb") as stream:
        _refuse_lfs_pointer(path, stream.read(8))
    load: Callable[..., Any] = partial(torch.load, path, map_location="cpu", weights_only=True)
    try:
        try:
            loaded = load(mmap=True)
        except _UNREADABLE:  # files from before torch 1.6 are no zip archives and cannot be mapped
            loaded = load()
    except _UNREADABLE as error:
        raise CheckpointError(
            "this file does not hold tensors alone, or is damaged; it was not unpickled",
            where=str(path),
            got=type(error).__name__,
            remedy="convert it to safetensors where you trust its origin",
        ) from None
    if isinstance(loaded, Mapping) and len(loaded) == 1 and (key := next(iter(loaded))) in ("state_dict", "model"):
        loaded = loaded[key]
    strangers = (
        [str(name) for name, value in loaded.items() if not isinstance(name, str) or not torch.is_tensor(value)]
        if isinstance(loaded, Mapping)
        else [type(loaded).__name__]
    )
    if strangers:
        raise CheckpointError(
            "this is not a flat mapping of names to tensors",
            where=str(path),
            got=", ".join(strangers[:10]),
            remedy="save model.state_dict() alone",
        )
    return dict(loaded)
