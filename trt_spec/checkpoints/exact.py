"""What a strict load found: missing, unexpected, mis-shaped and non-finite tensors, and what most likely caused it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trt_spec.errors import CheckpointError

Shape = tuple[int, ...]

_QUANTISED = re.compile(
    r".*\.(qweight|qzeros|scales|g_idx|weight_scale|weight_scale_inv|weight_packed|weight_scale_2|input_scale|"
    r"weight\.(absmax|quant_map|quant_state.*))"
)


@dataclass
class ExactReport:
    """Names that stand in the way of a strict load of the checkpoint `where` with its `config`."""

    where: str
    config: dict[str, Any]
    missing: list[str]
    unexpected: list[str]
    misshaped: dict[str, tuple[Shape, Shape]]  # got, expected
    not_finite: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        where: str,
        config: dict[str, Any],
        found: Mapping[str, Shape],
        expected: Mapping[str, Shape],
        optional: Mapping[str, Shape],
        ignored: Iterable[str] = (),
    ) -> ExactReport:
        """What is there against what has to be or may be; names that match an `ignored` pattern are left alone."""
        wanted, patterns = {**expected, **optional}, [re.compile(pattern) for pattern in ignored]
        strange = [name for name in found if name not in wanted]
        return cls(
            where,
            config,
            missing=[name for name in expected if name not in found],
            unexpected=[name for name in strange if not any(pattern.fullmatch(name) for pattern in patterns)],
            misshaped={
                name: (shape, tuple(wanted[name]))
                for name, shape in found.items()
                if name in wanted and shape != tuple(wanted[name])
            },
        )

    def raise_if_any(self) -> None:
        """Raises one `CheckpointError` with all names; returns where there are none."""
        shapes = [f"{name} is {list(got)}, not {list(expected)}" for name, (got, expected) in self.misshaped.items()]
        kinds = (
            ("missing", "missing", sorted(self.missing)),
            ("unexpected", "unexpected", self.unexpected),
            ("of another shape", "wrong shape", shapes),
            ("not finite", "not finite", self.not_finite),
        )
        if details := [f"{word}: {name}" for _, word, names in kinds for name in names]:
            summary = ", ".join(f"{len(names)} {kind}" for kind, _, names in kinds if names)
            raise CheckpointError(
                f"the tensors are not those of this model: {summary}",
                where=self.where,
                details=details,
                remedy=likely_remedy(self),
                code="tensors",
            )


def likely_remedy(report: ExactReport) -> str:
    """The most likely cause, as an instruction."""
    if report.config.get("quantization_config") or any(_QUANTISED.fullmatch(name) for name in report.unexpected):
        return "the checkpoint is quantised; use its bfloat16, float16 or float32 original"
    if prefix := _other_prefix(report.missing, report.unexpected):
        return prefix
    if report.missing == ["lm_head.weight"] and not report.unexpected:
        return (
            "export the checkpoint with its output head, or set tie_word_embeddings in config.json if the head really "
            "is the embedding"
        )
    if report.unexpected and all(name.endswith(".bias") for name in report.unexpected):
        return "the model has biases that config.json does not tell of (attention_bias, mlp_bias); correct config.json"
    if report.misshaped and not report.missing and not report.unexpected:
        return "config.json describes another size than the tensors have; take both from the same export"
    if report.not_finite and not (report.missing or report.unexpected or report.misshaped):
        return "the export is damaged (an overflow to float16 is usual); export it again"
    if report.missing and not report.unexpected:
        return "the export is incomplete; finish the download or export it again"
    return "check that config.json and the tensors belong together; `trt-spec inspect` shows what the tensors are"


def _other_prefix(missing: Sequence[str], unexpected: Sequence[str]) -> str | None:
    """Where every missing name is there under one other prefix."""
    if not missing or not unexpected:
        return None
    for longer, shorter, verb in ((missing, unexpected, "lack"), (unexpected, missing, "have too many:")):
        others = set(shorter)
        for cut in range(1, 4):
            prefix = ".".join(longer[0].split(".")[:cut]) + "."
            stripped = [name.removeprefix(prefix) for name in longer if name.startswith(prefix)]
            if len(stripped) >= 2 and others.issuperset(stripped):
                return f"the names {verb} the prefix {prefix!r}; export the whole model under its usual names"
    return None
