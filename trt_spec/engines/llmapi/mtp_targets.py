"""Which targets draft with MTP layers of their own in TensorRT-LLM, by version."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from trt_spec.checkpoints.inspection import Inspection
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


def refuse_without_mtp(config: RunConfig, target: Inspection, model_type: Any) -> None:
    """Returns where the pinned version drafts with the target's MTP layers; `model_type` is config.json's.

    Raises:
        CheckpointError: it has no MTP layers.
        CapabilityError: the version does not draft with those of this architecture.
    """
    known = mtp_targets(versions.line_of(version_of(config)))
    if target.details.mtp_layout is None:
        raise CheckpointError(
            "method mtp needs MTP layers in the target, and this target has none",
            where=target.path,
            got=model_type,
            remedy="use a target that holds its MTP layers, or another method (ngram needs no checkpoint)",
            code="E-MTP-MISSING",
        )
    if not any(fnmatchcase(str(model_type), name) for name in known):
        later = any(fnmatchcase(str(model_type), name) for name in _SINCE_LATE)
        remedy = "set build.tensorrt_llm_version to a later one" if later else "take another target"
        remedy = "set build.target to torch" if not later and target.details.mtp_layout in NATIVE_LAYOUTS else remedy
        raise CapabilityError(
            f"TensorRT-LLM {version_of(config)} does not draft with the MTP layers of this architecture",
            where="target.checkpoint",
            got=model_type,
            expected="model_type " + ", ".join(known),
            remedy=f"{remedy}, or use another method (ngram needs no checkpoint)",
        )
