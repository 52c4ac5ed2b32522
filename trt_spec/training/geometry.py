"""The geometry of a draft layer for any native target, where it starts, and its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.llama import LlamaConfig
from trt_spec.runtime.models import ModelConfig

INITIAL_SCALE = 0.02
HEAD_DIM = 64  # for targets whose own attention has no heads of keys and values


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


def initial_tensors(
    shapes: Mapping[str, tuple[int, ...]], generator: torch.Generator, source: CheckpointDir, stored: Mapping[str, str]
) -> dict[str, Tensor]:
    """Float32 tensors: what `source` has under the name in `stored`; else ones for norms, zeros for biases, noise."""
    start = {}
    for name, shape in shapes.items():
        if stored.get(name) in source.tensors:
            start[name] = source.read(stored[name]).float()
        elif name.endswith("norm.weight"):
            start[name] = torch.ones(shape)
        elif name.endswith(".bias"):
            start[name] = torch.zeros(shape)
        else:
            start[name] = INITIAL_SCALE * torch.randn(shape, generator=generator)
    return start


_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def model_config(config: LlamaConfig) -> dict[str, object]:
    """config.json of a Llama-like model of this geometry. MiMo without MTP layers is a Qwen2."""
    family = "qwen2" if config.family == "mimo" else config.family
    return {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
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
