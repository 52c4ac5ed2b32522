"""The Llama-like checkpoint layout: Llama, Mistral, Qwen2, Qwen3, SmolLM2 and MiMo as Hugging Face directories.

Biases, query/key norms and a head of its own are read off the tensors; config.json gives only what shapes cannot tell.
Source of names: `transformers/models/{llama,mistral,qwen2,qwen3}/modeling_*.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trt_spec.checkpoints.hf_config import partial_rotary_factor, refuse_unsupported, required_size, rope_parameters

Shape = tuple[int, ...]

LLAMA_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "mimo")
# Buffers that old exporters wrote and no model reads, and MiMo's MTP layers, which the `mtp` drafter loads.
IGNORED_TENSORS = (r".*\.rotary_emb\.inv_freq", r".*\.attn\.masked_bias", r"model\.mtp_layers\..*")


@dataclass(frozen=True)
class LlamaConfig:
    """Geometry of a Llama-like model. Sizes are counts, `rope_theta` is the base of the rotary frequencies."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_head: bool = False
    sliding_window: int | None = None

    @property
    def q_width(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_key_value_heads * self.head_dim


def parse_config(config: Mapping[str, Any], shapes: Mapping[str, Shape], where: str) -> LlamaConfig:
    """Reads a Hugging Face config.json and the tensor shapes into a `LlamaConfig`.

    Raises:
        CheckpointError: a size is missing, or a feature that this runtime lacks is asked for.
    """
    sizes = {key: required_size(config, key, where) for key in _REQUIRED_SIZES}
    _refuse_unsupported(config, where)
    heads = sizes["num_attention_heads"]
    layer = "model.layers.0.self_attn."
    theta, scaling = rope_parameters(config)
    return LlamaConfig(
        family=str(config.get("model_type")),
        **sizes,
        num_key_value_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or sizes["hidden_size"] // heads),
        max_position_embeddings=int(config.get("max_position_embeddings") or 2048),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=f"{layer}q_proj.bias" in shapes,
        output_bias=f"{layer}o_proj.bias" in shapes,
        mlp_bias="model.layers.0.mlp.down_proj.bias" in shapes,
        qk_norm=f"{layer}q_norm.weight" in shapes,
        tied_head=bool(config.get("tie_word_embeddings", False)),
        sliding_window=sliding_window(config),
    )


_REQUIRED_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def _refuse_unsupported(config: Mapping[str, Any], where: str) -> None:
    layer_types = set(config.get("layer_types") or ["full_attention"])
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    checks = {
        "num_key_value_heads": (kv_heads, heads % kv_heads == 0, f"a divisor of num_attention_heads, which is {heads}"),
        "head_dim": (head_dim, head_dim % 2 == 0, "an even number: its halves are rotated against each other"),
        "hidden_act": (value := config.get("hidden_act", "silu"), value in ("silu", "swish"), "silu"),
        "partial_rotary_factor": (value := partial_rotary_factor(config), value == 1.0, "1.0"),
        "layer_types": (layer_types, layer_types <= {"full_attention", "sliding_attention"}, "full_attention"),
        "pretraining_tp": (value := config.get("pretraining_tp") or 1, value == 1, "1"),
        "quantization_config": (value := config.get("quantization_config"), not value, "an unquantised checkpoint"),
    }
    refuse_unsupported(checks, where)


def sliding_window(config: Mapping[str, Any]) -> int | None:
    """The attention window in tokens, or None where every layer sees the whole context."""
    window = config.get("sliding_window")
    if not window or not config.get("use_sliding_window", True):
        return None
    types = config.get("layer_types")
    return int(window) if types is None or "sliding_attention" in types else None


def layer_shapes(
    hidden: int, inner: int, q_width: int, kv_width: int, head_dim: int, attention_input: int
) -> dict[str, Shape]:
    """Names and shapes of one decoder layer with all that any family has; q, k and v read `attention_input`."""
    linears = {
        "self_attn.q_proj": (q_width, attention_input),
        "self_attn.k_proj": (kv_width, attention_input),
        "self_attn.v_proj": (kv_width, attention_input),
        "self_attn.o_proj": (hidden, q_width),
        **{f"mlp.{name}": shape for name, shape in mlp_shapes(hidden, inner).items()},
    }
    return {
        **{f"{name}.weight": shape for name, shape in linears.items()},
        **{f"{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")},
        **{f"{name}.bias": shape[:1] for name, shape in linears.items()},
        **{f"self_attn.{name}.weight": (head_dim,) for name in ("q_norm", "k_norm")},
    }


def mlp_shapes(hidden: int, inner: int) -> dict[str, Shape]:
    """The three matrices of a gated MLP."""
    return {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}


LAYER_PARTS = tuple(layer_shapes(1, 1, 1, 1, 1, 1))


def decoder_layer_tensors(config: LlamaConfig, prefix: str, *, attention_input: int | None = None) -> dict[str, Shape]:
    """Names and shapes of one decoder layer below `prefix`; `attention_input` is the width that q, k and v read."""
    hidden = config.hidden_size
    parts = layer_shapes(
        hidden, config.intermediate_size, config.q_width, config.kv_width, config.head_dim, attention_input or hidden
    )
    has = {
        ("q_proj.bias", "k_proj.bias", "v_proj.bias"): config.qkv_bias,
        ("o_proj.bias",): config.output_bias,
        ("gate_proj.bias", "up_proj.bias", "down_proj.bias"): config.mlp_bias,
        ("q_norm.weight", "k_norm.weight"): config.qk_norm,
    }
    absent = tuple(name for names, is_there in has.items() if not is_there for name in names)
    return {f"{prefix}{name}": shape for name, shape in parts.items() if not name.endswith(absent)}


def mtp_layer_prefix(index: int) -> str:
    """Prefix of MiMo's `index`-th MTP layer."""
    return f"model.mtp_layers.{index}."


def mtp_layer_tensors(config: LlamaConfig, index: int) -> dict[str, Shape]:
    """Names and shapes of MiMo's `index`-th MTP layer: a whole decoder layer, and what joins it to the target.

    Source: modeling_mimo.py of the published checkpoints.
    """
    hidden, prefix = config.hidden_size, mtp_layer_prefix(index)
    norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    return {
        f"{prefix}input_proj.weight": (hidden, 2 * hidden),
        **{f"{prefix}{norm}.weight": (hidden,) for norm in norms},
        **decoder_layer_tensors(config, prefix),
    }


def expected_tensors(config: LlamaConfig) -> dict[str, Shape]:
    """Every tensor that a checkpoint of this geometry must hold. A tied head is not expected."""
    layers = (decoder_layer_tensors(config, f"model.layers.{layer}.") for layer in range(config.num_hidden_layers))
    return model_tensors(config, layers)


def model_tensors(config: Any, layers: Iterable[Mapping[str, Shape]]) -> dict[str, Shape]:
    """The tensors of a whole model: its layers' between embedding, last norm, and the head where it is not tied."""
    embedding: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    head = {} if config.tied_head else {"lm_head.weight": (config.vocab_size, config.hidden_size)}
    decoder = {name: shape for layer in layers for name, shape in layer.items()}
    return {**embedding, **decoder, "model.norm.weight": (config.hidden_size,), **head}
