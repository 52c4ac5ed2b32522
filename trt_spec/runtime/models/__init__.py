"""Native model families and the one function that loads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from trt_spec.checkpoints.deepseek_v3 import DEEPSEEK_V3_FAMILIES
from trt_spec.checkpoints.detect import Opened
from trt_spec.checkpoints.families import FamilyLayout, layout_of
from trt_spec.checkpoints.llama import LLAMA_FAMILIES
from trt_spec.errors import CheckpointError
from trt_spec.runtime.models.base import Hidden, Model, ModelConfig
from trt_spec.runtime.models.deepseek_v3 import DeepseekV3Model
from trt_spec.runtime.models.llama import LlamaModel

__all__ = ["MODELS", "DeepseekV3Model", "Hidden", "LlamaModel", "Model", "ModelConfig", "load_model", "placed"]

MODELS: dict[str, type[Model]] = {
    **dict.fromkeys(LLAMA_FAMILIES, LlamaModel),
    **dict.fromkeys(DEEPSEEK_V3_FAMILIES, DeepseekV3Model),
}


def load_model(path: str | Path | Opened, dtype: torch.dtype, device: torch.device, num_positions: int) -> Model:
    """Loads a checkpoint directory of a native family, strictly: every tensor is used or named as ignored.

    Args:
        num_positions: length of the rotary table, at least the longest sequence plus its draft.

    Raises:
        CheckpointError: unknown family, missing, unexpected, mis-shaped or non-finite tensors.
    """
    checkpoint = Opened.of(path).checkpoint
    where = str(checkpoint.path)
    layout = layout_of(checkpoint.config, where)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    config = layout.parse_config(checkpoint.config, shapes, where)
    tied = {"lm_head.weight": (config.vocab_size, config.hidden_size)} if config.tied_head else {}
    tensors = checkpoint.load_exact(
        layout.expected_tensors(config), optional=tied, ignored=layout.ignored_tensors(config)
    )
    head = tensors.get("lm_head.weight")
    if config.tied_head and head is not None and not torch.equal(head, tensors["model.embed_tokens.weight"]):
        raise CheckpointError(
            "config.json ties the head to the embedding, but the checkpoint holds a different lm_head.weight",
            where=where,
            expected="tie_word_embeddings: false, or no lm_head.weight",
            remedy="set tie_word_embeddings to false in config.json if the head is its own",
        )
    return MODELS[config.family](config, placed(tensors, dtype, device, layout), num_positions)


def placed(
    tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device, layout: FamilyLayout | None = None
) -> dict[str, Tensor]:
    """Tensors on a device in a dtype; integers, and what a family keeps in float32, stay as they are."""
    wide = torch.promote_types(dtype, torch.float32)

    def dtype_of(name: str, tensor: Tensor) -> torch.dtype:
        if not tensor.is_floating_point():
            return tensor.dtype
        return wide if layout is not None and layout.keeps_float32(name) else dtype

    return {name: tensor.to(device, dtype_of(name, tensor)) for name, tensor in tensors.items()}
