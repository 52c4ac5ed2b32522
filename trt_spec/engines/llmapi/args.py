"""A run config as the arguments of TensorRT-LLM's `LLM`, for the pinned version. Pure.

The same run means the same in every version, or is refused: names, defaults and even meanings of fields moved between
versions. What is written is checked against the fields that were read of that version (`config.llmapi_fields`).

Sources: TensorRT-LLM docs/source/features/speculative-decoding.md and sampling.md of 1.0 to 1.4.0rc4, llm_args.py, pull
request #10860 (draft_len_schedule). Nothing of it was executed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from packaging.version import Version

from trt_spec.config import capabilities, llmapi_fields, versions
from trt_spec.config.foreign_keys import FOREIGN_KEYS
from trt_spec.config.schema import RunConfig
from trt_spec.errors import CapabilityError

TARGET_DIR, DRAFT_DIR = "target", "draft"  # below the engine directory; the arguments name them relative to it
DECODING_TYPES = {"draft_model": "DraftTarget", "ngram": "NGram", "eagle3": "Eagle3", "mtp": "MTP"}
SECTIONS = (llmapi_fields.SPECULATIVE,)  # nothing is added to drafting where the run config asks for none
LATE = ("1.3-late", "1.4")  # after the TensorRT backend: every drafter but n-gram lookup is part of the target's model

Arguments = dict[str, Any]  # of `LLM`, or a section of them: names and nesting are each version's own
# Where the drafter runs: in one model with the target (a step is one graph, and samples by itself), or beside it.
Placement = Literal["none", "one_model", "two_model"]


def llm_args(config: RunConfig) -> Arguments:
    """`arguments` of a run that nobody has checked yet."""
    capabilities.check(config)
    return arguments(config)


def arguments(config: RunConfig, draft_facts: Mapping[str, Any] | None = None) -> Arguments:
    """The arguments of `LLM`, in plain YAML values; checkpoints are relative to the engine directory.

    Args:
        config: the run, which `capabilities.check` has passed.
        draft_facts: fields of `speculative_config` that the draft's checkpoint decides: the target's layers that an
            EAGLE-3 head reads (`Conversion.facts`).

    Raises:
        CapabilityError: the pinned version does not have what the run asks for.
    """
    _refuse_schedule(config)
    build, version = config.build, version_of(config)
    made: Arguments = {
        "model": TARGET_DIR,
        "dtype": config.target.dtype,
        "tensor_parallel_size": build.tensor_parallel_size,
        "pipeline_parallel_size": build.pipeline_parallel_size,
        "max_batch_size": build.max_batch_size,
        "max_seq_len": build.max_seq_len,
        "max_num_tokens": build.max_num_tokens,
        "max_beam_width": 1,
        # Without it a prompt longer than one step is refused when it comes.
        "enable_chunked_prefill": build.max_num_tokens < build.max_seq_len,
        "kv_cache_config": {
            "enable_block_reuse": build.enable_kv_cache_reuse,
            "free_gpu_memory_fraction": build.kv_cache_free_gpu_memory_fraction,
            "dtype": build.kv_cache_dtype,
        },
        **_fields_of_the_line(config),
    }
    if placement(config) == "two_model":
        made["disable_overlap_scheduler"] = True  # drafts are made between two steps, which the overlap hides
    if config.speculation.method != "none":
        made[llmapi_fields.SPECULATIVE] = {**speculative_config(config), **(draft_facts or {})}
    made = _with_further(made, config.build.llm_args or {}, "build.llm_args")
    llmapi_fields.check(made, version)
    return made


def _fields_of_the_line(config: RunConfig) -> Arguments:
    """What only some versions have, or need."""
    if versions.line_of(version_of(config)) != "1.0":
        return {"return_perf_metrics": True}  # accepted and drafted tokens of each request; in 1.0 the requests ask
    if config.speculation.method != "none":
        return {}
    # The default sampler of 1.0 takes the best token whatever is asked for (features/sampling); with a drafter there
    # is no other one.
    return {"enable_trtllm_sampler": True}


def _with_further(written: Arguments, given: Mapping[str, Any], where: str) -> Arguments:
    """What the run config writes, and `build.llm_args` beside it, section by section; a name of both is refused."""
    merged = dict(written)
    for name, value in given.items():
        place = f"{where}.{name}"
        if isinstance(value, Mapping) and isinstance(written.get(name), dict):
            merged[name] = _with_further(written[name], value, place)
        elif name in FOREIGN_KEYS or name in written or name in SECTIONS:
            remedy = FOREIGN_KEYS.get(name, "remove it here: another key of the run config decides it")
            raise _lacks(place, value, remedy)
        else:
            merged[name] = value
    return merged


def version_of(config: RunConfig) -> Version:
    """The pinned version of TensorRT-LLM."""
    assert config.build.tensorrt_llm_version is not None  # the schema gives it a default for this target
    return versions.parse(config.build.tensorrt_llm_version)


def placement(config: RunConfig) -> Placement:
    """Where the drafter of a run has to be, so that its acceptance rule is the one that was asked for."""
    method, rule, line = config.speculation.method, config.speculation.acceptance, versions.line_of(version_of(config))
    if method == "none":
        return "none"
    if method == "ngram":
        return "two_model"
    if method == "draft_model":
        return "one_model" if line in LATE else "two_model"
    if method == "eagle3" and line in ("1.0", "1.1"):
        return "two_model"  # documented for Llama 3; inside one model for Llama 4 only
    if method == "eagle3" and line == "1.2" and rule == "rejection":
        return "two_model"  # the sampler beside the models is the one that has the draft's probabilities
    return "one_model"


def speculative_config(config: RunConfig) -> Arguments:
    """`speculative_config` with `decoding_type` first."""
    spec, version = config.speculation, version_of(config)
    line = versions.line_of(version)
    decoding_type = DECODING_TYPES[spec.method]
    if decoding_type == "Eagle3" and decoding_type not in llmapi_fields.decoding_types(version):
        decoding_type = "Eagle"  # up to 1.2: on this backend it means EAGLE-3, and nothing else
    fields: dict[str, Any] = {"decoding_type": decoding_type}
    if spec.method == "mtp" and line not in LATE:
        fields["num_nextn_predict_layers"] = spec.max_draft_len  # max_draft_len is taken from it
    else:
        fields["max_draft_len"] = spec.max_draft_len
    if spec.checkpoint is not None:
        fields["speculative_model_dir"] = DRAFT_DIR  # since 1.2 an alias of speculative_model, so valid in all
    if spec.ngram is not None:
        fields["max_matching_ngram_size"] = spec.ngram.max_ngram
    if decoding_type == "Eagle":
        fields["eagle3_one_model"] = placement(config) == "one_model"
    fields |= _sampling_fields(config, line)
    fields |= _tree_fields(config)
    fields |= _schedule_fields(config, line)
    return fields


def _sampling_fields(config: RunConfig, line: str) -> Arguments:
    """What makes drafts be judged by the rule of the run, and requests with penalties be served."""
    rule = config.speculation.acceptance
    if line in LATE:
        has_rejection = config.speculation.method != "ngram"
        choice = {"use_rejection_sampling": rule == "rejection"} if has_rejection else {}
        return {**choice, "enable_penalty": True}
    if line in ("1.2", "1.3-early") and placement(config) == "one_model":
        # False takes the target's best token, whatever temperature a request asks for.
        return {"allow_advanced_sampling": rule != "greedy"}
    return {}


def _tree_fields(config: RunConfig) -> Arguments:
    spec, tree = config.speculation, config.speculation.tree
    if tree is None:
        return {}
    low, high, total = spec.max_draft_len, tree.top_k * spec.max_draft_len, tree.max_total_draft_tokens
    if not low <= total <= high:
        remedy = f"set it to {low} (max_draft_len) to {high} (top_k times max_draft_len)"
        raise _lacks("speculation.tree.max_total_draft_tokens", total, remedy)
    return {"use_dynamic_tree": True, "dynamic_tree_max_topK": tree.top_k, "max_total_draft_tokens": total}


# --- draft length by batch size ------------------------------------------------------------------------------------


def _schedule_fields(config: RunConfig, line: str) -> Arguments:
    """`speculation.draft_len_schedule` in the version's own meaning."""
    if (schedule := _schedule(config)) is None:
        return {}
    last_with_drafts = last_batch_before_off(schedule)
    if config.speculation.method == "ngram" or line in ("1.1", "1.3-early"):
        return {"max_concurrency": last_with_drafts}  # what these have, and refuse_schedule has seen that it is enough
    if line == "1.2":
        return {"draft_len_schedule": dict(sorted(schedule.items()))}
    return {"draft_len_schedule": to_upper_bounds(schedule, config.build.max_batch_size)}


