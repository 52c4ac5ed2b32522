"""A checkpoint directory: its config, its tensors by name, and a loader that lets nothing pass in silence."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_spec.checkpoints.exact import ExactReport, Shape
from trt_spec.checkpoints.hf_config import read_json
from trt_spec.checkpoints.tensor_files import INDEX_FILE, PICKLE_SUFFIXES, TensorInfo, list_tensors, load_pickle
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.")


class CheckpointDir:
    """Tensors and config of one checkpoint; opening it reads headers only.

    Use `open`. A single file, sharded files with an index, shards without one, and .pt/.bin files (with weights_only)
    look the same from here.

    Attributes:
        path: The directory, or the file where a single file was opened.
        config: config.json as it is; empty where there is none.
        tensors: Name to `TensorInfo`, sorted by name.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> None:
        self.path = path
        self.config = dict(config)
        self.tensors = dict(sorted(tensors.items()))
        self._files: dict[str, Callable[[str], Tensor]] = {}  # reads a tensor of an opened file, by the file's name

    @classmethod
    def open(cls, path: str | Path) -> CheckpointDir:
        """Opens a directory or one tensor file.

        Raises:
            CheckpointError: Not there, no tensor files, missing shards, a damaged file, a tensor stored twice, or an
                index that disagrees with its files.
        """
        path = Path(path).expanduser()
        if not path.exists():
            is_demo = path.name == "smollm2-135m"
            raise CheckpointError(
                "no such checkpoint",
                where=str(path),
                expected="a directory with safetensors, or one tensor file",
                remedy="run `trt-spec fetch smollm2-135m`" if is_demo else "check the path",
            )
        folder = path if path.is_dir() else path.parent
        config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
        return cls(path, config, _list_folder(folder) if path.is_dir() else list_tensors(path))

    @property
    def folder(self) -> Path:
        """The directory that holds the files."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def tensor_files(self) -> tuple[str, ...]:
        """Names of the files that hold tensors."""
        return tuple(sorted({info.file for info in self.tensors.values()}))

    @property
    def shapes(self) -> dict[str, Shape]:
        """Name to shape."""
        return {name: info.shape for name, info in self.tensors.items()}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside the tensors; raises CheckpointError where none can be used."""
        return Tokenizer.load(self.folder)

    def read(self, name: str) -> Tensor:
        """One tensor on the CPU, in its stored type. It may be a view of the mapped file: clone before writing to it.

        Raises:
            KeyError: No tensor has that name.
        """
        info = self.tensors[name]
        path = self.folder / info.file
        if info.file not in self._files:
            from safetensors import safe_open

            is_pickle = path.suffix in PICKLE_SUFFIXES
            opened = load_pickle(path) if is_pickle else safe_open(str(path), framework="pt", device="cpu")
            self._files[info.file] = opened.__getitem__ if is_pickle else opened.get_tensor
        return self._files[info.file](info.stored_name)

    def part(self, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any] | None = None) -> CheckpointDir:
        """The same opened files with other tensors of theirs, or other names for them, and maybe another config."""
        other = CheckpointDir(self.path, self.config if config is None else config, tensors)
        other._files = self._files
        return other

    def renamed(self, stored_to_canonical: Mapping[str, str], config: Mapping[str, Any] | None = None) -> CheckpointDir:
        """The same with other names for some tensors; raises CheckpointError where two would get one name."""
        tensors: dict[str, TensorInfo] = {}
        for stored, info in self.tensors.items():
            name = stored_to_canonical.get(stored, stored)
            if name in tensors:
                raise CheckpointError(
                    f"two tensors mean {name}",
                    where=str(self.path),
                    got=f"{tensors[name].stored_name} and {info.stored_name}",
                    remedy="remove one of the two; which one counts cannot be guessed",
                )
            tensors[name] = info
        return self.part(tensors, config)

    def load_exact(
        self,
        expected: Mapping[str, Shape],
        *,
        optional: Mapping[str, Shape] | None = None,
        ignored: Iterable[str] = (),
    ) -> dict[str, Tensor]:
        """Name to tensor, as `read` gives them: every expected one, and the optional ones that are there.

        Args:
            expected: Name to shape of each tensor that has to be there.
            optional: Name to shape of tensors that may be absent.
            ignored: Regular expressions; a tensor whose whole name matches one is left alone.

        Raises:
            CheckpointError: With every missing, unexpected, mis-shaped and non-finite name, and the likely remedy.
        """
        wanted = {**expected, **(optional or {})}
        report = ExactReport.of(str(self.path), self.config, self.shapes, expected, optional or {}, ignored)
        loaded = {name: self.read(name) for name in self.tensors if name in wanted and name not in report.misshaped}
        report.not_finite = [name for name, tensor in loaded.items() if not is_finite(tensor)]
        report.raise_if_any()
        return loaded


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def is_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite. One pass: the extremes are so exactly where an element is."""
    import torch

    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    if tensor.element_size() == 1:
        tensor = tensor.float()  # float8 has no reductions
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _list_folder(folder: Path) -> dict[str, TensorInfo]:
    """The tensors of a directory: those of its index, else of all safetensors, else of all pickles."""
    for index_name in (INDEX_FILE, "pytorch_model.bin.index.json"):
        if (folder / index_name).is_file():
            return _list_index(folder, folder / index_name)
    return _joined(folder, {path.name: list_tensors(path) for path in _tensor_files(folder)})


def _tensor_files(folder: Path) -> list[Path]:
    safetensors = sorted(folder.glob("*.safetensors"))
    if len(safetensors) > 1:  # Mistral ships every tensor a second time under its own names
        safetensors = [path for path in safetensors if not path.name.startswith("consolidated")]
    files = safetensors or sorted(path for suffix in PICKLE_SUFFIXES for path in folder.glob(f"*{suffix}"))
    files = [path for path in files if path.name not in ("training_args.bin", "optimizer.pt", "scheduler.pt")]
    if not files:
        is_gguf = any(folder.glob("*.gguf"))
        raise CheckpointError(
            "no tensor files here",
            where=str(folder),
            expected="*.safetensors (or *.pt, *.bin)",
            remedy="convert the GGUF file to a Hugging Face directory first" if is_gguf else "check the path",
        )
    _refuse_missing_shards(folder, files)
    return files


def _refuse_missing_shards(folder: Path, files: Iterable[Path]) -> None:
    present = {path.name for path in files}
    missing = set()
    for name in present:
        if match := _SHARD.search(name):
            total = int(match.group(2))
            names = {_SHARD.sub(f"-{i:05d}-of-{total:05d}.", name) for i in range(1, total + 1)}
            missing |= names - present
    if missing:
        raise _missing_shards(folder, sorted(missing))


def _missing_shards(folder: Path, names: list[str]) -> CheckpointError:
    return CheckpointError(
        "shards are missing", where=str(folder), got=", ".join(names), remedy="finish the download of the checkpoint"
    )


def _list_index(folder: Path, index: Path) -> dict[str, TensorInfo]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError("the index has no weight_map", where=str(index))
    names = sorted(set(map(str, weight_map.values())))
    if any(Path(name).name != name for name in names):
        raise CheckpointError("the index points outside its directory", where=str(index), got=", ".join(names))
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise _missing_shards(folder, missing)
    listed = {name: list_tensors(folder / name) for name in names}
    found = {(key, name) for name in names for key in listed[name]}
    promised = {(key, str(name)) for key, name in weight_map.items()}
    if found != promised:
        raise CheckpointError(
            "the index and its files disagree",
            where=str(index),
            details=[f"in the index, not in {name}: {key}" for key, name in sorted(promised - found)]
            + [f"in {name}, not in the index: {key}" for key, name in sorted(found - promised)],
            remedy="export the checkpoint again, or finish its download",
        )
    return _joined(folder, listed)


def _joined(folder: Path, listed: Mapping[str, Mapping[str, TensorInfo]]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    twice: list[str] = []
    for file in listed.values():
        twice += [f"{name} in {tensors[name].file} and {file[name].file}" for name in file if name in tensors]
        tensors |= file
    if twice:
        raise CheckpointError(
            "tensors are stored twice", where=str(folder), details=twice, remedy="remove the file that does not belong"
        )
    return tensors
