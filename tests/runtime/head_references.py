"""Independent forwards of the draft heads, in plain torch on whole sequences: no cache, explicit masks, own norms.

A reference reads the stored tensors under the names that the test wrote, so that a wrong rename shows as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

Tensors = Mapping[str, Tensor]


class Pairs(NamedTuple):
    """n pairs of one sequence: features [n, F], tokens [n], positions [n], and who sees whom [n, n]."""

    features: Tensor
    tokens: Tensor
    positions: Tensor
    visible: Tensor


Reference = Callable[[Pairs], tuple[Tensor, Tensor]]  # -> (outputs [n, F], logits [n, V])


class Layer(NamedTuple):
    """Sizes of a Llama-like layer, and how its positions turn."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float = 10000.0
    scaling: Mapping[str, object] | None = None  # of the rotary frequencies, as config.json has it


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def rotate(x: Tensor, positions: Tensor, layer: Layer) -> Tensor:
    """Rotates x [n, heads, head_dim] with transformers' tables."""
    config = LlamaConfig(
        hidden_size=layer.heads * layer.head_dim,
        num_attention_heads=layer.heads,
        head_dim=layer.head_dim,
        max_position_embeddings=96,
        rope_parameters={"rope_type": "default", "rope_theta": layer.theta} | dict(layer.scaling or {}),
    )
    cos, sin = (part[0, :, None] for part in LlamaRotaryEmbedding(config)(x, positions[None]))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attention(t: Tensors, prefix: str, x: Tensor, pairs: Pairs, layer: Layer) -> Tensor:
    """Softmax attention, head by head and row by row over what each row sees."""

    def project(name: str, heads: int) -> Tensor:
        y = F.linear(x, t[f"{prefix}{name}_proj.weight"], t.get(f"{prefix}{name}_proj.bias"))
        y = y.view(len(x), heads, layer.head_dim)
        norm = t.get(f"{prefix}{name}_norm.weight")
        return y if norm is None else rms(y, norm, layer.eps)

    q = rotate(project("q", layer.heads), pairs.positions, layer)
    k = rotate(project("k", layer.kv_heads), pairs.positions, layer)
    v = project("v", layer.kv_heads)
    out = torch.zeros_like(q)
    for head in range(layer.heads):
        kv = head * layer.kv_heads // layer.heads
        for row in range(len(x)):
            seen = pairs.visible[row]
            scores = k[seen, kv] @ q[row, head] / math.sqrt(layer.head_dim)
            out[row, head] = scores.softmax(-1) @ v[seen, kv]
    return F.linear(out.flatten(1), t[f"{prefix}o_proj.weight"], t.get(f"{prefix}o_proj.bias"))


def decoder(t: Tensors, prefix: str, residual: Tensor, normed: Tensor, pairs: Pairs, layer: Layer) -> Tensor:
    x = residual + attention(t, f"{prefix}self_attn.", normed, pairs, layer)
    y = rms(x, t[f"{prefix}post_attention_layernorm.weight"], layer.eps)
    gate, up = (F.linear(y, t[f"{prefix}mlp.{name}_proj.weight"]) for name in ("gate", "up"))
    return x + F.linear(F.silu(gate) * up, t[f"{prefix}mlp.down_proj.weight"])


def eagle(
    t: Tensors, target: Tensors, layer: Layer, *, name: str, prefix: str = "", post_norm: bool = False
) -> Reference:
    def run(pairs: Pairs) -> tuple[Tensor, Tensor]:
        embedding = t.get(f"{prefix}embed_tokens.weight", target["model.embed_tokens.weight"])
        x = torch.cat((embedding[pairs.tokens], pairs.features), dim=-1)
        x = F.linear(x, t[f"{prefix}fc.weight"], t.get(f"{prefix}fc.bias"))
        norm = t.get(f"{prefix}{name}.input_layernorm.weight")
        normed = x if norm is None else rms(x, norm, layer.eps)
        out = decoder(t, f"{prefix}{name}.", x, normed, pairs, layer)
        final = t.get(f"{prefix}norm.weight")
        read = out if final is None else rms(out, final, layer.eps)
        head = t.get(f"{prefix}lm_head.weight", target["lm_head.weight"])
        return (read if post_norm else out), read @ head.T

    return run


