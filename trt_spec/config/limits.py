"""Limits of the TensorRT-LLM targets within a method that they have: keys and sizes that a builder would reject.

Facts: TensorRT-LLM's builder, converters and documentation; each message says whose rule it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from trt_spec.config.rules import Problem, target_problems
from trt_spec.config.schema import RunConfig

EAGLE_MAX_BATCH_SIZE = 512  # asserted by the builder (tensorrt_llm/builder.py)
EAGLE_MAX_DRAFT_TOKENS = 256  # asserted by the converter and the builder
PAGED_CONTEXT_METHODS = ("draft_model", "eagle")  # their engines need --use_paged_context_fmha enable
REJECTION_MAX_TOP_K = 32  # of a dynamic tree under rejection sampling (llm_args.py)

# Weights that a converter can store, by method: flags that the converter of the method has.
QUANTIZATIONS = {
    "none": ("none", "fp8", "fp8_rowwise", "int8_weight_only", "int4_weight_only"),
    "draft_model": ("none", "fp8", "fp8_rowwise", "int8_weight_only", "int4_weight_only"),
    "lookahead": ("none", "fp8", "fp8_rowwise", "int8_weight_only", "int4_weight_only"),
    "medusa": ("none", "fp8", "int8_weight_only", "int4_weight_only"),
    "eagle": ("none", "int8_weight_only", "int4_weight_only"),
    "redrafter": ("none", "fp8"),
}


def shared_problems(config: RunConfig) -> Iterator[Problem]:
    """Keys that only one of the targets honours."""
    spec, target = config.speculation, config.build.target
    if target == "torch":
        return
    yield from target_problems("speculation", spec, target)
    if spec.tree is not None and spec.tree.siblings != "top":
        yield Problem(
            "speculation.tree.siblings",
            f"{target} expands the likeliest tokens only",
            "set it to top, or build.target to torch",
        )


def engine_problems(config: RunConfig) -> Iterator[Problem]:
    """What the converters, trtllm-build and Triton's C++ backend would reject."""
    spec, build = config.speculation, config.build
    yield from _tree_problems(config)
    if spec.method == "eagle":
        yield from _eagle_problems(config)
    if build.pipeline_parallel_size not in (None, 1) and spec.method in ("eagle", "redrafter"):
        yield Problem(
            "build.pipeline_parallel_size",
            f"{spec.method} on tensorrt runs on pipeline_parallel_size 1 only",
            "set it to 1 and raise build.tensor_parallel_size",
        )
    yield from _quantization_problems(config)
    if not build.enable_kv_cache_reuse and spec.method == "draft_model":
        yield Problem(
            "build.enable_kv_cache_reuse",
            "draft_model on tensorrt sends the grown prompt again each round, and needs the reuse in both engines",
            "set it to true, or remove the key",
        )


def _tree_problems(config: RunConfig) -> Iterator[Problem]:
    method, tree = config.speculation.method, config.speculation.tree
    if tree is None:
        return
    if method == "draft_model":
        remedy = "remove speculation.tree, or set build.target to torch"
        yield Problem("speculation.tree", "external drafts are chains on tensorrt", remedy)
    elif tree.choices is None:
        yield Problem(
            "speculation.tree.top_k",
            f"Triton's TensorRT-LLM backend hands {method}_choices to the engine and no dynamic tree",
            "give speculation.tree.choices, or set build.target to torch",
        )


def _eagle_problems(config: RunConfig) -> Iterator[Problem]:
    spec, build = config.speculation, config.build
    if build.max_batch_size > EAGLE_MAX_BATCH_SIZE:
        yield Problem(
            "build.max_batch_size",
            f"EAGLE engines take at most {EAGLE_MAX_BATCH_SIZE} sequences, not {build.max_batch_size}",
            f"set it to {EAGLE_MAX_BATCH_SIZE} or less",
        )
    if spec.max_total_draft_tokens > EAGLE_MAX_DRAFT_TOKENS:
        yield Problem(
            "speculation.tree.choices",
            f"EAGLE engines take at most {EAGLE_MAX_DRAFT_TOKENS} draft tokens, not {spec.max_total_draft_tokens}",
            "shorten the list",
        )


def _quantization_problems(config: RunConfig) -> Iterator[Problem]:
    method, build = config.speculation.method, config.build
    known = QUANTIZATIONS[method]
    if build.quantization not in known:
        yield Problem(
            "build.quantization",
            f"the converter of {method} does not store {build.quantization}",
            f"set it to one of {', '.join(known)}",
        )
    if method == "redrafter" and build.quantization == "fp8" and str(build.tensorrt_llm_version).startswith("0."):
        yield Problem(
            "build.quantization",
            "the ReDrafter converter takes a quantised target from 1.0 on",
            "set build.tensorrt_llm_version to 1.0.0 or later, or quantization to none",
        )
    if build.kv_cache_dtype == "fp8" and build.quantization != "fp8":
        yield Problem(
            "build.kv_cache_dtype",
            "an fp8 KV cache needs fp8 weights: without them paged context attention is switched off",
            "set build.quantization to fp8, or kv_cache_dtype to auto",
        )
    if build.kv_cache_dtype == "int8":
        yield from _int8_problems(config)
    calibrates = build.quantization == "fp8" or build.kv_cache_dtype == "int8"
    if build.calibration_dataset is not None and not calibrates:
        yield Problem("build.calibration_dataset", "nothing is calibrated", "remove the key")


