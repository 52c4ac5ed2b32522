"""Is the method that a run asks for what the tensors are? Checked before a build and again on loading."""

from __future__ import annotations

from trt_spec.checkpoints.inspection import Inspection
from trt_spec.config.speculation import SpeculationConfig
from trt_spec.errors import CheckpointError, ConfigError, PairError
from trt_spec.methods import METHODS

# Methods that take a checkpoint of another one: EAGLE of any generation, since the tensors decide.
_ALSO_TAKES = {"eagle": ("eagle3",)}


def refuse_problems(role: str, inspection: Inspection) -> None:
    """Raises CheckpointError (PairError for a draft) with every problem that was found, and the first one's remedy."""
    if not inspection.problems:
        return
    kind = PairError if role == "draft" else CheckpointError
    first = inspection.problems[0]
    raise kind(
        f"the {role} checkpoint cannot be used",
        where=inspection.path,
        details=[problem.message for problem in inspection.problems],
        remedy=first.remedy,
        code=first.code,
    )


def refuse_other_draft(method: str, draft: Inspection) -> None:
    """Raises PairError where a draft is of another method than this; says which one, by what its tensors show."""
    if draft.method not in (method, *_ALSO_TAKES.get(method, ())):
        raise PairError(
            "the draft checkpoint is of another method",
            where=draft.path,
            got=f"{draft.method} (this is {METHODS[draft.method].evidence})",
            expected=method,
            remedy=f"use method {draft.method}, or give another checkpoint",
            code="E-METHOD",
        )


def max_draft_levels(method: str, target: Inspection, draft: Inspection | None) -> int | None:
    """Tokens in a row that the checkpoints can draft: one per Medusa head, one per MTP layer where there are several.

    None for any number. One MTP layer is applied again and again.
    """
    if method == "medusa" and draft is not None:
        return draft.details.num_heads
    return target.details.num_mtp_layers if method == "mtp" and target.details.num_mtp_layers > 1 else None


def refuse_deep_drafts(speculation: SpeculationConfig, levels: int | None) -> None:
    """Raises ConfigError for drafts longer than `levels`, see `max_draft_levels`, and for trees of layers in turn."""
    if levels is None:
        return
    if speculation.method == "mtp" and speculation.tree is not None:
        raise ConfigError(
            "MTP layers in turn draft chains only",
            where="speculation.tree",
            got=f"{levels} MTP layers in the target",
            remedy="remove speculation.tree",
        )
    if speculation.max_draft_len > levels:
        raise ConfigError(
            "the draft checkpoint predicts fewer tokens than are asked for",
            where="speculation.max_draft_len",
            got=speculation.max_draft_len,
            expected=f"at most {levels}",
            remedy=f"set speculation.max_draft_len to {levels} or less",
        )
