"""What trtllm-build makes of the sizes that it is asked for, and whether the engine's config.json says the same.

Pure. Source: NVIDIA/TensorRT-LLM, tensorrt_llm/builder.py (`build`) and cpp/tensorrt_llm/runtime/gptJsonConfig.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from trt_spec.config import versions
from trt_spec.config.schema import RunConfig
from trt_spec.engines.plan import Size
from trt_spec.engines.tensorrt import flags

# tensorrt_llm.models.modeling_utils.SpeculativeDecodingMode, as config.json holds it.
MODE_NUMBERS = {
    "none": 1,
    "draft_tokens_external": 2,
    "medusa": 4,
    "lookahead_decoding": 8,
    "explicit_draft_tokens": 16,
    "eagle": 32,
}
Expected = bool | int | str | range  # of a value of config.json
ARCHITECTURES = {"medusa": "MedusaForCausalLM", "eagle": "EagleForCausalLM"}


def fits(expected: Expected, value: Any) -> bool:
    """Whether a value of config.json is the expected one, or within the expected range."""
    return value in expected if isinstance(expected, range) else value == expected


def in_words(expected: Expected) -> str:
    """An expected value or range."""
    return f"{expected[0]} to {expected[-1]}" if isinstance(expected, range) else str(expected)


def _method(config: RunConfig, role: str) -> str:
    """The method that an engine is built for: a draft model's own engine knows of none."""
    return config.speculation.method if role == "target" else "none"


def draft_tokens(config: RunConfig, role: str = "target") -> int:
    """max_draft_len of an engine: the draft tokens of one step, all branches counted."""
    return config.speculation.max_total_draft_tokens if _method(config, role) != "none" else 0


def built_seq_len(config: RunConfig, role: str = "target") -> int:
    """max_seq_len of an engine: the builder adds room for drafts, which are written before they are judged."""
    if _method(config, role) == "none":
        return config.build.max_seq_len
    depth = config.speculation.max_draft_len if config.speculation.method == "eagle" else 0
    return config.build.max_seq_len + draft_tokens(config, role) + depth


def built_num_tokens(config: RunConfig, role: str = "target") -> int:
    """max_num_tokens of an engine: no more than all sequences hold, and enough for a full step of drafts."""
    build = config.build
    least = build.max_batch_size * (draft_tokens(config, role) + 1)
    return max(min(build.max_num_tokens, build.max_seq_len * build.max_batch_size), least)


def sizes(config: RunConfig) -> tuple[Size, ...]:
    """The sizes of the target's engine that are not what the run config asks for."""
    build, spec = config.build, config.speculation
    total = draft_tokens(config)
    made = [
        Size("max_input_len", build.max_seq_len - 1, flags.max_input_len(config), "prompts are read in one step"),
        Size("max_num_tokens", build.max_num_tokens, built_num_tokens(config), "sequences hold no more"),
    ]
    if total:
        depth = f" and {spec.max_draft_len} levels of the tree" if spec.method == "eagle" else ""
        why = f"room for {total} draft tokens{depth}; requests still get {build.max_seq_len}"
        made.append(Size("max_seq_len", build.max_seq_len, built_seq_len(config), why))
    if total != spec.max_draft_len:
        made.append(Size("max_draft_len", spec.max_draft_len, total, "all branches of a draft are counted"))
    return tuple(size for size in made if size.asked != size.built)


def expectations(config: RunConfig, role: str = "target") -> dict[str, Expected]:
    """What config.json of an engine has to say: place to value, or to a range where versions differ."""
    build, spec, method = config.build, config.speculation, _method(config, role)
    expected: dict[str, Expected] = {
        "pretrained_config.dtype": config.target.dtype,
        "pretrained_config.mapping.tp_size": build.tensor_parallel_size,
        "pretrained_config.mapping.pp_size": build.pipeline_parallel_size,
        "build_config.max_batch_size": build.max_batch_size,
        "build_config.max_beam_width": 1,
        "build_config.max_input_len": flags.max_input_len(config),
        "build_config.max_seq_len": built_seq_len(config, role),
        "build_config.max_draft_len": draft_tokens(config, role),
        "build_config.speculative_decoding_mode": MODE_NUMBERS[flags.MODES.get(method, "none")],
        "build_config.gather_context_logits": False,
        "build_config.plugin_config.use_paged_context_fmha": flags.uses_paged_context(config),
        "build_config.plugin_config.remove_input_padding": True,
        "build_config.plugin_config.paged_kv_cache": True,
    }
    if method in ARCHITECTURES:
        expected["pretrained_config.architecture"] = ARCHITECTURES[method]
    if method in ("medusa", "eagle"):
        expected["pretrained_config.max_draft_len"] = draft_tokens(config)
    if method == "eagle":
        expected["pretrained_config.num_eagle_layers"] = spec.max_draft_len
        expected["pretrained_config.max_non_leaves_per_layer"] = flags.max_non_leaves(config)
    if method == "redrafter" and spec.redrafter is not None:
        expected["pretrained_config.redrafter_num_beams"] = spec.redrafter.num_beams
        expected["pretrained_config.redrafter_draft_len_per_beam"] = spec.redrafter.draft_len_per_beam
        expected["pretrained_config.redrafter_greedy_search"] = True
    # Which of the two limits on max_num_tokens is applied last differs between versions.
    least = build.max_batch_size * (draft_tokens(config, role) + 1)
    most = max(build.max_num_tokens, least)
    first = min(least, most)
    return {**expected, "build_config.max_num_tokens": most if first == most else range(first, most + 1)}


def problems(written: Mapping[str, Any], config: RunConfig, role: str, *, is_engine: bool) -> list[str]:
    """What a config.json says otherwise than the run config, in words; empty where they agree.

    It is an engine's, or (not `is_engine`) that of a checkpoint that a converter wrote, whose role may also be base.
    """
    prefix = "" if is_engine else "pretrained_config."
    found = []
    if is_engine:
        version, pinned = written.get("version"), config.build.tensorrt_llm_version or ""
        if not is_version(version, pinned):
            found.append(f"version is {_show(version)}, and the run config pins {pinned}")
    for place, expected in expectations(config, "draft" if role == "base" else role).items():
        value = _value(written, key := place.removeprefix(prefix))
        if place.startswith(prefix) and not fits(expected, value):
            found.append(f"{key} is {_show(value)}, expected {in_words(expected)}")
    return found


def is_version(found: Any, pinned: str) -> bool:
    """Whether a version is the pinned one, whatever was appended to it locally."""
    try:
        return Version(str(found)).public == versions.parse(pinned).public
    except InvalidVersion:
        return False


_MISSING = object()


def _value(mapping: Mapping[str, Any], dotted: str) -> Any:
    value: Any = mapping
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _show(value: Any) -> str:
    return "missing" if value is _MISSING or value is None else str(value)
