"""The geometry of a draft layer for any native target: its config, where its weights start, and its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.llama import LlamaConfig
from trt_spec.runtime.models import ModelConfig

HEAD_DIM = 64  # for targets whose own attention has no heads of keys and values
INITIAL_SCALE = 0.02


def draft_layer_config(target: ModelConfig) -> LlamaConfig:
    """One Llama-like layer: the target's own geometry where it has one, else one of the same width."""
    if isinstance(target, LlamaConfig):
        return replace(target, num_hidden_layers=1, mlp_bias=False)  # EAGLE layouts have no bias there
    head_dim = next(size for size in (HEAD_DIM, 32, 16, 8, 4, 2) if target.hidden_size % size == 0)
    heads = target.hidden_size // head_dim
    return LlamaConfig(
        family="llama",
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2 if heads % 2 == 0 else heads,
        head_dim=head_dim,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        rope_scaling={},
        qkv_bias=False,
        output_bias=False,
        qk_norm=False,
    )


def initial_tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Where a weight starts that nothing is copied to, in float32."""
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    return INITIAL_SCALE * torch.randn(shape, generator=generator)


def copied_tensor(
    checkpoint: CheckpointDir, stored: str, name: str, shape: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    """The stored tensor in float32; `initial_tensor` where the checkpoint has none of that name."""
    if stored in checkpoint.tensors:
        return checkpoint.read(stored).float()
    return initial_tensor(name, shape, generator)


def save_checkpoint(
    directory: Path,
    weights: Mapping[str, Tensor],
    config: Mapping[str, object],
    *,
    file: str = "model.safetensors",
    dtype: torch.dtype = torch.bfloat16,
    exact: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes `weights` in `dtype`, `exact` as it is, and config.json."""
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in weights.items()} | dict(exact or {})
    save_file(tensors, directory / file, metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def geometry_keys(config: LlamaConfig) -> dict[str, object]:
    """The keys of config.json that every Llama-like model of this geometry has."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": dict(config.rope_scaling) or None,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tied_head,
        "torch_dtype": "bfloat16",
    }
