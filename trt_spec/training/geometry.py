"""The geometry of a draft layer for any native target."""

from __future__ import annotations

from dataclasses import replace

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.llama import LlamaConfig
from trt_spec.runtime.models import ModelConfig

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
