"""How TensorRT-LLM reads Medusa heads and whole models: what a converted checkpoint holds. Nothing is read or written.

Source: NVIDIA/TensorRT-LLM, tensorrt_llm/models/medusa/weight.py and medusa/model.py, models/eagle/model.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trt_spec.checkpoints import medusa
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.inspection import Inspection
from trt_spec.checkpoints.streaming import Piece, piece
from trt_spec.errors import CheckpointError

MEDUSA_FILE = "medusa_lm_head.safetensors"  # the name that the converter looks for


@dataclass
class Layout:
    """One checkpoint as a version reads it.

    Attributes:
        files: name of a safetensors file to what it holds.
        config: config.json.
        notes: what is worth knowing.
        facts: what the engine's settings have to repeat, such as `eagle3_layers_to_capture`.
    """

    files: dict[str, list[Piece]]
    config: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def medusa_heads(checkpoint: CheckpointDir, target: Inspection | None) -> Layout:
    """Medusa heads for the engine path: nn.Sequential's numbers, a bias in every block, counts in config.json."""
    renamed, _ = medusa.canonical(checkpoint)
    num_heads, num_blocks = medusa.count_heads(renamed.tensors)
    if "heads.0.lm_head.weight" not in renamed.tensors:
        what = "these Medusa heads share the target's output, and TensorRT-LLM reads heads with outputs of their own"
        raise refusal(checkpoint, what, remedy="use them with build.target torch, or export heads with outputs")
    pieces = []
    for head in range(num_heads):
        for block in range(num_blocks):
            stored = f"heads.{head}.blocks.{block}.linear"
            weight = piece(renamed, f"{stored}.weight", f"{head}.{block}.linear.weight")
            name = f"{head}.{block}.linear.bias"
            has_bias = f"{stored}.bias" in renamed.tensors
            bias = piece(renamed, f"{stored}.bias", name) if has_bias else Piece(name, weight.dtype, weight.shape[:1])
            pieces += [weight, bias]
        pieces.append(piece(renamed, f"heads.{head}.lm_head.weight", f"{head}.{num_blocks}.weight"))
    counts = {"medusa_num_heads": num_heads, "medusa_num_layers": num_blocks}
    notes = []
    if target is not None and target.family not in ("llama", "mistral", "qwen2", "mixtral"):
        notes.append(f"the converter knows Medusa heads for Llama, Mixtral and Qwen2; the target is {target.family}")
    return Layout({MEDUSA_FILE: pieces}, {**checkpoint.config, **counts}, notes, dict(counts))


def causal_lm(checkpoint: CheckpointDir) -> Layout:
    """A whole model for the engine path: a tied head is written out, since its EAGLE converter looks for it."""
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    is_tied = head not in checkpoint.tensors and checkpoint.config.get("tie_word_embeddings") is not False
    if not is_tied or embedding not in checkpoint.tensors:
        return as_is(checkpoint)
    files: dict[str, list[Piece]] = {}
    for name, info in checkpoint.tensors.items():
        written = files.setdefault(f"{info.file.rpartition('.')[0]}.safetensors", [])
        written.append(piece(checkpoint, name))
        if name == embedding:
            written.append(piece(checkpoint, embedding, head))
    return Layout(files, {**checkpoint.config, "tie_word_embeddings": False})


def as_is(checkpoint: CheckpointDir) -> Layout:
    """A checkpoint that is read as it is: no file to write."""
    return Layout({}, dict(checkpoint.config))


def refusal(checkpoint: CheckpointDir, what: str, **fields: Any) -> CheckpointError:
    """The error for a checkpoint that no conversion makes readable."""
    return CheckpointError(what, where=str(checkpoint.path), code="E-CONVERT", **fields)
