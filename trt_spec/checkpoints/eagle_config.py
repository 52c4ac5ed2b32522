"""What an EAGLE draft computes: geometry from its tensors, the rest from config.json.

Two spellings of config.json are read: a flat one (SafeAILab/EAGLE, SpecForge, ModelOpt, with further keys under
`eagle_config`), and the one of speculators, where the layer's keys are under `transformer_layer_config`.
Sources: TensorRT-LLM (_torch/models/modeling_speculative.py), vLLM (llama_eagle3.py), SGLang (llama_eagle3.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trt_spec.checkpoints.hf_config import partial_rotary_factor, refuse_unsupported, rope_parameters
from trt_spec.checkpoints.inspection import Shape, columns, positive, rows
from trt_spec.checkpoints.llama import LlamaConfig, sliding_window
from trt_spec.errors import CheckpointError

NUM_CAPTURED_LAYERS = 3  # what EAGLE-3's fc fuses
LAYER = "layer."  # canonical prefix of the one decoder layer


@dataclass(frozen=True)
class EagleConfig:
    """One EAGLE draft of any generation.

    Attributes:
        layer: geometry of its decoder layer, with the sizes that the tensors have.
        is_eagle3: whether attention reads [embedding, fused features], 2H wide.
        captured_layers: EAGLE-3: target layers whose input fc fuses, rising; None for the default.
        has_norm_before_residual: EAGLE-3: the residual starts at the normed feature instead of the feature.
        recurs_on_norm: what goes into the next depth is the output behind the final norm instead of before it.
    """

    layer: LlamaConfig
    is_eagle3: bool
    captured_layers: tuple[int, ...] | None = None
    has_norm_before_residual: bool = False
    recurs_on_norm: bool = False


def flattened(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json with the layer's keys at the top level, wherever the exporter put them."""
    nested = config.get("transformer_layer_config")
    return {**config, **nested} if isinstance(nested, Mapping) else config


