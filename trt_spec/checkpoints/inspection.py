"""What `inspect` finds out: role, method, family, sizes, and every problem with its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.exact import ExactReport, Shape, likely_remedy
from trt_spec.checkpoints.tokenizer_pair import TokenizerPair


@dataclass(frozen=True)
class Problem:
    """Something that has to be put right before the checkpoint can be used.

    Attributes:
        code: a short stable word.
        message, remedy: what is wrong and what to do, for people.
        about: whose problem it is; a draft that is inspected for a target has the target's too.
        limits_only: the build target that cannot use the checkpoint as it is; None where none can.
        setting: the key and value of config.json that are behind it, where that is all.
    """

    code: str
    message: str
    remedy: str
    about: Literal["checkpoint", "target"] = "checkpoint"
    limits_only: str | None = None
    setting: str | None = None

    def of_target(self) -> Problem:
        """The same, seen from a draft of that target."""
        return replace(self, about="target", message=f"the target: {self.message}")


@dataclass(frozen=True)
class Note:
    """Something worth knowing that is not wrong."""

    code: str
    message: str


@dataclass(frozen=True)
class TokenizerFacts:
    """The tokenizer of a whole model: ids, those that end a text, whether it formats chats."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool


@dataclass(frozen=True)
class ModelDetails:
    """A whole model. What is None is not known, and not printed."""

    num_mtp_layers: int
    mtp_layout: str | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    has_tied_head: bool | None = None
    tokenizer: TokenizerFacts | None = None
    tokenizer_pair: TokenizerPair | None = None


@dataclass(frozen=True)
class MedusaDetails:
    """Medusa heads: how many, residual blocks of each, and whether they have outputs or share the target's."""

    num_heads: int
    num_blocks: int
    has_own_outputs: bool


@dataclass(frozen=True)
class EagleDetails:
    """An EAGLE draft layer: widths, what it has of its own, its vocabulary map, the target layers that it reads."""

    target_hidden_size: int
    has_own_embedding: bool
    num_embeddings: int | None
    has_own_head: bool
    draft_vocab_size: int | None
    has_d2t: bool
    mapped_vocab_size: int | None
    captured_layers: tuple[int, ...] | None


@dataclass(frozen=True)
class Inspection:
    """A checkpoint as its tensors describe it.

    Attributes:
        path: Where it is.
        role: "target" for a whole model on its own, "draft" for heads and for a model inspected against a target.
        method: "none" for a plain target, "mtp" for a target with prediction layers, else the method that it drafts by.
        family: Model family (llama, mistral, qwen2, qwen3, mimo, deepseek_v3, or config.json's word for others); for
            heads the family of their decoder layer, None where they have none.
        is_native: Whether the torch target runs it.
        vocab_size: Rows of the output head (of the embedding, where the head is tied or the target's).
        hidden_size: Width of the hidden state.
        num_layers: Decoder layers, prediction layers not counted.
        max_position_embeddings: Longest position that config.json names.
        details: What only its layout has.
        fits_target: Whether it fits the target that it was inspected against; None without one.
        problems: What has to be put right.
        notes: What is worth knowing.
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
    max_position_embeddings: int | None
    details: ModelDetails | MedusaDetails | EagleDetails
    fits_target: bool | None = None
    problems: tuple[Problem, ...] = ()
    notes: tuple[Note, ...] = ()

    def with_findings(self, findings: Iterable[Problem | Note], **changes: Any) -> Inspection:
        """With further problems and notes, and other fields changed."""
        found = list(findings)
        problems = (*self.problems, *(one for one in found if isinstance(one, Problem)))
        notes = (*self.notes, *(one for one in found if isinstance(one, Note)))
        return replace(self, problems=problems, notes=notes, **changes)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: what `trt-spec inspect --json` prints, the layout's details beside the rest."""
        fields = asdict(self)
        details = fields.pop("details")
        if isinstance(self.details, ModelDetails):
            details = {key: value for key, value in details.items() if value is not None}
        problems = [{key: one[key] for key in ("code", "message", "remedy")} for one in fields.pop("problems")]
        return {**fields, **details, "problems": problems, "notes": fields.pop("notes")}


def inspection_of(checkpoint: CheckpointDir, findings: Iterable[Problem | Note], **fields: Any) -> Inspection:
    """An `Inspection` with what every layout has in common filled in."""
    inspection = Inspection(
        path=str(checkpoint.path),
        num_tensors=len(checkpoint.tensors),
        num_parameters=sum(info.num_elements for info in checkpoint.tensors.values()),
        dtypes=dict(Counter(info.dtype for info in checkpoint.tensors.values())),
        max_position_embeddings=positive(checkpoint.config, "max_position_embeddings"),
        **fields,
    )
    return inspection.with_findings([*_quantisation(checkpoint), *findings])


def _quantisation(checkpoint: CheckpointDir) -> list[Problem]:
    # Vocabulary maps are integers by nature; any other tensor that is no plain float belongs to a quantised export.
    odd = sorted(
        {info.dtype for name, info in checkpoint.tensors.items() if name.rpartition(".")[2] not in ("d2t", "t2d")}
        - {"bfloat16", "float16", "float32", "float64"}
    )
    if not odd and not checkpoint.config.get("quantization_config"):
        return []
    message = "the checkpoint is quantised" + (f" (tensors of type {', '.join(odd)})" if odd else "")
    return [Problem("E-DTYPE", message, "use its bfloat16, float16 or float32 original")]


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


def wrong_kind(error: Exception) -> Problem:
    """A value of config.json that cannot be reckoned with, from what reading it raised."""
    remedy = "correct config.json, or take it from the original release"
    return Problem("E-CONFIG", f"config.json has a value of a wrong kind: {error}", remedy)


def tensor_problems(
    checkpoint: CheckpointDir,
    expected: Mapping[str, Shape],
    optional: Mapping[str, Shape],
    found: Mapping[str, Shape],
    unknown: Iterable[str] = (),
    ignored: Iterable[str] = (),
) -> list[Problem]:
    """Missing, unexpected and mis-shaped tensors, each kind with all names; nothing is read.

    Args:
        expected, optional, found: canonical name to shape of what must be there, may be, and is.
        unknown: Stored names that no table knows.
        ignored: Patterns of names that are left alone.
    """
    report = ExactReport.of(str(checkpoint.path), checkpoint.config, found, expected, optional, ignored)
    report.unexpected[:0] = unknown
    shapes = [f"{name} {list(got)} not {list(want)}" for name, (got, want) in report.misshaped.items()]
    kinds = (
        ("E-MISSING", "missing tensors", report.missing),
        ("E-UNEXPECTED", "unexpected tensors", report.unexpected),
        ("E-SHAPE", "tensors of another shape", shapes),
    )
    remedy = likely_remedy(report)
    return [Problem(code, f"{words}: {', '.join(names)}", remedy) for code, words, names in kinds if names]
