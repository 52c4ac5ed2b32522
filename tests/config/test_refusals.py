"""Every combination that TensorRT-LLM does not have is refused by name, with what can do it instead.

What exists when is written down here again, from the release notes and documents, and not taken from the code's tables.
"""

from __future__ import annotations

import pytest

from trt_spec.config import capabilities, loader
from trt_spec.config.schema import RunConfig
from trt_spec.errors import CapabilityError, ConfigError
from trt_spec.methods import METHODS

ENGINE_VERSIONS = ("0.19.0", "0.20.0", "0.21.0", "1.0.0", "1.1.0", "1.2.0", "1.2.1", "1.3.0rc1", "1.3.0rc20")
LATE_VERSIONS = ("1.3.0rc21", "1.3.0rc29", "1.3.0", "1.4.0rc4")
LLMAPI_VERSIONS = ("1.0.0", "1.1.0", "1.2.0", "1.2.1", "1.3.0rc20", *LATE_VERSIONS)
ON_ENGINE = {"none", "draft_model", "medusa", "eagle", "lookahead", "redrafter"}
ON_LLMAPI = {"none", "draft_model", "ngram", "eagle3", "mtp"}


def config(method: str, target: str, version: str | None = None, speculation=None, **build) -> RunConfig:
    section = {"method": method, **(speculation or {})}
    if METHODS[method].needs_checkpoint:
        section["checkpoint"] = "draft"
    version_key = {"tensorrt_llm_version": version} if version else {}
    return RunConfig.model_validate(
        {
            "name": "run",
            "target": {"checkpoint": "target"},
            "speculation": section,
            "build": {"target": target, **version_key, **build},
        }
    )


def refusal(made: RunConfig) -> CapabilityError:
    with pytest.raises(CapabilityError) as caught:
        capabilities.check(made)
    assert caught.value.exit_code == 2
    assert caught.value.remedy or caught.value.details
    return caught.value


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("target", "version"),
    [("tensorrt", version) for version in (*ENGINE_VERSIONS, *LATE_VERSIONS)]
    + [("llmapi", version) for version in ("0.21.0", "1.0.0rc3", *LLMAPI_VERSIONS)],
)
def test_what_exists_is_offered_and_nothing_else(method, target, version):
    if target == "tensorrt":
        is_there = method in ON_ENGINE and version in ENGINE_VERSIONS
    else:
        is_there = method in ON_LLMAPI and version in LLMAPI_VERSIONS
    made = config(method, target, version)
    if is_there:
        capabilities.check(made)
    else:
        error = refusal(made)
        assert error.where in ("speculation.method", "build.tensorrt_llm_version")
        assert version in f"{error.what} {error.got}"


@pytest.mark.parametrize(
    ("method", "target", "words"),
    [
        ("medusa", "llmapi", "tensorrt with tensorrt_llm_version 0.19.0 to 1.3.0rc20, or to torch"),
        ("lookahead", "llmapi", "tensorrt with tensorrt_llm_version 0.19.0 to 1.3.0rc20"),
        ("redrafter", "llmapi", "tensorrt with tensorrt_llm_version 0.19.0 to 1.3.0rc20"),
        ("eagle", "llmapi", "tensorrt with tensorrt_llm_version 0.19.0 to 1.3.0rc20, or to torch, or train an EAGLE-3"),
        ("eagle3", "tensorrt", "llmapi with tensorrt_llm_version 1.0.0 or later, or to torch"),
        ("mtp", "tensorrt", "llmapi with tensorrt_llm_version 1.0.0 or later, or to torch"),
        ("ngram", "tensorrt", "llmapi with tensorrt_llm_version 1.0.0 or later, or to torch"),
        ("lookahead", "torch", "tensorrt with tensorrt_llm_version 0.19.0 to 1.3.0rc20"),
        ("redrafter", "torch", "tensorrt with tensorrt_llm_version 0.19.0 to 1.3.0rc20"),
    ],
)
def test_a_method_that_a_target_lacks_names_who_has_it(method, target, words):
    error = refusal(config(method, target))
    assert (error.where, words in error.remedy) == ("speculation.method", True)
    assert method in error.what
    assert target in error.what