def extras_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section `eagle_config`, where there is one."""
    extras = config.get("eagle_config")
    return extras if isinstance(extras, Mapping) else {}


def is_eagle3(shapes: Mapping[str, Shape]) -> bool:
    """The generation, from canonical names and shapes: what attention reads, or the norm that only EAGLE-3 has."""
    hidden, reads = rows(shapes, "fc.weight") or 0, columns(shapes, f"{LAYER}self_attn.q_proj.weight")
    return reads == 2 * hidden or f"{LAYER}hidden_norm.weight" in shapes


def parse_config(config: Mapping[str, Any], shapes: Mapping[str, Shape], where: str) -> EagleConfig:
    """Reads a flattened config.json and the canonical tensor shapes.

    Raises:
        CheckpointError: heads that cannot be told or contradict the tensors, or a feature that this runtime lacks.
    """
    extras, generation3 = extras_of(config), is_eagle3(shapes)
    _refuse_unsupported(config, extras, generation3, where)
    hidden = rows(shapes, "fc.weight") or 0
    num_heads, num_kv_heads, head_dim = _heads(config, shapes, where)
    theta, scaling = rope_parameters(config)
    attention = f"{LAYER}self_attn."
    layer = LlamaConfig(
        family="llama",
        vocab_size=rows(shapes, "lm_head.weight") or positive(config, "vocab_size") or 0,
        hidden_size=hidden,
        intermediate_size=rows(shapes, f"{LAYER}mlp.gate_proj.weight") or 0,
        num_hidden_layers=1,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=_max_positions(config),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=f"{attention}q_proj.bias" in shapes,
        output_bias=f"{attention}o_proj.bias" in shapes,
        qk_norm=f"{attention}q_norm.weight" in shapes,
    )
    return EagleConfig(
        layer,
        generation3,
        captured_layers=_captured_layers(config, extras, where) if generation3 else None,
        has_norm_before_residual=generation3 and _has_norm_before_residual(config, where),
        recurs_on_norm=bool(extras.get("return_hidden_post_norm") or config.get("norm_output")),
    )


def default_captured_layers(num_hidden_layers: int) -> tuple[int, ...]:
    """The inputs of layers 2, L/2 and L − 3 of a target, which EAGLE-3 heads are trained on unless they say otherwise.

    Source: SafeAILab/EAGLE, and the default of vLLM and SGLang; TensorRT-LLM names the outputs 1, L/2 − 1 and L − 4.
    """
    return (2, num_hidden_layers // 2, num_hidden_layers - 3)


def _captured_layers(config: Mapping[str, Any], extras: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
    """Layers by their input. Under `eagle_config` exporters count outputs instead: −1 is the embedding (SGLang)."""
    key = "eagle_aux_hidden_state_layer_ids"
    named, shift = (config.get(key), 0) if config.get(key) else (extras.get(key), 1)
    if not named:
        return None
    if not isinstance(named, (list, tuple)) or not all(isinstance(layer, int) for layer in named):
        raise CheckpointError(f"config.json: {key}", where=where, got=named, expected="a list of layer numbers")
    return tuple(sorted(layer + shift for layer in named))


def _has_norm_before_residual(config: Mapping[str, Any], where: str) -> bool:
    """Where the residual starts; no is the default of flat configs (SafeAILab/EAGLE).

    A nested config has to say it: where it does not, speculators' own default is no and vLLM's loader takes yes.
    """
    said = config.get("norm_before_residual")
    if said is None and isinstance(config.get("transformer_layer_config"), Mapping):
        raise CheckpointError(
            "config.json does not say norm_before_residual",
            where=where,
            expected="true or false, as the draft was trained",
            remedy="add the key from the training run; a wrong guess drafts badly and shows nowhere else",
        )
    return bool(said)


def _max_positions(config: Mapping[str, Any]) -> int:
    """Where drafting ends; a sliding window ends it too, since the draft layer attends to everything it has cached."""
    positions = positive(config, "max_position_embeddings") or 2048  # the default of transformers' LlamaConfig
    return min(positions, sliding_window(config) or positions)


def _heads(config: Mapping[str, Any], shapes: Mapping[str, Shape], where: str) -> tuple[int, int, int]:
    """(query heads, key heads, head width): rows of q and k, split by the width that q_norm or config.json tells."""
    q, kv = (rows(shapes, f"{LAYER}self_attn.{name}_proj.weight") or 0 for name in "qk")
    said_heads = positive(config, "num_attention_heads")
    head_dim = rows(shapes, f"{LAYER}self_attn.q_norm.weight") or positive(config, "head_dim")
    if head_dim is None and said_heads is not None:
        head_dim = q // said_heads
    if head_dim is None:
        raise CheckpointError(
            "config.json names neither head_dim nor num_attention_heads; the tensors cannot tell",
            where=where,
            remedy="add config.json of the draft's export",
        )
    heads, kv_heads = (q // head_dim, kv // head_dim) if head_dim else (0, 0)
    fits = heads > 0 and kv_heads > 0 and heads % kv_heads == 0 and (heads * head_dim, kv_heads * head_dim) == (q, kv)
    if not fits or said_heads not in (None, heads) or head_dim % 2:
        raise CheckpointError(
            "config.json and the attention tensors contradict each other",
            where=where,
            got=f"num_attention_heads {said_heads}, head_dim {positive(config, 'head_dim')}, q {q} rows, k {kv} rows",
            expected="q of num_attention_heads · head_dim rows, k of as many for fewer heads; head_dim even",
            remedy="take config.json and the tensors from the same export",
        )
    return heads, kv_heads, head_dim


def _refuse_unsupported(config: Mapping[str, Any], extras: Mapping[str, Any], generation3: bool, where: str) -> None:
    """Refuses by name what would change the computation and is not computed here."""
    checks = {
        "hidden_act": (value := config.get("hidden_act", "silu"), value in ("silu", "swish"), "silu"),
        "partial_rotary_factor": (value := partial_rotary_factor(config), value == 1.0, "1.0"),
        "logit_scale": (value := config.get("logit_scale") or 1, value == 1, "1"),
        "kv_lora_rank": (value := config.get("kv_lora_rank"), not value, "a layer with keys and values per head"),
        "parallel_draft_step": (
            value := config.get("parallel_draft_step") or extras.get("parallel_draft_step") or 1,
            value == 1,
            "1",
        ),
        "eagle_config.use_aux_hidden_state": (
            value := extras.get("use_aux_hidden_state", generation3),
            bool(value) == generation3,
            f"{generation3}, as the tensors have it",
        ),
    }
    for key in ("eh_proj_before_attn", "use_mtp_layernorm"):
        checks[f"eagle_config.{key}"] = (extras.get(key), not extras.get(key), "false")
    refuse_unsupported(checks, where)
