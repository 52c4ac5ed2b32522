"""The differentiable twin of the runtime's layers: the same arithmetic on padded batches [B, R, H], with gradients.

Weights are a flat mapping from stored names to tensors, so that what is trained is what is saved. The tests hold every
network here to the runtime head that is loaded from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.checkpoints.llama import LlamaConfig
from trt_spec.runtime.rope import inverse_frequencies

Weights = Mapping[str, Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H] -> x / sqrt(mean(x²) + eps) · weight."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


class Rotary:
    """cos and sin [P, head_dim] for positions 0 to P − 1, of one layer geometry."""

    def __init__(self, config: LlamaConfig, num_positions: int, dtype: torch.dtype, device: torch.device):
        inverse, factor = inverse_frequencies(
            config.head_dim, config.rope_theta, config.rope_scaling, config.max_position_embeddings
        )
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse
        angles = torch.cat((angles, angles), dim=-1)
        self.cos = (angles.cos() * factor).to(device, dtype)
        self.sin = (angles.sin() * factor).to(device, dtype)

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """Rotates x [B, heads, R, head_dim] whose rows stand at positions `start`, `start` + 1, …"""
        rows = slice(start, start + x.shape[2])
        first, second = x.chunk(2, dim=-1)
        return x * self.cos[rows] + torch.cat((-second, first), dim=-1) * self.sin[rows]


@dataclass(frozen=True)
class KeysValues:
    """Keys and values [B, kv heads, R, head_dim] of rows from position `start` on."""

    keys: Tensor
    values: Tensor
    start: int

    def rows(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Those of positions [start, end)."""
        here = slice(start - self.start, end - self.start)
        return self.keys[:, :, here], self.values[:, :, here]


class LayerTwin:
    """One Llama-like decoder layer below `prefix`."""

    def __init__(self, config: LlamaConfig, prefix: str, rotary: Rotary):
        self.config, self.prefix, self.rotary = config, prefix, rotary

    def project(self, weights: Weights, normed: Tensor, start: int) -> tuple[Tensor, KeysValues]:
        """Queries [B, heads, R, D] and keys and values of rows [B, R, width] from position `start` on."""
        config = self.config

        def heads(name: str) -> Tensor:
            return self._linear(weights, f"self_attn.{name}_proj", normed).unflatten(-1, (-1, config.head_dim))

        q, k, v = heads("q"), heads("k"), heads("v")
        if config.qk_norm:
            q = rms_norm(q, weights[f"{self.prefix}self_attn.q_norm.weight"], config.rms_norm_eps)
            k = rms_norm(k, weights[f"{self.prefix}self_attn.k_norm.weight"], config.rms_norm_eps)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return self.rotary(q, start), KeysValues(self.rotary(k, start), v, start)

    def finish(self, weights: Weights, residual: Tensor, attended: Tensor) -> Tensor:
        """Adds what attention gave [B, heads, R, D], then the MLP; [B, R, H]."""
        x = residual + self._linear(weights, "self_attn.o_proj", attended.transpose(1, 2).flatten(-2))
        normed = rms_norm(x, weights[f"{self.prefix}post_attention_layernorm.weight"], self.config.rms_norm_eps)
        inner = F.silu(self._linear(weights, "mlp.gate_proj", normed)) * self._linear(weights, "mlp.up_proj", normed)
        return x + self._linear(weights, "mlp.down_proj", inner)

    def input_norm(self, weights: Weights, x: Tensor) -> Tensor:
        return rms_norm(x, weights[f"{self.prefix}input_layernorm.weight"], self.config.rms_norm_eps)

    def _linear(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{self.prefix}{name}.weight"], weights.get(f"{self.prefix}{name}.bias"))


def causal_attention(q: Tensor, own: KeysValues) -> Tensor:
    """Every row sees itself and what lies before it: [B, heads, R, D]."""
    return F.scaled_dot_product_attention(q, own.keys, own.values, is_causal=True, enable_gqa=True)


def chain_attention(q: Tensor, start: int, steps: list[KeysValues]) -> Tensor:
    """Attention of draft step j = len(steps) − 1, whose rows q [B, heads, R, D] stand at positions from `start` on.

    At inference the row at position t of step j follows a chain of j drafts, so it sees what step 0 wrote up to t − j,
    then one row of each later step: position t − j + i of step i, up to its own.
    """
    depth = len(steps) - 1
    num_rows, end = q.shape[2], start + q.shape[2]
    group = q.shape[1] // steps[0].keys.shape[1]
    # [B, kv heads, group · R, D]: the query heads of one key head as further rows of it.
    q = q.unflatten(1, (-1, group)).flatten(2, 3) * q.shape[-1] ** -0.5
    keys, values = steps[0].rows(0, end - depth)
    visible = torch.arange(end - depth, device=q.device) <= torch.arange(
        start - depth, end - depth, device=q.device
    ).unsqueeze(-1)
    mask = torch.zeros(visible.shape, dtype=q.dtype, device=q.device).masked_fill_(~visible, float("-inf"))
    scores = [q @ keys.transpose(-1, -2) + mask.repeat(group, 1)]
    own_values = []
    for index in range(1, depth + 1):
        shift = depth - index
        own_keys, own_value = steps[index].rows(start - shift, end - shift)
        scores.append((q * own_keys.repeat(1, 1, group, 1)).sum(-1, keepdim=True))
        own_values.append(own_value.repeat(1, 1, group, 1))
    weights = torch.cat(scores, dim=-1).softmax(-1)
    out = weights[..., : keys.shape[2]] @ values
    for index, own_value in enumerate(own_values):
        out = out + weights[..., keys.shape[2] + index, None] * own_value
    return out.unflatten(2, (group, num_rows)).flatten(1, 2)
