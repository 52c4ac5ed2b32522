"""How TensorRT-LLM reads EAGLE heads: names, config keys, and what its readers do not compute.

Nothing is read or written here. Sources: NVIDIA/TensorRT-LLM, _torch/models/modeling_speculative.py, modeling_auto.py
and _torch/speculative/eagle3.py (EAGLE-3, PyTorch backend), models/eagle/model.py with model_weights_loader.py (EAGLE-1
and 2, engine path). Dates of the keys: pull requests 11010, 12561 and 14988, and issue 6492.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from trt_spec.checkpoints import eagle
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.eagle_config import LAYER, EagleConfig, default_captured_layers, extras_of, parse_config
from trt_spec.checkpoints.hf_config import rope_parameters
from trt_spec.checkpoints.inspection import Inspection, Shape, columns, positive, rows
from trt_spec.checkpoints.streaming import Piece, piece
from trt_spec.checkpoints.trtllm.layouts import Layout, refusal

HEAD_FILE = "model.safetensors"
CAPTURE_SINCE = Version("1.1.0")  # eagle3_layers_to_capture is a field from here on
# Read in sources of these versions, absent in those of 1.1; in between nobody looked.
NORM_BEFORE_FC_SINCE = Version("1.3.0rc20")
FC_NORMS_SINCE = Version("1.3.0rc21")

_ATTENTION_BIASES = tuple(f"{LAYER}self_attn.{name}_proj.bias" for name in "qkvo")
_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
# Keys that another one written here stands for.
_REPLACED = ("transformer_layer_config", "rope_parameters", "auto_map", "norm_before_fc", "norm_output", "fc_norm")


def eagle3(checkpoint: CheckpointDir, version: Version, target: Inspection | None) -> Layout:
    """An EAGLE-3 head for the PyTorch backend; raises CheckpointError where its reader does not compute the head."""
    renamed, _ = eagle.canonical(checkpoint)
    shapes, config = renamed.shapes, parse_config(renamed.config, renamed.shapes, str(checkpoint.path))
    _refuse_eagle3(renamed, shapes, config, version)
    layout = Layout(
        {HEAD_FILE: [piece(renamed, name, _with_layer(name, "midlayer.")) for name in renamed.tensors]},
        _eagle_config(renamed, shapes, config, target),
    )
    # Keys of eagle_config, wherever the exporter put them.
    told = {"norm_before_fc": "input_norm.weight" in shapes, "return_hidden_post_norm": config.recurs_on_norm}
    if extras := {**extras_of(renamed.config), **{key: True for key, is_set in told.items() if is_set}}:
        layout.config["eagle_config"] = extras
    told = {"fc_norm": "fc_norm.0.weight" in shapes, "bias": "fc.bias" in shapes}
    layout.config |= {key: True for key, is_set in told.items() if is_set}
    _size(renamed, shapes, layout)
    if "lm_head.weight" not in shapes:
        layout.notes.append("the head has no lm_head.weight; TensorRT-LLM takes the target's")
    _capture(checkpoint, config, version, target, layout)
    return layout


def _size(checkpoint: CheckpointDir, shapes: Mapping[str, Shape], layout: Layout) -> None:
    """Vocabularies and the target's width, as a reader sizes its tensors by them."""
    hidden, target_hidden = layout.config["hidden_size"], (columns(shapes, "fc.weight") or 0) // 3
    embedded, head_rows = rows(shapes, "embed_tokens.weight"), rows(shapes, "lm_head.weight")
    if target_hidden != hidden:
        layout.config["target_hidden_size"] = target_hidden
        if embedded is None or head_rows is None or ("d2t" not in shapes and head_rows != embedded):
            raise refusal(
                checkpoint,
                "a head of another width than its target needs an embedding and a head of its own, of one vocabulary",
                got=f"embed_tokens.weight of {embedded or 'no'} rows, lm_head.weight of {head_rows or 'no'} rows",
                remedy="export the head with both",
            )
        layout.config["vocab_size"] = embedded
    elif embedded is not None:
        layout.notes.append("TensorRT-LLM takes the target's embedding; the head's own is kept and not read")
    if "d2t" not in shapes and head_rows is not None:
        layout.config["vocab_size"] = head_rows  # where the two differ a reader waits for a d2t
    layout.config["draft_vocab_size"] = head_rows or layout.config["vocab_size"]


