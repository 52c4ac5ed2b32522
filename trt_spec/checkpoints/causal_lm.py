"""A whole language model: its family from its tensors, and whether config.json and the tensors tell the same story.

model_type is a hint that picks between families of equal tensors (Llama and Mistral); it never overrules a shape.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trt_spec.checkpoints import llama
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.families import NATIVE_FAMILIES, layout_of
from trt_spec.checkpoints.inspection import (
    Inspection,
    ModelDetails,
    Note,
    Problem,
    Shape,
    columns,
    inspection_of,
    positive,
    rows,
    tensor_problems,
    wrong_kind,
)
from trt_spec.checkpoints.mtp import MtpLayers, find_mtp_layers, mtp_problems
from trt_spec.errors import CheckpointError

# Beyond these a size in config.json is a slip, and listing the tensors that it promises would fill the memory.
_LIMITS = {"num_hidden_layers": 1000, "n_routed_experts": 10_000}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EMBEDDING_ENDS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_LLAMA_PARTS = {*llama.LAYER_PARTS, "self_attn.rotary_emb.inv_freq"}
_LLAMA_CORE = {part for part in llama.LAYER_PARTS if part.endswith(".weight") and "_norm." not in part}


def matches(checkpoint: CheckpointDir) -> bool:
    """Whether this is a whole model: an embedding and at least one layer."""
    names = checkpoint.tensors
    return any(name.endswith(_EMBEDDING_ENDS) for name in names) and any(re.search(r"\.\d+\.", name) for name in names)


def describe(checkpoint: CheckpointDir) -> Inspection:
    """The inspection of a whole model on its own, as a target."""
    shapes = checkpoint.shapes
    mtp = find_mtp_layers(shapes)
    layers = _layer_parts(shapes, mtp)
    family = _family(checkpoint.config, layers, mtp)
    embedding = "model.embed_tokens.weight"
    head = "lm_head.weight" if "lm_head.weight" in shapes else embedding
    sizes = {
        "hidden_size": columns(shapes, embedding) or positive(checkpoint.config, "hidden_size"),
        "vocab_size": rows(shapes, head) or positive(checkpoint.config, "vocab_size"),
        "num_hidden_layers": len(layers),
    }
    details = ModelDetails(len(mtp.indices), mtp.layout)
    findings: list[Problem | Note] = [*mtp_problems(checkpoint.config, mtp)]
    is_native = family in NATIVE_FAMILIES
    if not is_native:
        findings.append(Note("N-FAMILY", f"family {family} is not native to the torch target"))
    else:
        findings += _size_problems(checkpoint.config, sizes)
        parsed = _parsed(checkpoint, shapes, family)
        is_native = not isinstance(parsed, Note)
        if isinstance(parsed, Problem | Note):
            findings.append(parsed)
        elif parsed is not None:
            findings += _tensor_problems(checkpoint, parsed)
            details = replace(
                details,
                num_attention_heads=parsed.num_attention_heads,
                num_key_value_heads=parsed.num_key_value_heads,
                head_dim=parsed.head_dim,
                has_tied_head=parsed.tied_head,
            )
    return inspection_of(
        checkpoint,
        findings,
        role="target",
        method="mtp" if mtp.indices else "none",
        family=family,
        is_native=is_native,
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        num_layers=len(layers),
        details=details,
    )


def _layer_parts(shapes: Mapping[str, Shape], mtp: MtpLayers) -> dict[int, set[str]]:
    """Layer number to the names in it, prediction layers left out."""
    parts: dict[int, set[str]] = defaultdict(set)
    for name in shapes:
        if name not in mtp.names and (match := _LAYER.fullmatch(name)):
            parts[int(match.group(1))].add(match.group(2))
    return dict(parts)


def _family(config: Mapping[str, Any], layers: Mapping[int, set[str]], mtp: MtpLayers) -> str:
    """The family that the tensors belong to; model_type decides only where several have the same tensors."""
    hint = config.get("model_type")
    hint = hint if isinstance(hint, str) else None
    parts = set().union(*layers.values())
    if any(part.startswith("self_attn.kv_a_proj_with_mqa") for part in parts):
        return hint if hint in ("deepseek_v2", "deepseek_v3", "deepseek_v32") else "deepseek_v3"
    if not parts or not parts <= _LLAMA_PARTS:
        if hint in llama.LLAMA_FAMILIES and parts >= _LLAMA_CORE:
            return hint  # a whole layer of this family and something beside it, which is reported by name
        return hint if hint and hint not in llama.LLAMA_FAMILIES else "unknown"
    if hint is not None and hint not in llama.LLAMA_FAMILIES:
        return hint  # the same names with other mathematics: Phi, Cohere, Granite …
    if mtp.layout == "mimo":
        return "mimo"
    if "self_attn.q_norm.weight" in parts:
        return "qwen3"
    if "self_attn.q_proj.bias" in parts and "self_attn.o_proj.bias" not in parts:
        return hint if hint in ("llama", "mimo") else "qwen2"
    return hint if hint in ("llama", "mistral") else "llama"


def _parsed(checkpoint: CheckpointDir, shapes: Mapping[str, Shape], family: str) -> Any:
    """config.json as the runtime reads it; a Problem or a Note why not, None where its sizes are missing."""
    config = checkpoint.config
    hint = config.get("model_type")
    if hint != family:
        message = f"config.json says model_type {hint!r}, the tensors are {family}"
        return Problem("E-CONFIG", message, "take config.json and the tensors from the same export")
    if any(positive(config, key) is None for key in ("hidden_size", "vocab_size", "num_hidden_layers")):
        return None
    if too_large := [key for key, limit in _LIMITS.items() if (positive(config, key) or 0) > limit]:
        message = f"config.json says {too_large[0]} {config[too_large[0]]}"
        return Problem("E-CONFIG", message, f"correct {too_large[0]}")
    try:
        return layout_of(config, str(checkpoint.path)).parse_config(config, shapes, str(checkpoint.path))
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        return wrong_kind(error)
    except CheckpointError as error:
        return Note("N-NOT-NATIVE", f"{error.what}: {error.got}")


def _tensor_problems(checkpoint: CheckpointDir, parsed: Any) -> list[Problem]:
    """Every name and shape, against the parsed config."""
    layout = layout_of(checkpoint.config, str(checkpoint.path))
    tied = {"lm_head.weight": (parsed.vocab_size, parsed.hidden_size)} if parsed.tied_head else {}
    expected, ignored = layout.expected_tensors(parsed), layout.ignored_tensors(parsed)
    return tensor_problems(checkpoint, expected, tied, checkpoint.shapes, ignored=ignored)


def _size_problems(config: Mapping[str, Any], sizes: Mapping[str, int | None]) -> Iterator[Problem]:
    for key, size in sizes.items():
        if config.get(key) != size:
            remedy = "take config.json and the tensors from the same export"
            if key == "num_hidden_layers":
                remedy += "; where it is sharded, finish the download"
            message = f"config.json says {key} {config.get(key, 'nothing')}, the tensors say {size}"
            yield Problem("E-CONFIG", message, remedy)