@pytest.mark.parametrize("version", LATE_VERSIONS)
def test_engines_end_with_1_3_0rc20(version):
    error = refusal(config("draft_model", "tensorrt", version))
    assert error.where == "build.tensorrt_llm_version"
    assert "removed with 1.3.0rc21" in error.what
    assert "1.3.0rc20 or earlier (1.2.1 is the last stable one)" in error.remedy
    assert "torch or llmapi" in error.remedy
    assert "llmapi" not in refusal(config("medusa", "tensorrt", version)).remedy, "llmapi has no Medusa"


def test_versions_that_are_not_known_are_refused():
    assert "0.19.0 or later" in refusal(config("none", "tensorrt", "0.18.2")).remedy
    assert "1.4.0rc4 or earlier" in refusal(config("none", "llmapi", "1.5.0")).remedy
    assert "tensorrt" in refusal(config("none", "llmapi", "0.21.0")).remedy


@pytest.mark.parametrize("method", ["medusa", "eagle", "lookahead", "redrafter"])
@pytest.mark.parametrize("rule", ["rejection", "exact_match", "block", "typical"])
def test_heads_on_tensorrt_do_not_sample(method, rule):
    error = refusal(config(method, "tensorrt", speculation={"acceptance": rule}))
    assert error.where == "speculation.acceptance"
    assert "temperature 0 only" in error.what
    assert "acceptance to greedy" in error.remedy
    if method in ("medusa", "eagle"):
        assert "runs on torch" in error.remedy
        assert ("lossy" in error.remedy) == (rule == "typical")


def test_typical_acceptance_of_eagle_is_named():
    error = refusal(config("eagle", "tensorrt", speculation={"acceptance": "typical"}))
    assert "posterior threshold" in error.what


def test_rejection_with_draft_logits_is_not_called_lossless():
    error = refusal(config("draft_model", "tensorrt", speculation={"acceptance": "rejection"}))
    assert "draft logits" in error.what
    assert "exact_match" in error.remedy
    assert config("draft_model", "tensorrt").speculation.acceptance == "exact_match"


@pytest.mark.parametrize(
    ("method", "version", "rules"),
    [
        # 1.0's documents allow greedy requests only; one-model drafters of 1.1 ignore the temperature.
        ("draft_model", "1.0.0", {"greedy"}),
        ("ngram", "1.0.0", {"greedy"}),
        ("eagle3", "1.1.0", {"greedy"}),
        ("mtp", "1.1.0", {"greedy"}),
        ("ngram", "1.1.0", {"greedy", "exact_match"}),
        # 1.2: allow_advanced_sampling for one model, rejection sampling for two.
        ("draft_model", "1.2.1", {"greedy", "rejection"}),
        ("eagle3", "1.2.1", {"greedy", "exact_match", "rejection"}),
        ("mtp", "1.2.1", {"greedy", "exact_match"}),
        # late: exact match by default, use_rejection_sampling where the mode supports it.
        ("eagle3", "1.3.0rc29", {"greedy", "exact_match", "rejection"}),
        ("mtp", "1.4.0rc4", {"greedy", "exact_match", "rejection"}),
        ("draft_model", "1.4.0rc4", {"greedy", "exact_match", "rejection"}),
        ("ngram", "1.4.0rc4", {"greedy", "exact_match"}),
    ],
)
def test_rules_of_llmapi_by_version(method, version, rules):
    for rule in ("greedy", "exact_match", "rejection", "block", "typical"):
        made = config(method, "llmapi", version, speculation={"acceptance": rule})
        if rule in rules:
            capabilities.check(made)
        else:
            assert refusal(made).where == "speculation.acceptance"


TREE = {"choices": [[0], [1], [0, 0]]}
DYNAMIC = {"top_k": 4, "max_total_draft_tokens": 16}