def _refuse_eagle3(
    checkpoint: CheckpointDir, shapes: Mapping[str, Shape], config: EagleConfig, version: Version
) -> None:
    """Refuses heads that the backend would load, or half load, and draft badly with."""
    num_biases = sum(name in shapes for name in _ATTENTION_BIASES)
    for what, is_there, reader in (
        ("norm_before_residual", config.has_norm_before_residual, "starts the residual before the norm, always"),
        ("q_norm and k_norm", config.layer.qk_norm, "has no norm on queries and keys"),
        ("biases of attention", 0 < num_biases < 4, "has biases on all of q, k, v and o, or on none"),
    ):
        if is_there:
            raise refusal(
                checkpoint,
                f"the PyTorch backend of TensorRT-LLM does not compute this head: it {reader}",
                got=what,
                remedy="set build.target to torch, which computes it, or use a head without it",
            )
    for what, is_there, first in (
        ("norm_before_fc", "input_norm.weight" in shapes, NORM_BEFORE_FC_SINCE),
        ("norm_output", config.recurs_on_norm, NORM_BEFORE_FC_SINCE),
        ("fc_norm", "fc_norm.0.weight" in shapes, FC_NORMS_SINCE),
    ):
        if is_there and version < first:
            raise refusal(
                checkpoint,
                f"TensorRT-LLM {version} is not known to compute this head",
                got=what,
                expected=f"{first} or later",
                remedy=f"set build.tensorrt_llm_version to {first} or later, or build.target to torch",
            )


def _capture(
    checkpoint: CheckpointDir, config: EagleConfig, version: Version, target: Inspection | None, layout: Layout
) -> None:
    """Which layers the target hands over. TensorRT-LLM names them by their output, and takes -1 for the last one."""
    if config.captured_layers is None:
        return
    outputs = [layer - 1 for layer in config.captured_layers]
    if outputs[0] < 0:
        raise refusal(
            checkpoint,
            "the head reads the target's embedding, which TensorRT-LLM cannot hand over",
            got=f"captured layers {outputs}",
            remedy="set build.target to torch, or use a head that reads layers of the target",
        )
    is_default = target is not None and config.captured_layers == default_captured_layers(target.num_layers)
    if version < CAPTURE_SINCE and not is_default:
        raise refusal(
            checkpoint,
            f"TensorRT-LLM {version} captures layers 1, L/2 - 1 and L - 4 of a target of L layers and no others",
            got=outputs,
            remedy=f"set build.tensorrt_llm_version to {CAPTURE_SINCE} or later"
            + ("" if target else "; where these are the same layers, name the target, to show it"),
        )
    if not is_default:
        layout.facts["eagle3_layers_to_capture"] = outputs


def eagle12(checkpoint: CheckpointDir, target_dir: CheckpointDir | None, target: Inspection | None) -> Layout:
    """An EAGLE-1 or 2 head for the engine path; raises CheckpointError where that does not compute the head."""
    renamed, _ = eagle.canonical(checkpoint)
    shapes, config = renamed.shapes, parse_config(renamed.config, renamed.shapes, str(checkpoint.path))
    alien = ["norm.weight", f"{LAYER}input_layernorm.weight", *_ATTENTION_BIASES]
    alien += [f"{LAYER}self_attn.{name}_norm.weight" for name in "qk"]
    if found := [name for name in alien if name in shapes]:
        raise refusal(
            checkpoint,
            "the engine path of TensorRT-LLM does not read parts of this head",
            got=", ".join(found),
            expected="the layer of the EAGLE release: no norm before it or behind it, no biases",
            remedy="set build.target to torch, which computes them",
        )
    own = [name for name in renamed.tensors if name != "lm_head.weight"]
    pieces = [piece(renamed, name, _with_layer(name, "layers.0.")) for name in own]
    notes = []
    if "lm_head.weight" in shapes:
        notes.append("the engine path takes the target's head; the draft's own lm_head.weight is left out")
    if "fc.bias" not in shapes:
        pieces.append(Piece("fc.bias", renamed.tensors["fc.weight"].dtype, (config.layer.hidden_size,)))
    if "embed_tokens.weight" not in shapes:
        pieces.append(_embedding_of(checkpoint, target_dir))
    _refuse_other_rope(checkpoint, config, target_dir)
    return Layout({HEAD_FILE: pieces}, _eagle_config(renamed, shapes, config, target), notes)


