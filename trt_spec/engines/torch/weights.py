"""Writes a checkpoint again in the engine's dtype, as safetensors, one file at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir, is_finite
from trt_spec.checkpoints.families import FAMILY_LAYOUTS
from trt_spec.checkpoints.hf_config import write_json
from trt_spec.checkpoints.streaming import write_index
from trt_spec.engines.plan import Listing
from trt_spec.errors import CheckpointError, MachineError

if TYPE_CHECKING:
    from torch import Tensor


def write_checkpoint(
    checkpoint: CheckpointDir, listing: Listing, out_dir: Path, dtype: str, advance: Callable[[float], None]
) -> None:
    """Writes `checkpoint` to `out_dir`: floating-point tensors in `dtype`, others as they are, companions copied.

    Tensors that the model family computes with in float32 whatever the dtype (DeepSeek's router) stay float32.
    Memory: the tensors of one input file at a time. `advance` is called with the part done, 0 to 1.

    Raises:
        CheckpointError: a value is not finite, or does not fit into `dtype`; with the names of all such tensors.
        MachineError: the disk is full.
    """
    out_dir.mkdir()
    config = dict(checkpoint.config)  # with the dtype that the weights beside it have, under both names that it goes by
    config |= dict.fromkeys([key for key in ("torch_dtype", "dtype") if key in config] or ["dtype"], dtype)
    write_json(out_dir / "config.json", config)
    for name in listing.companions:
        shutil.copyfile(checkpoint.folder / name, out_dir / name)
    layout = FAMILY_LAYOUTS.get(str(checkpoint.config.get("model_type")))
    weight_map: dict[str, str] = {}
    num_bytes = num_done = 0
    for source, written in listing.outputs.items():
        names = [name for name, info in checkpoint.tensors.items() if info.file == source]
        tensors: dict[str, Tensor] = {}
        for name in names:
            is_wide = layout is not None and layout.keeps_float32(name)
            tensors[name] = _convert(checkpoint.read(name), "float32" if is_wide else dtype)
            num_done += 1
            advance(num_done / len(checkpoint.tensors))
        _refuse_not_finite(tensors, checkpoint.folder / source, dtype)
        _save(tensors, out_dir / written)
        weight_map |= dict.fromkeys(names, written)
        num_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if len(listing.weights) > 1:
        write_index(out_dir, weight_map, num_bytes)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # it hides a full disk from OSError
        raise MachineError(
            "the weights cannot be written", where=str(path), got=str(error), remedy="check the disk and its space"
        ) from error


def _convert(tensor: Tensor, dtype: str) -> Tensor:
    """The tensor in `dtype` with memory of its own: tensors that share storage cannot be saved side by side."""
    import torch

    wanted = getattr(torch, dtype) if tensor.is_floating_point() else tensor.dtype
    return tensor.to(wanted, memory_format=torch.contiguous_format, copy=True)


def _refuse_not_finite(tensors: dict[str, Tensor], where: Path, dtype: str) -> None:
    if names := [name for name, tensor in tensors.items() if not is_finite(tensor)]:
        raise CheckpointError(
            f"{len(names)} tensors hold NaN or infinity, or values beyond {dtype}",
            where=str(where),
            details=names,
            remedy="check the checkpoint; if it was trained in bfloat16, set target.dtype to bfloat16 or float32",
        )
