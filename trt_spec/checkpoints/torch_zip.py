"""Where the tensors of a .pt or .bin file lie, found without torch and without running anything from the file.

Since version 1.6 torch saves a zip archive: `*/data.pkl` describes the tensors, `*/data/<key>` holds each storage as
it is. The description is read by an unpickler that knows the few names a state dict is made of; whatever else is in it
is left to torch (`tensor_files.load_pickle`). Source of the format: torch/serialization.py and torch/_utils.py.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

_LOCAL_HEADER_BYTES = 30  # of the zip format; name and extra field follow, their lengths are its last two numbers
_MOST_PICKLE_BYTES = 64 << 20  # a state dict's description is a few hundred bytes per tensor
# Storage class -> (torch's name of the type, bytes per element). Newer types are saved by another route.
_STORAGES = {
    "DoubleStorage": ("float64", 8),
    "FloatStorage": ("float32", 4),
    "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2),
    "LongStorage": ("int64", 8),
    "IntStorage": ("int32", 4),
    "ShortStorage": ("int16", 2),
    "CharStorage": ("int8", 1),
    "ByteStorage": ("uint8", 1),
    "BoolStorage": ("bool", 1),
}


class Located(NamedTuple):
    """A contiguous tensor in a file: its bytes are those from `start` to `end`."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class _Storage(NamedTuple):
    dtype: str
    width: int
    key: str
    num_elements: int


class _View(NamedTuple):
    storage: _Storage
    offset: int  # in elements, like the strides
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Unknown(Exception):
    """Something that this reader does not know; torch may."""


def locate(path: Path) -> dict[str, Located] | None:
    """Name to place of every tensor of a state dict; None for a file that only torch can read.

    A state dict one level down, under "state_dict" or "model", is unwrapped, as `load_pickle` does it.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
            entries = {entry.filename: entry for entry in archive.infolist()}
            [description] = [name for name in entries if name.rpartition("/")[2] == "data.pkl"]
            prefix = description.removesuffix("data.pkl")
            if len(entries) < len(archive.infolist()) or _read(archive, f"{prefix}byteorder", b"little") != b"little":
                return None
            views = _views(_Unpickler(io.BytesIO(_read(archive, description))).load())
            return {name: _place(view, entries, prefix, stream) for name, view in views.items()}
    except OSError:
        raise
    except Exception:  # a damaged or foreign file fails in many ways; torch says what is wrong with it
        return None


def _read(archive: zipfile.ZipFile, name: str, default: bytes | None = None) -> bytes:
    if default is not None and name not in archive.namelist():
        return default
    if archive.getinfo(name).file_size > _MOST_PICKLE_BYTES:
        raise _Unknown
    return archive.read(name)


def _views(loaded: Any) -> Mapping[str, _View]:
    if isinstance(loaded, Mapping) and len(loaded) == 1 and (key := next(iter(loaded))) in ("state_dict", "model"):
        loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not loaded:
        raise _Unknown
    if any(not isinstance(name, str) or not isinstance(view, _View) for name, view in loaded.items()):
        raise _Unknown
    return loaded


def _place(view: _View, entries: Mapping[str, zipfile.ZipInfo], prefix: str, stream: Any) -> Located:
    entry = entries[f"{prefix}data/{view.storage.key}"]
    storage, length = view.storage, math.prod(view.shape)
    expected = 1
    for size, stride in zip(reversed(view.shape), reversed(view.stride), strict=True):
        if size != 1 and stride != expected:
            raise _Unknown  # not contiguous
        expected *= size
    is_inside = view.offset >= 0 and length >= 0 and view.offset + length <= storage.num_elements
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or not is_inside:
        raise _Unknown
    if entry.file_size != storage.num_elements * storage.width:
        raise _Unknown
    stream.seek(entry.header_offset)
    header = stream.read(_LOCAL_HEADER_BYTES)
    if header[:4] != b"PK\x03\x04":
        raise _Unknown
    name_bytes, extra_bytes = struct.unpack("<HH", header[-4:])
    start = entry.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes + view.offset * storage.width
    return Located(storage.dtype, view.shape, start, start + length * storage.width)


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any = None, _hooks: Any = None, metadata: Any = None
) -> _View:
    """As torch's, but for `metadata`: bits that say how the numbers are to be read, such as negated."""
    if metadata or not isinstance(storage, _Storage):
        raise _Unknown
    if not all(isinstance(size, int) and size >= 0 for size in (offset, *shape, *stride)):
        raise _Unknown
    return _View(storage, offset, tuple(shape), tuple(stride))


def _rebuild_parameter(data: Any, *_rest: Any) -> Any:
    return data


class _Unpickler(pickle.Unpickler):
    """Makes `_View`s of tensors. Names that it does not know are refused, so nothing of the file is ever called."""

    _KNOWN: ClassVar = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
        ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
        **{("torch", name): facts for name, facts in _STORAGES.items()},
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KNOWN:
            raise _Unknown(f"{module}.{name}")
        return self._KNOWN[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, facts, key, _, num_elements = pid
        if kind != "storage" or facts not in _STORAGES.values() or not isinstance(num_elements, int):
            raise _Unknown
        return _Storage(*facts, str(key), num_elements)
