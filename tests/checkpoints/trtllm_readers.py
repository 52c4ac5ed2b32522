"""What TensorRT-LLM's loaders look for, written down from its sources and independent of the package's own tables.

EAGLE-3: every name but lm_head gets "model." before it, then each module takes the weights below its own name
(_torch/models/modeling_speculative.py). EAGLE-1: names are translated section by section and looked up as they are
(models/model_weights_loader.py, models/eagle/model.py). Medusa: models/medusa/weight.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shapes = dict[str, tuple[int, ...]]


def eagle3_parameters(config: Mapping[str, Any]) -> Shapes:
    """Parameters of Eagle3ForCausalLM for a config, under the names of the module tree, but for a shared head."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    hidden_in = config.get("target_hidden_size", hidden)
    extras = config.get("eagle_config", {})
    assert config["num_hidden_layers"] == 1  # more make a list of layers under other names
    shapes: Shapes = {
        "model.fc.weight": (hidden, 3 * hidden_in),
        "model.norm.weight": (hidden,),
        "model.midlayer.input_layernorm.weight": (hidden,),
        "model.midlayer.hidden_norm.weight": (hidden,),
        "model.midlayer.post_attention_layernorm.weight": (hidden,),
        "model.midlayer.self_attn.q_proj.weight": (q, 2 * hidden),
        "model.midlayer.self_attn.k_proj.weight": (kv, 2 * hidden),
        "model.midlayer.self_attn.v_proj.weight": (kv, 2 * hidden),
        "model.midlayer.self_attn.o_proj.weight": (hidden, q),
        "model.midlayer.mlp.gate_proj.weight": (inner, hidden),
        "model.midlayer.mlp.up_proj.weight": (inner, hidden),
        "model.midlayer.mlp.down_proj.weight": (hidden, inner),
    }
    if config.get("attention_bias", False):
        rows = {"q": q, "k": kv, "v": kv, "o": hidden}
        shapes |= {f"model.midlayer.self_attn.{name}_proj.bias": (size,) for name, size in rows.items()}
    if config.get("bias", False):
        shapes["model.fc.bias"] = (hidden,)
    if config["draft_vocab_size"] != config["vocab_size"]:  # an AttributeError where the key is not there
        shapes["model.d2t"] = (config["draft_vocab_size"],)
    if hidden_in != hidden:
        shapes["model.embed_tokens.weight"] = (config["vocab_size"], hidden)
    if extras.get("norm_before_fc", False):
        shapes["model.input_norm.weight"] = (3 * hidden_in,)
    if config.get("fc_norm", False):
        shapes |= {f"model.fc_norm.{index}.weight": (hidden_in,) for index in range(3)}
    return shapes


def eagle3_given(stored: Shapes) -> Shapes:
    """What the loader makes of a checkpoint's names, by version 1.0: no other remapping."""
    return {name if "lm_head" in name else f"model.{name}": shape for name, shape in stored.items()}


def eagle3_class(config: Mapping[str, Any]) -> str:
    """The name that is looked up in the registry of models."""
    architecture = config["architectures"][0]
    return "EAGLE3" + architecture.replace("Eagle3", "") if "draft_vocab_size" in config else architecture


def eagle_parameters(config: Mapping[str, Any]) -> Shapes:
    """What the engine path's converter reads of an EAGLE-1 checkpoint, by stored name."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    layers = range(config["num_hidden_layers"])
    shapes: Shapes = {
        "fc.weight": (hidden, 2 * hidden),
        "fc.bias": (hidden,),
        "embed_tokens.weight": (config["vocab_size"], hidden),
    }
    for layer in layers:
        prefix = f"layers.{layer}"
        shapes |= {
            f"{prefix}.self_attn.q_proj.weight": (q, hidden),
            f"{prefix}.self_attn.k_proj.weight": (kv, hidden),
            f"{prefix}.self_attn.v_proj.weight": (kv, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, q),
            f"{prefix}.mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}.mlp.up_proj.weight": (inner, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, inner),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
        }
    return shapes


def medusa_parameters(num_heads: int, num_layers: int, hidden: int, vocab: int) -> Shapes:
    """What load_medusa_hf reads, whatever else there is."""
    shapes: Shapes = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            shapes[f"{head}.{layer}.linear.weight"] = (hidden, hidden)
            shapes[f"{head}.{layer}.linear.bias"] = (hidden,)
        shapes[f"{head}.{num_layers}.weight"] = (vocab, hidden)
    return shapes