def eagle3(
    t: Tensors,
    target: Tensors,
    layer: Layer,
    *,
    name: str,
    prefix: str = "",
    norm_before_residual: bool = False,
    post_norm: bool = False,
) -> Reference:
    def run(pairs: Pairs) -> tuple[Tensor, Tensor]:
        embedding = t.get(f"{prefix}embed_tokens.weight", target["model.embed_tokens.weight"])
        embedded = rms(embedding[pairs.tokens], t[f"{prefix}{name}.input_layernorm.weight"], layer.eps)
        normed = rms(pairs.features, t[f"{prefix}{name}.hidden_norm.weight"], layer.eps)
        residual = normed if norm_before_residual else pairs.features
        out = decoder(t, f"{prefix}{name}.", residual, torch.cat((embedded, normed), dim=-1), pairs, layer)
        read = rms(out, t[f"{prefix}norm.weight"], layer.eps)
        logits = read @ t.get(f"{prefix}lm_head.weight", target["lm_head.weight"]).T
        if f"{prefix}d2t" in t:
            full = torch.full((len(out), len(target["lm_head.weight"])), float("-inf"))
            for draft_id, offset in enumerate(t[f"{prefix}d2t"].tolist()):
                full[:, draft_id + offset] = logits[:, draft_id]
            logits = full
        return (read if post_norm else out), logits

    return run


def mimo(target: Tensors, layer: Layer, index: int = 0) -> Reference:
    prefix = f"model.mtp_layers.{index}."

    def run(pairs: Pairs) -> tuple[Tensor, Tensor]:
        def norm(x: Tensor, name: str) -> Tensor:
            return rms(x, target[f"{prefix}{name}_layernorm.weight"], layer.eps)

        embedded = norm(target["model.embed_tokens.weight"][pairs.tokens], "token")
        x = torch.cat((norm(pairs.features, "hidden"), embedded), dim=-1) @ target[f"{prefix}input_proj.weight"].T
        out = norm(decoder(target, prefix, x, norm(x, "input"), pairs, layer), "final")
        return out, out @ target["lm_head.weight"].T

    return run


def deepseek(target: Tensors, config, index: int = 0) -> Reference:
    """transformers' own decoder layer between the norms and the head of an MTP layer.

    Args:
        config: transformers' DeepseekV3Config of the target.
    """
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as modeling

    number = config.num_hidden_layers + index
    prefix = f"model.layers.{number}."
    layer = modeling.DeepseekV3DecoderLayer(config, number).to(torch.float32).eval()
    state = {}
    for name, tensor in layer.state_dict().items():
        state[name] = target[prefix + name] if prefix + name in target else _fused_experts(target, prefix, name, tensor)
    layer.load_state_dict(state)

    @torch.inference_mode()
    def run(pairs: Pairs) -> tuple[Tensor, Tensor]:
        def norm(x: Tensor, name: str) -> Tensor:
            return rms(x, target[f"{prefix}{name}.weight"], config.rms_norm_eps)

        embedding = target.get(f"{prefix}embed_tokens.weight", target["model.embed_tokens.weight"])
        joined = torch.cat((norm(embedding[pairs.tokens], "enorm"), norm(pairs.features, "hnorm")), dim=-1)
        x = joined @ target[f"{prefix}eh_proj.weight"].T
        mask = torch.zeros(pairs.visible.shape).masked_fill(~pairs.visible, float("-inf"))
        rotary = modeling.DeepseekV3RotaryEmbedding(config)(x[None], pairs.positions[None])
        x = layer(x[None], attention_mask=mask[None, None], position_embeddings=rotary)
        out = norm((x[0] if isinstance(x, tuple) else x)[0], "shared_head.norm")
        return out, out @ target.get(f"{prefix}shared_head.head.weight", target["lm_head.weight"]).T

    return run


def _fused_experts(target: Tensors, prefix: str, name: str, tensor: Tensor) -> Tensor:
    """transformers holds the experts of a layer in two tensors; files hold three for each."""

    def stack(part: str) -> Tensor:
        return torch.stack([target[f"{prefix}mlp.experts.{e}.{part}_proj.weight"] for e in range(len(tensor))])

    return torch.cat((stack("gate"), stack("up")), dim=1) if "gate_up" in name else stack("down")


def medusa(
    t: Tensors, hidden: Tensor, names: Callable[[int, int], tuple[str, str]], outputs: Callable[[int], str]
) -> Tensor:
    """Logits [heads, n, V]; `names(head, block)`: weight and bias of a block, `outputs(head)`: the output."""
    guesses, head = [], 0
    while outputs(head) in t:
        x, block = hidden, 0
        while names(head, block)[0] in t:
            weight, bias = (t.get(name) for name in names(head, block))
            y = x @ weight.T
            x = x + F.silu(y if bias is None else y + bias)
            block += 1
        guesses.append(x @ t[outputs(head)].T)
        head += 1
    return torch.stack(guesses)
