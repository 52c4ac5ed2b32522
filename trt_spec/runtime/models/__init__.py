"""Native model families and the one function that loads them."""

from __future__ import annotations

from pathlib import Path

import torch

from trt_spec.checkpoints import llama as llama_layout
from trt_spec.checkpoints.safetensors_dir import CheckpointDir
from trt_spec.errors import CheckpointError
from trt_spec.runtime.models.llama import Hidden, LlamaModel

__all__ = ["Hidden", "LlamaModel", "load_model"]


def load_model(path: str | Path, dtype: torch.dtype, device: torch.device, num_positions: int) -> LlamaModel:
    """Loads a checkpoint directory of a native family, strictly: every tensor is used or named as ignored.

    Args:
        num_positions: length of the rotary table, at least the longest sequence plus its draft.

    Raises:
        CheckpointError: unknown family, missing, unexpected, mis-shaped or non-finite tensors.
    """
    checkpoint = CheckpointDir.open(path)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    config = llama_layout.parse_config(checkpoint.config, shapes, str(checkpoint.path))
    tied = {"lm_head.weight": (config.vocab_size, config.hidden_size)} if config.tied_head else {}
    tensors = checkpoint.load_exact(
        llama_layout.expected_tensors(config), optional=tied, ignored=llama_layout.IGNORED_TENSORS
    )
    head = tensors.get("lm_head.weight")
    if config.tied_head and head is not None and not torch.equal(head, tensors["model.embed_tokens.weight"]):
        raise CheckpointError(
            "config.json ties the head to the embedding, but the checkpoint holds a different lm_head.weight",
            where=str(checkpoint.path),
            expected="tie_word_embeddings: false, or no lm_head.weight",
            remedy="set tie_word_embeddings to false in config.json if the head is its own",
        )
    tensors = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
    return LlamaModel(config, tensors, num_positions)
