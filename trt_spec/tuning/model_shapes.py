"""Sizes of a model as far as its speed depends on them: from config.json, from a name, or from a count of parameters.

Names and their numbers are those of the published config.json files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trt_spec.checkpoints.hf_config import required_size
from trt_spec.errors import CheckpointError, UsageError


@dataclass(frozen=True)
class ModelShape:
    """What a forward reads and computes. Counts of parameters are of matrices; norms and biases are left out.

    Attributes:
        attention_params: of one layer.
        mlp_params: of one dense layer.
        kv_width: numbers cached per token and layer.
        attention_width: multiplications per row, cached token and layer.
        num_dense_layers: layers with a dense MLP; the others have experts.
        expert_params, shared_params: of one routed expert, and of what every token takes in a layer of experts.
        input_params: of what the input is projected with.
    """

    num_layers: int
    hidden_size: int
    vocab_size: int
    attention_params: float
    mlp_params: float
    kv_width: float
    attention_width: float
    num_dense_layers: int
    expert_params: float = 0.0
    num_experts: int = 0
    experts_per_token: int = 0
    shared_params: float = 0.0
    input_params: float = 0.0

    @property
    def head_params(self) -> float:
        """The output layer, which a step reads whole. Of the embedding it reads a few rows."""
        return float(self.hidden_size * self.vocab_size)

    @property
    def num_params(self) -> float:
        """All that has to lie in memory, with an embedding beside the output layer."""
        return self.read_params(float("inf")) + self.head_params

    def read_params(self, rows: float) -> float:
        """Parameters that a step of so many rows reads: of the experts, those that some row is routed to."""
        share = 1 - (1 - self.experts_per_token / self.num_experts) ** rows if self.num_experts else 0.0
        return self._params(share * self.num_experts)

    @property
    def active_params(self) -> float:
        """Parameters that one row is multiplied with."""
        return self._params(self.experts_per_token)

    def one_layer(self, num_inputs: int, vocab_size: int) -> ModelShape:
        """A head that drafts: a layer of the more frequent kind, on features that are projected to one."""
        num_dense, projection = (0 if self.num_experts else 1), num_inputs * self.hidden_size**2
        return replace(self, num_layers=1, num_dense_layers=num_dense, vocab_size=vocab_size, input_params=projection)

    def medusa_heads(self, count: int) -> ModelShape:
        """As many heads at once, each a residual block and an output layer."""
        params = count * self.hidden_size**2 + (count - 1) * self.head_params
        return ModelShape(1, self.hidden_size, self.vocab_size, 0.0, params, 0.0, 0.0, num_dense_layers=1)

    def layer_params(self, num_experts: float) -> float:
        """Of one layer of the kind that is more frequent, with so many of its experts."""
        if self.num_experts:
            return self.attention_params + num_experts * self.expert_params + self.shared_params
        return self.attention_params + self.mlp_params

    def _params(self, num_experts: float) -> float:
        dense = self.num_dense_layers * (self.attention_params + self.mlp_params)
        sparse = self.num_layers - self.num_dense_layers
        fixed = self.input_params + self.head_params
        return fixed + dense + (sparse * self.layer_params(num_experts) if sparse else 0.0)


def from_config(config: Mapping[str, Any], where: str) -> ModelShape:
    """From config.json of a dense decoder or of DeepSeek-V3; CheckpointError where a size is missing."""
    names = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "intermediate_size")
    layers, hidden, vocab, heads, wide = (required_size(config, name, where) for name in names)
    sizes = {"num_layers": layers, "hidden_size": hidden, "vocab_size": vocab, "mlp_params": 3.0 * hidden * wide}
    if "kv_lora_rank" not in config:
        head_dim = config.get("head_dim") or hidden // heads
        kv_heads = config.get("num_key_value_heads") or heads
        return ModelShape(
            **sizes,
            attention_params=2.0 * hidden * head_dim * (heads + kv_heads),
            kv_width=2.0 * kv_heads * head_dim,
            attention_width=2.0 * heads * head_dim,
            num_dense_layers=layers,
        )
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "moe_intermediate_size")
    latent, nope, rope, value, narrow = (required_size(config, name, where) for name in names)
    query = config.get("q_lora_rank")
    query_params = (hidden + heads * (nope + rope)) * query if query else hidden * heads * (nope + rope)
    kv_params = hidden * (latent + rope) + latent * heads * (nope + value)
    return ModelShape(
        **sizes,
        attention_params=float(query_params + kv_params + heads * value * hidden),
        kv_width=float(latent + rope),
        attention_width=float(heads * (2 * latent + rope)),
        num_dense_layers=config.get("first_k_dense_replace", 0),
        expert_params=3.0 * hidden * narrow,
        num_experts=required_size(config, "n_routed_experts", where),
        experts_per_token=required_size(config, "num_experts_per_tok", where),
        shared_params=3.0 * hidden * narrow * config.get("n_shared_experts", 0),
    )


def from_params(num_params: float) -> ModelShape:
    """From a count alone: a dense Llama-like model of that size, 128 times as wide as deep, 8 key and value heads."""
    if not 1e6 <= num_params <= 1e13:
        raise UsageError("this is no number of parameters", got=f"{num_params:g}", expected="such as 8e9 or 70e9")
    layers = max(1, round((num_params / (12 * 128**2)) ** (1 / 3)))
    hidden, vocab = 128 * layers, 128_256
    body = max(num_params - 2.0 * hidden * vocab, num_params / 2)
    attention = 2.0 * hidden * (hidden + 8 * 128)
    wide = max(1, round((body / layers - attention) / (3 * hidden)))
    return from_config(_config(layers, hidden, wide, layers, 8, vocab), "a count of parameters")


def find(checkpoint: str) -> ModelShape | None:
    """The shape of a checkpoint: of its config.json where it is here, else of a published model with that name."""
    found = _find_config(checkpoint)
    return from_config(*found) if found else None


def is_stored_in_fp8(checkpoint: str) -> bool:
    """Whether config.json, here or published, says so."""
    found = _find_config(checkpoint)
    return bool(found) and (found[0].get("quantization_config") or {}).get("quant_method") == "fp8"


def _find_config(checkpoint: str) -> tuple[Mapping[str, Any], str] | None:
    path = Path(checkpoint) / "config.json"
    if path.is_file():
        try:
            return json.loads(path.read_text(encoding="utf-8")), str(path)
        except ValueError as error:
            raise CheckpointError("config.json is not JSON", where=str(path), got=str(error)) from None
    name = re.sub(r"[^a-z0-9.]+", "-", Path(checkpoint).name.lower())
    known = [known for known in PUBLISHED if name == known or name.startswith((f"{known}-", f"meta-{known}-"))]
    return (PUBLISHED[max(known, key=len)], name) if known else None


def _config(layers: int, hidden: int, wide: int, heads: int, kv_heads: int, vocab: int, head_dim: int = 128) -> dict:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "head_dim": head_dim,
    }


_DEEPSEEK_V3: dict[str, Any] = {
    "quantization_config": {"quant_method": "fp8"},
    **_config(61, 7168, 18432, 128, 128, 129_280),
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": _config(16, 2048, 8192, 32, 8, 128_256, 64),
    "llama-3.2-3b": _config(28, 3072, 8192, 24, 8, 128_256),
    **dict.fromkeys(("llama-3-8b", "llama-3.1-8b"), _config(32, 4096, 14336, 32, 8, 128_256)),
    **dict.fromkeys(("llama-3-70b", "llama-3.1-70b", "llama-3.3-70b"), _config(80, 8192, 28672, 64, 8, 128_256)),
    "llama-3.1-405b": _config(126, 16384, 53248, 128, 8, 128_256),
    "vicuna-7b": _config(32, 4096, 11008, 32, 32, 32_000),
    "vicuna-13b": _config(40, 5120, 13824, 40, 40, 32_000),
    "vicuna-33b": _config(60, 6656, 17920, 52, 52, 32_000),
    "zephyr-7b": _config(32, 4096, 14336, 32, 8, 32_000),
    "qwen3-8b": _config(36, 4096, 12288, 32, 8, 151_936),
    "qwen3-32b": _config(64, 5120, 25600, 64, 8, 151_936),
    "smollm2-135m": _config(30, 576, 1536, 9, 3, 49_152, 64),
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-r1": _DEEPSEEK_V3,
}
