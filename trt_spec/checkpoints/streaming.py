"""Writes a safetensors file from pieces of other files: bytes go from file to file, and no tensor is ever in memory.

Out of .pt and .bin files, whose bytes only torch finds, tensors come one at a time out of one mapped file at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.hf_config import write_json
from trt_spec.checkpoints.tensor_files import INDEX_FILE, load_pickle, stored_dtype
from trt_spec.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

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
    info = checkpoint.tensors[name]
    file = checkpoint.folder / info.file
    return Piece(new_name or name, info.dtype, info.shape, file, info.stored_name, info.place)


def write_safetensors(path: Path, pieces: Sequence[Piece], on_bytes: OnBytes = lambda count: None) -> int:
    """Writes one safetensors file, widest types first so that every tensor is aligned; returns all tensors' bytes.

    Memory: one block. Where only torch can find a piece: one mapped file, and a copy of one tensor.
    `on_bytes` is called with the number of bytes written, after each block.

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
    with path.open("wb", buffering=0) as out:
        _write_all(out.fileno(), len(text).to_bytes(8, "little") + text)
        for file, items in itertools.groupby(ordered, lambda item: item.file):
            with contextlib.closing(_blocks_of(file, items)) as blocks:
                for block in blocks:
                    _write_all(out.fileno(), block)
                    on_bytes(len(block))
    return end


def write_index(folder: Path, weight_map: Mapping[str, str], num_bytes: int) -> None:
    """Writes which file holds which tensor; `num_bytes` is of all tensors together."""
    index = {"metadata": {"total_size": num_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / INDEX_FILE, index)


def _disk_order(item: Piece) -> tuple[int, bool, str, int, str]:
    """Sort key: widest type first, then as the tensors lie on the disk, so that reading is sequential; zeros last."""
    width = stored_dtype(item.dtype)[1] or 1
    return -width, item.file is None, str(item.file), item.place[0] if item.place else 0, item.name


def _blocks_of(file: Path | None, items: Iterable[Piece]) -> Iterator[memoryview]:
    """The bytes of pieces of one file in turn; a block is valid until the next one is asked for.

    Bytes go through one block, which stays in the processor's cache. The kernel's copy_file_range takes half as long
    again: it works page by page, and tensors start anywhere.
    """
    block = memoryview(bytearray(BLOCK_BYTES))
    with contextlib.ExitStack() as stack:
        source, tensors = None, None
        for item in items:
            if file is not None and item.place is None:
                tensors = tensors or load_pickle(file)
                yield from _blocks_of_tensor(tensors[item.stored_name])
                continue
            if file is not None and source is None:
                source = stack.enter_context(file.open("rb", buffering=0))
            start, length = item.place[0] if file else 0, item.num_bytes
            while length:
                wanted = block[: min(length, BLOCK_BYTES)]
                count = len(wanted) if source is None else os.preadv(source.fileno(), [wanted], start)
                if not count:
                    raise CheckpointError(
                        "a tensor file became shorter while it was read", where=str(file), remedy="copy it again"
                    )
                yield wanted[:count]
                start, length = start + count, length - count


def _blocks_of_tensor(tensor: Tensor) -> Iterator[memoryview]:
    import torch

    data = memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    for start in range(0, len(data), BLOCK_BYTES):
        yield data[start : start + BLOCK_BYTES]


def _write_all(out: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]