def _int8_problems(config: RunConfig) -> Iterator[Problem]:
    """An int8 KV cache excludes paged context attention, and with it what rests on that."""
    method, build = config.speculation.method, config.build
    if method in PAGED_CONTEXT_METHODS:
        yield Problem(
            "build.kv_cache_dtype",
            f"{method} needs paged context attention, which does not work with an int8 KV cache",
            "set it to auto",
        )
    elif build.enable_kv_cache_reuse:
        yield Problem(
            "build.enable_kv_cache_reuse",
            "reuse needs paged context attention, which does not work with an int8 KV cache",
            "set it to false, or kv_cache_dtype to auto",
        )
    if build.quantization in ("fp8", "fp8_rowwise"):
        yield Problem(
            "build.kv_cache_dtype",
            f"int8 goes with {build.quantization} weights in no converter",
            "set it to auto, or to fp8 with quantization fp8",
        )
    if method == "redrafter":
        yield Problem("build.kv_cache_dtype", "the ReDrafter converter has no int8 KV cache", "set it to auto")


def llmapi_problems(config: RunConfig, line: str) -> Iterator[Problem]:
    """What the PyTorch backend would reject, or take and do otherwise."""
    spec, build = config.speculation, config.build
    if build.quantization != "none":
        yield Problem(
            "build.quantization",
            "on llmapi the checkpoint says how it is quantised",
            "set it to none, and give a checkpoint that is quantised already",
        )
    if build.kv_cache_dtype == "int8":
        yield Problem("build.kv_cache_dtype", "llmapi has no int8 KV cache", "set it to auto or fp8")
    if spec.ngram is not None and spec.ngram.min_ngram != 1:
        yield Problem(
            "speculation.ngram.min_ngram",
            "the lookup of llmapi takes matches of any length from 1 to max_ngram",
            "set it to 1 or remove the key, or set build.target to torch",
        )
    yield from _schedule_problems(config, line)
    yield from _dynamic_tree_problems(config, line)


# Method -> the versions that have more than one length for it, and are named where the pinned one has not.
_SCHEDULED_IN = {
    "draft_model": "1.2.1, or 1.3.0rc21 or later",
    "eagle3": "1.3.0rc21 or later",
    "mtp": "1.3.0rc21 or later",
}


def _schedule_problems(config: RunConfig, line: str) -> Iterator[Problem]:
    spec, key = config.speculation, "speculation.draft_len_schedule"
    schedule = spec.draft_len_schedule
    if schedule is None or set(schedule.values()) == {spec.max_draft_len}:
        return
    later = _SCHEDULED_IN.get(spec.method)
    pin = f"set build.tensorrt_llm_version to {later}, or remove the key" if later else "remove the key"
    is_switch = len(schedule) == 2 and min(schedule.values()) == 0  # {1: K, N: 0}, which max_concurrency says too
    if line == "1.0":
        remedy = f"set build.tensorrt_llm_version to 1.1.0 or later{' and write two steps' * (not is_switch)}"
        yield Problem(key, "TensorRT-LLM 1.0 has no schedule", pin if later else f"{remedy}, or remove the key")
    elif line == "1.1" and not is_switch:
        what = "TensorRT-LLM 1.1 can only switch drafting off above a number of requests"
        switch = "" if spec.method == "mtp" else f"write {{1: {spec.max_draft_len}, <number>: 0}}, or "
        yield Problem(key, what, switch + pin)


def _dynamic_tree_problems(config: RunConfig, line: str) -> Iterator[Problem]:
    spec, tree = config.speculation, config.speculation.tree
    if tree is None:
        return
    if tree.choices is not None:
        remedy = "use tree.top_k and tree.max_total_draft_tokens with 1.3.0rc21 or later, or build.target torch"
        yield Problem("speculation.tree.choices", "the PyTorch backend takes no static trees", remedy)
        return
    if spec.method not in ("eagle3", "mtp"):
        yield Problem("speculation.tree", f"{spec.method} drafts chains on llmapi", "remove speculation.tree")
    elif line not in ("1.3-late", "1.4"):
        remedy = "remove speculation.tree, or set build.tensorrt_llm_version to 1.3.0rc21 or later"
        yield Problem("speculation.tree", f"dynamic trees are not established for the backend of {line}", remedy)
    elif spec.acceptance == "exact_match":
        yield Problem(
            "speculation.acceptance",
            "without rejection sampling the backend verifies trees by the best token whatever the request asks for",
            "set it to rejection, or to greedy for requests at temperature 0",
        )
    elif spec.acceptance == "rejection" and (tree.top_k or 0) > REJECTION_MAX_TOP_K:
        yield Problem(
            "speculation.tree.top_k",
            f"rejection sampling takes at most {REJECTION_MAX_TOP_K}",
            f"set it to {REJECTION_MAX_TOP_K} or less",
        )
