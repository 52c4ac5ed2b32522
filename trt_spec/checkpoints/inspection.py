"""What `inspect` finds out: role, method, family, sizes, and every problem with its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trt_spec.checkpoints.exact import ExactReport, likely_remedy
from trt_spec.checkpoints.safetensors_dir import CheckpointDir

Shape = tuple[int, ...]


class Problem(NamedTuple):
    """Something that has to be put right before the checkpoint can be used."""

    code: str
    message: str
    remedy: str


class Note(NamedTuple):
    """Something worth knowing that is not wrong."""

    code: str
    message: str


@dataclass
class Inspection:
    """A checkpoint as its tensors describe it.

    Attributes:
        path: Where it is.
        role: "target" for a whole model on its own, "draft" for heads and for a model inspected against a target.
        method: "none" for a plain target, "mtp" for a target with prediction layers, else the method that it drafts by.
        family: Model family (llama, mistral, qwen2, qwen3, mimo, deepseek_v3, or config.json's word for others); for
            heads the family of their decoder layer, None where they have none.
        is_native: Whether the torch target runs it.
        fits_target: Whether it fits the target that it was inspected against; None without one.
        vocab_size: Rows of the output head (of the embedding, where the head is tied or the target's).
        hidden_size: Width of the hidden state.
        num_layers: Decoder layers, prediction layers not counted.
        max_position_embeddings: Longest position that config.json names.
        problems: What has to be put right.
        notes: What is worth knowing.
        details: Facts of the layout: heads, vocabulary maps, prediction layers, tokenizer.
    """

    path: str
    role: str
    method: str
    family: str | None
    is_native: bool
    vocab_size: int | None
    hidden_size: int | None
    num_layers: int
    num_tensors: int
    num_parameters: int
    dtypes: dict[str, int]
    max_position_embeddings: int | None = None
    fits_target: bool | None = None
    problems: list[Problem] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: what `trt-spec inspect --json` prints."""
        fields = {key: value for key, value in vars(self).items() if key not in ("problems", "notes", "details")}
        return {
            **fields,
            **self.details,
            "problems": [problem._asdict() for problem in self.problems],
            "notes": [note._asdict() for note in self.notes],
        }


def start(checkpoint: CheckpointDir, **fields: Any) -> Inspection:
    """An `Inspection` with what every layout has in common filled in."""
    tensors = checkpoint.tensors.values()
    inspection = Inspection(
        path=str(checkpoint.path),
        num_tensors=len(checkpoint.tensors),
        num_parameters=checkpoint.num_elements,
        dtypes=dict(Counter(info.dtype for info in tensors)),
        max_position_embeddings=positive(checkpoint.config, "max_position_embeddings"),
        **fields,
    )
    # Vocabulary maps are integers by nature; any other tensor that is no plain float belongs to a quantised export.
    odd = sorted(
        {info.dtype for name, info in checkpoint.tensors.items() if name.rpartition(".")[2] not in ("d2t", "t2d")}
        - {"bfloat16", "float16", "float32", "float64"}
    )
    if odd or checkpoint.config.get("quantization_config"):
        inspection.problems.append(
            Problem(
                "E-DTYPE",
                "the checkpoint is quantised" + (f" (tensors of type {', '.join(odd)})" if odd else ""),
                "use its bfloat16, float16 or float32 original",
            )
        )
    return inspection


def positive(config: Mapping[str, Any], key: str) -> int | None:
    """A size from config.json; None where it is absent or no positive whole number."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def rows(shapes: Mapping[str, Shape], name: str) -> int | None:
    """First size of a tensor; None where it is absent or has none (files can hold anything under any name)."""
    shape = shapes.get(name, ())
    return shape[0] if shape else None


def columns(shapes: Mapping[str, Shape], name: str) -> int | None:
    """Last size of a matrix; None where the tensor is absent or no matrix."""
    shape = shapes.get(name, ())
    return shape[-1] if len(shape) == 2 else None


def tensor_problems(
    checkpoint: CheckpointDir,
    expected: Mapping[str, Shape],
    optional: Mapping[str, Shape],
    found: Mapping[str, Shape],
    unexpected: Iterable[str] = (),
) -> list[Problem]:
    """Missing, unexpected and mis-shaped tensors, each kind with all names; nothing is read.

    Args:
        checkpoint: For the likely remedy.
        expected: Canonical name to shape of what must be there.
        optional: The same for what may be.
        found: Canonical name to shape of what is.
        unexpected: Stored names that no table knows.
    """
    wanted = {**expected, **optional}
    report = ExactReport(str(checkpoint.path), checkpoint.config)
    report.missing = [name for name in expected if name not in found]
    report.unexpected = [*unexpected, *(name for name in found if name not in wanted)]
    report.misshaped = {
        name: (shape, tuple(wanted[name])) for name, shape in found.items() if name in wanted and shape != wanted[name]
    }
    remedy = likely_remedy(report)
    problems = []
    if report.missing:
        problems.append(Problem("E-MISSING", "missing tensors: " + ", ".join(report.missing), remedy))
    if report.unexpected:
        problems.append(Problem("E-UNEXPECTED", "unexpected tensors: " + ", ".join(report.unexpected), remedy))
    if report.misshaped:
        shapes = ", ".join(f"{name} {list(got)} not {list(want)}" for name, (got, want) in report.misshaped.items())
        problems.append(Problem("E-SHAPE", "tensors of another shape: " + shapes, remedy))
    return problems
