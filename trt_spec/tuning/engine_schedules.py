"""One schedule in the form of each engine and version. Pure.

Sources: TensorRT-LLM as in `build.llmapi_args`; vLLM docs/features/speculative_decoding/dynamic_speculative_decoding
of 0.25 (pull request #32374), where a range of batch sizes has its length. Nothing of either was executed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trt_spec.config import llmapi_fields, versions
from trt_spec.config.rules import CrossFieldError
from trt_spec.config.schema import RunConfig
from trt_spec.engines.llmapi import args as llmapi_args
from trt_spec.errors import TrtSpecError

SHOWN_VERSIONS = tuple(
    version for version in versions.GOLDEN_VERSIONS if versions.parse(version) >= versions.FIRST_LLMAPI_VERSION
)
_FIELDS = ("max_draft_len", "num_nextn_predict_layers", "max_concurrency", "draft_len_schedule")
# Keys that only one target reads, and that say nothing of the schedule.
_OF_OTHERS = ("adaptive_draft_len", "costs", "ngram_first", "acceptance", "ngram", "draft_len_schedule")


@dataclass(frozen=True)
class EngineSchedule:
    """What an engine is told: which plan it can have and its own keys and values for it, or why it can have none."""

    engine: str
    plan: str | None = None
    form: Mapping[str, Any] | None = None
    refused: str | None = None


def engine_schedules(config: RunConfig, plans: Mapping[str, Mapping[int, int]], max_batch: int) -> list[EngineSchedule]:
    """One for each version of TensorRT-LLM that is shown, and for vLLM.

    Args:
        plans: name to schedule, the best first, then those for engines that can do less; an empty one drafts nothing.
        max_batch: requests that run at once at most.
    """
    own = {config.build.tensorrt_llm_version} if config.build.target == "llmapi" else set()
    shown = sorted({*SHOWN_VERSIONS, *own} - {None}, key=versions.parse)
    best, schedule = next(iter(plans.items()))
    found = [_trtllm(config, plans, version, max_batch) for version in shown]
    return [*found, EngineSchedule("vLLM 0.25", best, vllm(schedule, max_batch))]


def vllm(schedule: Mapping[int, int], max_batch: int) -> Mapping[str, int | list[list[int]]]:
    """Keys of vLLM's `speculative_config`: inclusive ranges of batch sizes, each with its length."""
    steps = [(start, length) for start, length in sorted(schedule.items()) if start <= max_batch]
    ends = [start - 1 for start, _ in steps[1:]] + [max_batch]
    ranges = [[start, end, length] for (start, length), end in zip(steps, ends, strict=True)]
    return {"num_speculative_tokens": max(schedule.values()), "num_speculative_tokens_per_batch_size": ranges}


def _trtllm(config: RunConfig, plans: Mapping[str, Mapping[int, int]], version: str, max_batch: int) -> EngineSchedule:
    """The first plan that the version can have; where there is none, why it cannot have the first one."""
    engine, reasons = f"TensorRT-LLM {version}", []
    for name, schedule in plans.items():
        if not schedule:
            return EngineSchedule(engine, name, {})
        try:
            written = llmapi_args.llm_args(_as_llmapi(config, version, max_batch, schedule))[llmapi_fields.SPECULATIVE]
        except ValidationError as error:
            reasons.append(error.errors()[0]["msg"])
        except CrossFieldError as error:
            reasons.append("; ".join(error.details))
        except TrtSpecError as error:
            reasons.append(error.what + (f"; {error.remedy}" if error.remedy else ""))
        else:
            return EngineSchedule(engine, name, {key: written[key] for key in _FIELDS if key in written})
    return EngineSchedule(engine, refused=reasons[0])


def _as_llmapi(config: RunConfig, version: str, max_batch: int, schedule: Mapping[int, int]) -> RunConfig:
    """The same run with a schedule for the llmapi target of a version, as far as the schedule goes."""
    values = config.model_dump(exclude_none=True)
    spec = {name: value for name, value in values["speculation"].items() if name not in _OF_OTHERS}
    lengths = {"max_draft_len": schedule[1], **({"draft_len_schedule": dict(schedule)} if len(schedule) > 1 else {})}
    sizes = {"max_batch_size": max_batch, "max_seq_len": config.build.max_seq_len}
    build = {**sizes, "target": "llmapi", "tensorrt_llm_version": version}
    return RunConfig.model_validate({**values, "speculation": {**spec, **lengths}, "build": build})
