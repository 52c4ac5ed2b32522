"""Rotary position embedding tables, with the scalings that Llama-like and DeepSeek checkpoints use.

Sources: RoPE (Su et al. 2021), position interpolation (Chen et al. 2023), YaRN (Peng et al. 2023), and the `llama3`
rule of Llama 3.1's reference code. Checked against transformers in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trt_spec.errors import CheckpointError
from trt_spec.runtime.kernels.library import activation_dtype

# Scaling rule to the keys that it cannot do without. YaRN takes its factor from the two context lengths if it has none.
ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (),
}


def inverse_frequencies(
    dim: int, theta: float, scaling: Mapping[str, Any], max_position_embeddings: int
) -> tuple[Tensor, float]:
    """(inverse frequencies [dim/2] in float32, factor on cos and sin) for one scaling rule.

    Raises:
        CheckpointError: the scaling rule is none of `ROPE_TYPES`, or lacks a number that it needs.
    """
    base = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    kind = scaling.get("rope_type", "default")
    if missing := [key for key in ROPE_TYPES.get(kind, ()) if not scaling.get(key)]:
        raise CheckpointError(
            f"RoPE scaling {kind} lacks {', '.join(missing)}",
            where="config.json: rope_scaling",
            got=dict(scaling),
            remedy="take config.json from the same export as the tensors",
        )
    if kind == "default":
        return base, 1.0
    if kind == "linear":
        return base / scaling["factor"], 1.0
    if kind == "llama3":
        return _llama3(base, scaling), 1.0
    if kind == "yarn":
        return _yarn(base, dim, theta, scaling, max_position_embeddings)
    raise CheckpointError(
        "RoPE scaling is not supported by the torch target",
        where="config.json: rope_scaling",
        got=kind,
        expected=f"one of {', '.join(ROPE_TYPES)}",
        remedy="use build.target llmapi or tensorrt",
    )


def _llama3(base: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended linearly."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    context = scaling["original_max_position_embeddings"]
    turns = context * base / (2 * math.pi)  # how often this frequency turns within the original context
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * base / factor + blend * base


def _yarn(
    base: Tensor, dim: int, theta: float, scaling: Mapping[str, Any], max_position_embeddings: int
) -> tuple[Tensor, float]:
    context = scaling.get("original_max_position_embeddings") or max_position_embeddings
    factor = scaling_factor(scaling, max_position_embeddings)

    def dim_of(turns: float) -> float:
        return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dim_of(scaling.get("beta_fast") or 32), dim_of(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a ramp of zero width would divide by zero
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return base / factor * ramp + base * (1 - ramp), _yarn_attention_factor(factor, scaling)


def scaling_factor(scaling: Mapping[str, Any], max_position_embeddings: int) -> float:
    """How many times longer the context became: `factor`, or the ratio of the two context lengths."""
    context = scaling.get("original_max_position_embeddings") or max_position_embeddings
    return scaling.get("factor") or max_position_embeddings / context


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's temperature correction 0.1 · mscale · ln(factor) + 1."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_attention_factor(factor: float, scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    mscale, mscale_all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
    return yarn_mscale(factor)


class RotaryTable:
    """cos and sin for every position, with the sign of the half rotation folded into sin.

    Args:
        dim: columns of a head that turn with the position.
        config: of the model, for its `rope_theta`, `rope_scaling` and `max_position_embeddings`.
        num_positions: P, length of the table.
        dtype: of the model's weights; the table has that of its activations.
    """

    def __init__(self, dim: int, config: Any, num_positions: int, dtype: torch.dtype, device: torch.device):
        inverse, factor = inverse_frequencies(
            dim, config.rope_theta, config.rope_scaling, config.max_position_embeddings
        )
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse  # [P, dim/2]
        cos, sin = angles.cos() * factor, angles.sin() * factor
        self.half, self.dtype = dim // 2, dtype
        table_dtype = activation_dtype(dtype, device)
        self.cos = torch.cat((cos, cos), dim=-1).to(device, table_dtype)  # [P, dim]
        self.sin = torch.cat((-sin, sin), dim=-1).to(device, table_dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [N, 1, dim] for positions [N], to be broadcast over heads."""
        return self.cos[positions, None], self.sin[positions, None]


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [N, heads, dim] in place, by cos and sin of a `RotaryTable`.

    x · cos + roll(x, dim/2) · sin is `rotate_half` of the reference code in three vector operations.
    """
    rolled = x.roll(x.shape[-1] // 2, -1)
    return x.mul_(cos).addcmul_(rolled, sin)
