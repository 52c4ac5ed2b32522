"""Do the checkpoints of an `llmapi` run fit its method and the pinned version? Decided before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trt_spec.checkpoints.inspection import Inspection
from trt_spec.checkpoints.method import max_draft_levels, refuse_deep_drafts, refuse_other_draft
from trt_spec.checkpoints.mtp import NATIVE_LAYOUTS
from trt_spec.config import versions
from trt_spec.config.schema import RunConfig
from trt_spec.engines.llmapi.args import LATE, version_of
from trt_spec.errors import CapabilityError, CheckpointError

# Architectures whose prediction layers the PyTorch backend loads, by config.json's model_type; others are a ValueError
# when the server loads them (tensorrt_llm/_torch/models/modeling_speculative.py). A * stands for any ending.
_DEEPSEEK = ("deepseek_v3",)
_SINCE_1_2 = (*_DEEPSEEK, "deepseek_v32", "glm4_moe", "glm_moe_dsa", "exaone_moe", "nemotron_h", "qwen3_next")
_SINCE_LATE = (*_SINCE_1_2, "deepseek_v4", "qwen3_5*", "step3p*", "inkling*")


def mtp_targets(line: str) -> tuple[str, ...]:
    """Values of model_type that have MTP in a line of versions, see `versions.line_of`."""
    if line in ("1.0", "1.1"):
        return _DEEPSEEK
    return _SINCE_LATE if line in LATE else _SINCE_1_2


def refuse_misfits(
    config: RunConfig, target: Inspection, target_config: Mapping[str, Any], draft: Inspection | None
) -> None:
    """Returns where the checkpoints are what the run's method needs.

    Args:
        config: the run.
        target, draft: what the checkpoints are; the draft inspected against the target.
        target_config: the target's config.json.

    Raises:
        CheckpointError: the target is no whole model, or has no MTP layers.
        PairError: the draft is of another method.
        CapabilityError: the pinned version does not draft with the MTP layers of this architecture.
        ConfigError: drafts longer than the checkpoint has layers.
    """
    method = config.speculation.method
    if target.role != "target":
        raise CheckpointError(
            "the target checkpoint is no whole model",
            where=target.path,
            got=f"{target.role}, method {target.method}",
            remedy="give the large model as target, and this one as the draft",
        )
    if draft is not None:
        refuse_other_draft(method, draft)
    if method == "mtp":
        _refuse_without_mtp(config, target, target_config.get("model_type"))
    refuse_deep_drafts(config.speculation, max_draft_levels(method, target, draft))


def _refuse_without_mtp(config: RunConfig, target: Inspection, model_type: Any) -> None:
    known = mtp_targets(versions.line_of(version_of(config)))
    if target.details.mtp_layout is None:
        raise CheckpointError(
            "method mtp needs MTP layers in the target, and this target has none",
            where=target.path,
            got=model_type,
            remedy="use a target that holds its MTP layers, or another method (ngram needs no checkpoint)",
            code="E-MTP-MISSING",
        )
    if not any(_is(model_type, name) for name in known):
        later = any(_is(model_type, name) for name in _SINCE_LATE)
        remedy = "set build.tensorrt_llm_version to a later one" if later else "take another target"
        remedy = "set build.target to torch" if not later and target.details.mtp_layout in NATIVE_LAYOUTS else remedy
        raise CapabilityError(
            f"TensorRT-LLM {version_of(config)} does not draft with the MTP layers of this architecture",
            where="target.checkpoint",
            got=model_type,
            expected="model_type " + ", ".join(known),
            remedy=f"{remedy}, or use another method (ngram needs no checkpoint)",
        )


def _is(model_type: Any, name: str) -> bool:
    return str(model_type).startswith(name[:-1]) if name.endswith("*") else model_type == name