def _embedding_of(checkpoint: CheckpointDir, target: CheckpointDir | None) -> Piece:
    name = "model.embed_tokens.weight"
    if target is None or name not in target.tensors:
        raise refusal(
            checkpoint,
            "the head has no embedding of its own, and the engine path reads it from there",
            got="no embed_tokens.weight",
            remedy="name the target's checkpoint; its embedding is written beside the head",
        )
    return piece(target, name, "embed_tokens.weight")


def _refuse_other_rope(checkpoint: CheckpointDir, config: EagleConfig, target: CheckpointDir | None) -> None:
    """The engine path gives the head the target's rotary base and scaling, whatever the head's config says."""
    if target is None:
        return
    theta, scaling = rope_parameters(target.config)
    if (theta, scaling) != (config.layer.rope_theta, config.layer.rope_scaling):
        raise refusal(
            checkpoint,
            "the engine path gives the head the target's rotary positions, and the head was made for others",
            got=f"rope_theta {config.layer.rope_theta}, scaling {config.layer.rope_scaling or None}",
            expected=f"rope_theta {theta}, scaling {scaling or None}, as in the target",
            remedy="set build.target to torch; where the head's config.json is wrong, correct it",
        )


def _eagle_config(
    checkpoint: CheckpointDir, shapes: Mapping[str, Shape], config: EagleConfig, target: Inspection | None
) -> dict[str, Any]:
    """config.json with what the tensors say: readers build their modules from it, one layer for each that it counts."""
    layer = config.layer
    kept = {key: value for key, value in checkpoint.config.items() if key not in _REPLACED}
    dtype = checkpoint.tensors["fc.weight"].dtype
    written: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],  # readers put EAGLE3 before it where draft_vocab_size is there
        "model_type": "llama",
        "num_hidden_layers": 1,
        **{key: getattr(layer, key) for key in _SIZES},
        "hidden_act": "silu",
        "rms_norm_eps": layer.rms_norm_eps,
        "rope_theta": layer.rope_theta,
        "rope_scaling": layer.rope_scaling or None,
        "max_position_embeddings": positive(checkpoint.config, "max_position_embeddings") or 2048,
        "vocab_size": _target_vocab_size(checkpoint, shapes, target),
        "tie_word_embeddings": False,  # often copied from the target; with it a reader ties to an embedding it lacks
        "torch_dtype": dtype,
    }
    if "dtype" in checkpoint.config:
        written["dtype"] = dtype
    if _ATTENTION_BIASES[0] in shapes or "attention_bias" in kept:
        written["attention_bias"] = _ATTENTION_BIASES[0] in shapes
    return {**kept, **written}


def _target_vocab_size(checkpoint: CheckpointDir, shapes: Mapping[str, Shape], target: Inspection | None) -> int:
    """Rows of the vocabulary that the draft's ids are mapped into; by default what config.json says."""
    said = positive(checkpoint.config, "vocab_size")
    found = (
        (target.vocab_size if target else None)
        or rows(shapes, "t2d")
        or rows(shapes, "embed_tokens.weight")
        or said
        or (None if "d2t" in shapes else rows(shapes, "lm_head.weight"))
    )
    if found is None:
        raise refusal(
            checkpoint,
            "neither the tensors nor config.json tell the target's vocabulary",
            remedy="name the target's checkpoint, or add vocab_size to config.json",
        )
    return found


def _with_layer(name: str, stored: str) -> str:
    """A canonical name with the layer called as a reader calls it."""
    return stored + name.removeprefix(LAYER) if name.startswith(LAYER) else name