@pytest.mark.parametrize(
    ("made", "key", "words"),
    [
        (config("eagle", "tensorrt", max_batch_size=513), "build.max_batch_size", "at most 512"),
        (
            config(
                "eagle",
                "tensorrt",
                speculation={"tree": {"choices": [[i, j] for i in range(17) for j in range(16)]}},
            ),
            "speculation.tree.choices",
            "at most 256",
        ),
        (config("eagle", "tensorrt", pipeline_parallel_size=2), "build.pipeline_parallel_size", "set it to 1"),
        (config("redrafter", "tensorrt", pipeline_parallel_size=2), "build.pipeline_parallel_size", "set it to 1"),
        (config("eagle", "tensorrt", speculation={"tree": DYNAMIC}), "speculation.tree.top_k", "eagle_choices"),
        (config("medusa", "tensorrt", speculation={"tree": DYNAMIC}), "speculation.tree.top_k", "medusa_choices"),
        (config("draft_model", "tensorrt", speculation={"tree": TREE}), "speculation.tree", "chains"),
        (
            config("medusa", "tensorrt", speculation={"tree": {**TREE, "siblings": "with_replacement"}}),
            "speculation.tree.siblings",
            "likeliest",
        ),
        (config("medusa", "tensorrt", speculation={"ngram_first": {}}), "speculation.ngram_first", "torch"),
        (config("eagle3", "llmapi", speculation={"ngram_first": {}}), "speculation.ngram_first", "torch"),
        (
            config("medusa", "tensorrt", speculation={"adaptive_draft_len": True}),
            "speculation.adaptive_draft_len",
            "torch",
        ),
        (
            config("draft_model", "tensorrt", speculation={"draft_len_schedule": {1: 4, 8: 2}}),
            "speculation.draft_len_schedule",
            "num_draft_tokens",
        ),
        (config("draft_model", "tensorrt", enable_kv_cache_reuse=False), "build.enable_kv_cache_reuse", "both engines"),
        (config("draft_model", "tensorrt", kv_cache_dtype="int8"), "build.kv_cache_dtype", "paged context"),
        (config("eagle", "tensorrt", kv_cache_dtype="int8"), "build.kv_cache_dtype", "paged context"),
        (config("none", "tensorrt", kv_cache_dtype="int8"), "build.enable_kv_cache_reuse", "int8"),
        (config("none", "tensorrt", kv_cache_dtype="fp8"), "build.kv_cache_dtype", "fp8 weights"),
        (
            config("none", "tensorrt", kv_cache_dtype="fp8", quantization="fp8_rowwise"),
            "build.kv_cache_dtype",
            "fp8 weights",
        ),
        (config("eagle", "tensorrt", quantization="fp8"), "build.quantization", "int8_weight_only"),
        (config("medusa", "tensorrt", quantization="fp8_rowwise"), "build.quantization", "fp8"),
        (config("redrafter", "tensorrt", "0.21.0", quantization="fp8"), "build.quantization", "1.0.0 or later"),
        (config("none", "tensorrt", calibration_dataset="d"), "build.calibration_dataset", "remove"),
        (config("none", "llmapi", quantization="fp8"), "build.quantization", "checkpoint"),
        (config("none", "llmapi", kv_cache_dtype="int8"), "build.kv_cache_dtype", "fp8"),
        (
            config("ngram", "llmapi", speculation={"ngram": {"min_ngram": 2}}),
            "speculation.ngram.min_ngram",
            "set it to 1",
        ),
        (config("eagle3", "llmapi", speculation={"tree": TREE}), "speculation.tree.choices", "1.3.0rc21"),
        (
            config("eagle3", "llmapi", "1.2.1", speculation={"tree": DYNAMIC, "max_draft_len": 4}),
            "speculation.tree",
            "1.3.0rc21",
        ),
        (
            config("draft_model", "llmapi", "1.4.0rc4", speculation={"tree": DYNAMIC, "acceptance": "rejection"}),
            "speculation.tree",
            "chains",
        ),
        (
            config("eagle3", "llmapi", "1.4.0rc4", speculation={"tree": DYNAMIC, "acceptance": "exact_match"}),
            "speculation.acceptance",
            "rejection",
        ),
        (
            config(
                "eagle3",
                "llmapi",
                "1.4.0rc4",
                speculation={"tree": {"top_k": 33, "max_total_draft_tokens": 64}, "acceptance": "rejection"},
            ),
            "speculation.tree.top_k",
            "32",
        ),
        (
            config("eagle3", "llmapi", "1.0.0", speculation={"draft_len_schedule": {1: 5, 8: 0}}),
            "speculation.draft_len_schedule",
            "1.3.0rc21",
        ),
        (
            config("eagle3", "llmapi", "1.1.0", speculation={"draft_len_schedule": {1: 5, 8: 2}}),
            "speculation.draft_len_schedule",
            "1.3.0rc21",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_limits_are_refused_by_their_key(made, key, words):
    error = refusal(made)
    assert error.where == key
    assert words in f"{error.what} {error.remedy}"


@pytest.mark.parametrize(
    "made",
    [
        config("eagle", "tensorrt", max_batch_size=512),
        config("eagle", "tensorrt", tensor_parallel_size=4, speculation={"tree": TREE}),
        config("none", "tensorrt", kv_cache_dtype="int8", enable_kv_cache_reuse=False, calibration_dataset="d"),
        config("draft_model", "tensorrt", kv_cache_dtype="fp8", quantization="fp8", pipeline_parallel_size=2),
        config("redrafter", "tensorrt", "1.0.0", quantization="fp8"),
        config("eagle3", "llmapi", "1.1.0", speculation={"draft_len_schedule": {1: 5, 8: 0}}),
        config("eagle3", "llmapi", "1.2.1", speculation={"draft_len_schedule": {1: 5, 8: 2, 32: 0}}),
        config("eagle3", "llmapi", "1.4.0rc4", speculation={"tree": DYNAMIC, "acceptance": "rejection"}),
    ],
)
def test_what_is_within_the_limits_is_offered(made):
    capabilities.check(made)


def test_several_findings_come_together():
    error = refusal(config("eagle", "tensorrt", max_batch_size=1024, pipeline_parallel_size=2, quantization="fp8"))
    assert "3 things" in error.what
    assert [detail.split(":")[0] for detail in error.details] == [
        "build.max_batch_size",
        "build.pipeline_parallel_size",
        "build.quantization",
    ]


BASE = "name: run\ntarget: {checkpoint: t}\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("speculation: {draft_acceptance_threshold: 0.5}", "exact_match is exact"),
        ("speculation: {posterior_threshold: 0.09}", "not the target's"),
        ("speculation: {use_relaxed_acceptance_for_thinking: true}", "not the target's"),
        ("speculation: {relaxed_acceptance: {top_k: 10}}", "not the target's"),
        ("speculation: {max_matching_ngram_size: 0}", "speculation.ngram.max_ngram"),
        ("speculation: {ngram: {max_matching_ngram_size: 3}}", "speculation.ngram.max_ngram"),
        ("speculation: {use_draft_logits: true}", "not exact"),
        ("build: {gather_context_logits: true}", "trtllm-build rejects it"),
        ("build: {max_beam_width: 4}", "not with beams"),
        ("build: {TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS: 3}", "without judging"),
        ("speculation: {medusa_choices: [[0]]}", "speculation.tree.choices"),
        ("speculation: {max_concurrency: 32}", "draft_len_schedule"),
        ("speculation: {num_nextn_predict_layers: 3}", "speculation.max_draft_len"),
    ],
)
def test_upstream_names_are_refused_with_their_reason(line, words):
    with pytest.raises(ConfigError) as caught:
        loader.loads(BASE + line)
    assert "unknown key" in caught.value.what
    assert words in caught.value.remedy


def test_an_ngram_of_length_0_is_refused():
    with pytest.raises(ConfigError) as caught:
        loader.loads(BASE + "speculation: {method: ngram, ngram: {max_ngram: 0}}")
    assert "speculation.ngram.max_ngram" in caught.value.what


def test_forced_acceptance_in_the_environment_is_refused():
    capabilities.check_environment({"PATH": "/bin"})
    with pytest.raises(CapabilityError, match="without judging"):
        capabilities.check_environment({"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "3"})


@pytest.mark.parametrize(
    ("target", "key", "value"),
    [
        ("torch", "tensor_parallel_size", 2),
        ("torch", "quantization", "fp8"),
        ("torch", "container", "image:tag"),
        ("torch", "enable_kv_cache_reuse", True),
        ("llmapi", "examples_dir", "/x"),
        ("llmapi", "calibration_dataset", "d"),
        ("tensorrt", "llm_args", {"a": 1}),
        ("tensorrt", "device", "cpu"),
        ("tensorrt", "tensor_parallel_size", None),
    ],
)
def test_keys_of_other_targets_are_refused(target, key, value):
    with pytest.raises(ConfigError) as caught:
        config("none", target, **{key: value})
    assert f"build.{key}" in str(caught.value)
    assert "remove the" in str(caught.value)


@pytest.mark.parametrize(
    ("method", "target", "version", "rule"),
    [
        ("ngram", "torch", None, "rejection"),
        ("medusa", "tensorrt", "1.2.1", "greedy"),
        ("draft_model", "tensorrt", "0.19.0", "exact_match"),
        ("draft_model", "llmapi", "1.1.0", "greedy"),
        ("draft_model", "llmapi", "1.2.1", "rejection"),
        ("draft_model", "llmapi", "1.4.0rc4", "exact_match"),
        ("eagle3", "llmapi", None, "exact_match"),
        ("mtp", "llmapi", "1.0.0", "greedy"),
        ("mtp", "llmapi", "1.3.0rc29", "exact_match"),
        ("ngram", "llmapi", "1.1.0", "exact_match"),
    ],
)
def test_the_default_rule_serves_as_much_as_the_version_can(method, target, version, rule):
    assert config(method, target, version).speculation.acceptance == rule
    assert config(method, target, version, {"acceptance": "greedy"}).speculation.acceptance == "greedy"


def test_the_default_rule_is_that_of_the_spelling_too():
    text = BASE + "speculation: {method: EAGLE-3, checkpoint: d}\nbuild: {target: llmapi}\n"
    assert loader.loads(text).speculation.acceptance == "exact_match"


def test_what_is_no_version_is_refused_with_examples():
    with pytest.raises(ConfigError) as caught:
        loader.loads(BASE + "build: {target: llmapi, tensorrt_llm_version: latest}\n")
    assert caught.value.expected == "such as 1.2.1 or 1.3.0rc20"


def test_no_version_is_named_as_a_remedy_for_a_method_that_no_version_of_the_target_has():
    error = refusal(config("eagle3", "tensorrt", "1.3.0rc29"))
    assert error.where == "speculation.method"
    assert "llmapi with tensorrt_llm_version 1.0.0 or later" in error.remedy


def test_the_reason_of_a_refused_rule_is_the_targets_own():
    on_engine = refusal(config("draft_model", "tensorrt", speculation={"acceptance": "rejection"}))
    assert "draft logits" in on_engine.what
    on_llmapi = refusal(config("draft_model", "llmapi", "1.0.0", speculation={"acceptance": "rejection"}))
    assert "draft logits" not in on_llmapi.what
    assert "temperature 0 only" in on_llmapi.what


def test_a_version_without_the_target_lists_no_methods():
    assert refusal(config("eagle3", "tensorrt", "1.3.0rc21")).expected is None
    assert refusal(config("eagle3", "tensorrt", "1.3.0rc20")).expected.endswith("redrafter")


def remedy_of(made: RunConfig) -> str | None:
    from trt_spec.engines.llmapi.args import llm_args

    try:
        llm_args(made)
    except CapabilityError as error:
        return error.remedy
    return None


@pytest.mark.parametrize("pinned", ["1.0.0", "1.1.0"])
@pytest.mark.parametrize("method", ["draft_model", "ngram", "eagle3", "mtp"])
@pytest.mark.parametrize("schedule", [{1: 4, 8: 0}, {1: 4, 4: 2, 8: 0}])
def test_the_version_that_a_refused_schedule_names_takes_it(method, schedule, pinned):
    """A remedy that the next command refuses too is none."""
    given = {"max_draft_len": 4, "draft_len_schedule": schedule}
    remedy = remedy_of(config(method, "llmapi", pinned, given))
    if remedy is None:
        assert (pinned, len(schedule)) == ("1.1.0", 2)  # which max_concurrency says too
        return
    assert "remove the key" in remedy
    if "two steps" in remedy:
        given["draft_len_schedule"] = {1: 4, 8: 0}
    for version in ("1.1.0", "1.2.1", "1.3.0rc21"):
        if version in remedy:
            assert remedy_of(config(method, "llmapi", version, given)) is None


def test_a_schedule_of_one_length_is_none():
    given = {"max_draft_len": 3, "draft_len_schedule": {1: 3}}
    for version in LLMAPI_VERSIONS:
        capabilities.check(config("ngram", "llmapi", version, given))
