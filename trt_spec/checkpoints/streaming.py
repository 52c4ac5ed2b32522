"""Writes a safetensors file from pieces of other files: bytes go from file to file, and no tensor is ever in memory.

Out of .pt and .bin files, whose bytes only torch finds, tensors come one at a time out of one mapped file at a time.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trt_spec.checkpoints.safetensors_dir import CheckpointDir
from trt_spec.checkpoints.tensor_files import TensorInfo, load_pickle, stored_dtype
from trt_spec.errors import CheckpointError

BLOCK_BYTES = 1 << 20  # most bytes that one step copies, and all the memory that copying takes

OnBytes = Callable[[int], None]


class Piece(NamedTuple):
    """One tensor to be written: where its bytes come from, or zeros."""

    name: str
    dtype: str  # torch's name without the prefix
    shape: tuple[int, ...]
    file: Path | None = None  # None: zeros
    stored_name: str = ""
    place: tuple[int, int] | None = None  # first byte and end in the file; None where only torch finds them

    @property
    def num_bytes(self) -> int:
        """What its file says, else elements times their width; for a type of unknown width its elements."""
        if self.place is not None:
            return self.place[1] - self.place[0]
        return math.prod(self.shape) * (stored_dtype(self.dtype)[1] or 1)


def piece(checkpoint: CheckpointDir, name: str, new_name: str | None = None) -> Piece:
    """A tensor of an opened checkpoint, under another name where one is given."""
    info: TensorInfo = checkpoint.tensors[name]
    file = checkpoint.folder / info.file
    return Piece(new_name or name, info.dtype, info.shape, file, info.stored_name, info.place)


def write_safetensors(path: Path, pieces: Sequence[Piece], on_bytes: OnBytes = lambda count: None) -> int:
    """Writes one safetensors file, widest types first so that every tensor is aligned.

    Memory: one block. Where only torch can find a piece: one mapped file, and a copy of one tensor.

    Args:
        path: created, or written over.
        pieces: with names that differ.
        on_bytes: called with the number of bytes written, after each block.

    Returns:
        Bytes of all tensors together.

    Raises:
        CheckpointError: a source file ends before its tensor does.
        OSError: the disk is full, a file cannot be read.
    """
    ordered = sorted(pieces, key=_disk_order)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for item in ordered:
        start, end = end, end + item.num_bytes
        header[item.name] = {
            "dtype": stored_dtype(item.dtype)[0],
            "shape": list(item.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with _Source() as source, path.open("wb", buffering=0) as out:
        _write_all(out.fileno(), len(text).to_bytes(8, "little") + text)
        for item in ordered:
            source.copy(item, out.fileno(), on_bytes)
    return end


def _disk_order(item: Piece) -> tuple[int, bool, str, int, str]:
    """Sort key: widest type first, then as the tensors lie on the disk, so that reading is sequential; zeros last."""
    width = stored_dtype(item.dtype)[1] or 1
    return -width, item.file is None, str(item.file), item.place[0] if item.place else 0, item.name


class _Source:
    """The one file that is open: read by bytes, or mapped by torch."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._descriptor: int | None = None
        self._tensors: dict | None = None

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def copy(self, item: Piece, out: int, on_bytes: OnBytes) -> None:
        """Appends a tensor's bytes to the open file `out`."""
        if item.file is None:
            _write_zeros(out, item.num_bytes, on_bytes)
            return
        if item.file != self._path:
            self._close()
            self._path = item.file
            if item.place is None:
                self._tensors = load_pickle(item.file)
            else:
                self._descriptor = os.open(item.file, os.O_RDONLY)
        if item.place is None:
            _write_tensor(self._tensors[item.stored_name], out, on_bytes)
        else:
            _copy_range(item.file, self._descriptor, item.place[0], item.num_bytes, out, on_bytes)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._path = self._descriptor = self._tensors = None  # dropping the tensors unmaps their file


def _copy_range(file: Path, source: int, start: int, length: int, out: int, on_bytes: OnBytes) -> None:
    """Copies bytes from file to file through one block, which stays in the processor's cache.

    The kernel's own copy_file_range takes half as long again here: it works page by page, and tensors start anywhere.
    """
    block = memoryview(bytearray(min(length, BLOCK_BYTES)))
    while length:
        count = os.preadv(source, [block[: min(length, BLOCK_BYTES)]], start)
        if not count:
            raise CheckpointError(
                "a tensor file became shorter while it was read", where=str(file), remedy="copy it again"
            )
        _write_all(out, block[:count])
        start, length = start + count, length - count
        on_bytes(count)


def _write_tensor(tensor, out: int, on_bytes: OnBytes) -> None:
    import torch

    data = memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    for block in _blocks(len(data)):
        _write_all(out, data[block])
        on_bytes(block.stop - block.start)


def _write_zeros(out: int, length: int, on_bytes: OnBytes) -> None:
    zeros = bytes(min(length, BLOCK_BYTES))
    for block in _blocks(length):
        _write_all(out, memoryview(zeros)[: block.stop - block.start])
        on_bytes(block.stop - block.start)


def _blocks(length: int) -> Iterator[slice]:
    for start in range(0, length, BLOCK_BYTES):
        yield slice(start, min(start + BLOCK_BYTES, length))


def _write_all(out: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]