def _schedule(config: RunConfig) -> Mapping[int, int] | None:
    """`speculation.draft_len_schedule`; None where it changes nothing."""
    schedule = config.speculation.draft_len_schedule
    return None if set((schedule or {}).values()) <= {config.speculation.max_draft_len} else schedule


def last_batch_before_off(schedule: Mapping[int, int]) -> int | None:
    """The largest batch with drafts, where the schedule only turns drafting off; None where it does anything else."""
    steps = sorted(schedule.items())
    lengths = [length for _, length in steps]
    if len(set(lengths[:-1])) == 1 and lengths[-1] == 0 and lengths[0] > 0:
        return steps[-1][0] - 1
    return None


def to_upper_bounds(schedule: Mapping[int, int], max_batch_size: int) -> dict[int, int]:
    """From "from this batch size on" to "up to this batch size", which 1.3 reads (beyond the last: no drafts)."""
    steps = [(start, length) for start, length in sorted(schedule.items()) if start <= max_batch_size]
    ends = [start - 1 for start, _ in steps[1:]] + [max_batch_size]
    bounds = {end: length for end, (_, length) in zip(ends, steps, strict=True)}
    while len(bounds) > 1 and bounds[max(bounds)] == 0:
        del bounds[max(bounds)]
    return bounds


# --- refusals ------------------------------------------------------------------------------------------------------


def _refuse_schedule(config: RunConfig) -> None:
    spec, line = config.speculation, versions.line_of(version_of(config))
    schedule, key = _schedule(config), "speculation.draft_len_schedule"
    if schedule is None:
        return
    if line not in LATE and placement(config) == "one_model":
        raise _lacks(key, f"with {spec.method} in {line}", "pin 1.3.0rc21 or later, or remove the key")
    if line in LATE and spec.tree is not None:
        raise _lacks(key, "with a tree", "remove one of the two")
    if (spec.method == "ngram" or line in ("1.1", "1.3-early")) and last_batch_before_off(schedule) is None:
        # Within 1.3 its meaning changed from lower to upper bounds (#10860), at a candidate that is not known.
        what = f"with method {spec.method}" if spec.method == "ngram" else f"in {line}"
        remedy = f"two steps only: {{1: {spec.max_draft_len}, N: 0}} turns drafting off from N requests on"
        raise _lacks(key, f"{schedule} {what}", remedy)


def _lacks(key: str, got: object, remedy: str) -> CapabilityError:
    return CapabilityError(f"build target llmapi cannot honour {key}", where=key, got=got, remedy=remedy)
