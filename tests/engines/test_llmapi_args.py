"""Arguments of tensorrt_llm.LLM: golden files per method and version; names against a second copy of the facts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from tests.engines.llmapi_runs import METHODS, VERSIONS, llmapi_run
from trt_spec import methods
from trt_spec.config import capabilities, versions
from trt_spec.config.schema import RunConfig
from trt_spec.engines.llmapi.args import last_batch_before_off, llm_args, placement, to_upper_bounds
from trt_spec.engines.llmapi.plan import arguments_text
from trt_spec.errors import CapabilityError, ConfigError

GOLDEN = Path(__file__).parents[1] / "golden" / "trtllm"
NAMES = json.loads((Path(__file__).parents[1] / "data" / "llmapi_names.json").read_text())
# The version whose names were read -> the versions that take them.
NAMES_OF = {"1.3.0rc20": "1.2.0", "1.3.0rc29": "1.3.0rc22"}
CASES = [(method, version) for method in METHODS for version in VERSIONS]


def speculative(method, version, **keys):
    return llm_args(llmapi_run(method, version, **keys)).get("speculative_config")


def names_of(section, version):
    other = NAMES[f"{section}_of"].get(version, {"lacks": [], "adds": []})
    return {*NAMES[section], *other["adds"]} - {*other["lacks"]}


@pytest.mark.parametrize(("method", "version"), CASES)
def test_the_arguments_are_the_golden_ones(method, version):
    config = llmapi_run(method, version)
    text = arguments_text(config, llm_args(config))
    path = GOLDEN / f"llmapi-{method}-{version}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
    assert yaml.safe_load(text) == llm_args(llmapi_run(method, version))


@pytest.mark.parametrize(("method", "version"), CASES)
@pytest.mark.parametrize("acceptance", ["default", "greedy", "exact_match", "rejection"])
def test_every_name_is_one_of_the_version(method, version, acceptance):
    chosen = {} if acceptance == "default" else {"acceptance": acceptance}
    try:
        arguments = llm_args(llmapi_run(method, version, **chosen))
    except CapabilityError:
        assert acceptance != "default"  # some rule is there for every method and version
        return
    assert set(arguments) <= names_of("llm_args", version)
    assert set(arguments["kv_cache_config"]) <= names_of("kv_cache_config", version)
    fields = dict(arguments.get("speculative_config", {}))
    if method == "none":
        assert fields == {}
        return
    kind = fields.pop("decoding_type")
    assert kind in NAMES["yaml_decoding_types"][version if version != "1.3.0rc29" else "1.3.0rc22"]
    read = NAMES_OF.get(version, version)
    class_name = {"Eagle3": "Eagle"}.get(kind, kind) if version == "1.3.0rc20" else kind
    known = {*NAMES["classes"][read][class_name]}
    if "speculative_model" in known:
        known.add("speculative_model_dir")  # an alias since 1.2
    assert set(fields) <= known


def test_plain_decoding_in_1_0_has_the_sampler_that_samples():
    with_it = [version for version in VERSIONS if "enable_trtllm_sampler" in llm_args(llmapi_run("none", version))]
    assert with_it == ["1.0.0"]
    assert "enable_trtllm_sampler" not in llm_args(llmapi_run("ngram", "1.0.0"))


def test_what_each_version_calls_it():
    assert [speculative("eagle3", v)["decoding_type"] for v in VERSIONS] == ["Eagle"] * 3 + ["Eagle3"] * 3
    for version in VERSIONS:
        mtp = speculative("mtp", version)
        name = "max_draft_len" if version in ("1.3.0rc29", "1.4.0rc4") else "num_nextn_predict_layers"
        assert {key: value for key, value in mtp.items() if value == 2 and value is not True} == {name: 2}
        assert speculative("ngram", version)["max_matching_ngram_size"] == 3
        assert speculative("draft_model", version)["speculative_model_dir"] == "draft"


@pytest.mark.parametrize("version", VERSIONS)
def test_drafters_beside_the_target_switch_the_overlap_scheduler_off(version):
    is_late = version in ("1.3.0rc29", "1.4.0rc4")
    expected = {"none": False, "ngram": True, "draft_model": not is_late, "mtp": False}
    expected["eagle3"] = version in ("1.0.0", "1.1.0")
    for method, is_off in expected.items():
        arguments = llm_args(llmapi_run(method, version))
        assert arguments.get("disable_overlap_scheduler", False) is is_off, method


def test_the_rule_decides_how_drafts_are_sampled():
    def read(version, acceptance, method="eagle3"):
        fields = speculative(method, version, acceptance=acceptance)
        names = ("eagle3_one_model", "allow_advanced_sampling", "use_rejection_sampling")
        return tuple(fields.get(name) for name in names)

    assert read("1.2.0", "exact_match") == (True, True, None)
    assert read("1.2.0", "greedy") == (True, False, None)
    assert read("1.2.0", "rejection") == (False, None, None)  # the sampler beside the models knows both laws
    assert read("1.3.0rc29", "exact_match") == (None, None, False)
    assert read("1.3.0rc29", "rejection") == (None, None, True)
    assert read("1.4.0rc4", "rejection", "draft_model") == (None, None, True)
    assert read("1.4.0rc4", "exact_match", "ngram") == (None, None, None)
    assert speculative("mtp", "1.4.0rc4")["enable_penalty"] is True


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_sampling_is_refused_where_only_greedy_is_documented(version):
    with pytest.raises(CapabilityError, match="acceptance"):
        llm_args(llmapi_run("eagle3", version, acceptance="rejection"))


# --- draft length by batch size ---

SCHEDULE = {1: 4, 8: 2, 24: 0}


def test_a_schedule_keeps_its_meaning():
    lower = speculative("draft_model", "1.2.0", draft_len_schedule=SCHEDULE)["draft_len_schedule"]
    upper = speculative("draft_model", "1.3.0rc29", draft_len_schedule=SCHEDULE)["draft_len_schedule"]
    assert lower == {1: 4, 8: 2, 24: 0}
    assert upper == {7: 4, 23: 2}
    for batch in range(1, 33):  # read as each version reads it
        by_lower = lower[max(key for key in lower if key <= batch)]
        by_upper = next((upper[key] for key in sorted(upper) if batch <= key), 0)
        assert by_lower == by_upper


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({1: 4}, {32: 4}),
        ({1: 4, 8: 2}, {7: 4, 32: 2}),
        ({1: 4, 8: 0, 16: 2}, {7: 4, 15: 0, 32: 2}),
        ({1: 4, 33: 0}, {32: 4}),
        ({1: 4, 32: 0}, {31: 4}),
    ],
)
def test_upper_bounds(schedule, expected):
    bounds = to_upper_bounds(schedule, 32)
    assert bounds == expected
    assert bounds[min(bounds)] == 4  # what 1.3 asks of the smallest key


@pytest.mark.parametrize("version", ["1.1.0", "1.3.0rc20"])
def test_a_schedule_that_only_switches_off_is_a_concurrency(version):
    fields = speculative("draft_model", version, draft_len_schedule={1: 4, 17: 0})
    assert fields["max_concurrency"] == 16
    assert "draft_len_schedule" not in fields
    assert last_batch_before_off({1: 4, 9: 4, 17: 0}) == 16
    assert last_batch_before_off(SCHEDULE) is None


@pytest.mark.parametrize(
    ("method", "version", "schedule"),
    [
        ("draft_model", "1.0.0", {1: 4, 17: 0}),
        ("draft_model", "1.1.0", SCHEDULE),
        ("draft_model", "1.3.0rc20", SCHEDULE),  # the meaning changed within these candidates
        ("ngram", "1.4.0rc4", SCHEDULE),
        ("eagle3", "1.2.0", {1: 3, 17: 0}),  # inside one model the draft length is fixed
        ("mtp", "1.3.0rc20", {1: 2, 17: 0}),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(method, version, schedule):
    with pytest.raises(CapabilityError, match="draft_len_schedule"):
        llm_args(llmapi_run(method, version, draft_len_schedule=schedule))


# --- trees, sizes ---


def test_a_dynamic_tree():
    tree = {"top_k": 4, "max_total_draft_tokens": 10}
    fields = speculative("eagle3", "1.4.0rc4", tree=tree, acceptance="rejection")
    assert fields["use_dynamic_tree"] is True
    assert (fields["dynamic_tree_max_topK"], fields["max_total_draft_tokens"]) == (4, 10)
    for total in (2, 13):
        with pytest.raises(CapabilityError, match="max_total_draft_tokens"):
            speculative("eagle3", "1.4.0rc4", tree={**tree, "max_total_draft_tokens": total}, acceptance="rejection")


def test_sizes_are_those_of_the_run():
    keys = {"pipeline_parallel_size": 2, "kv_cache_dtype": "fp8", "kv_cache_free_gpu_memory_fraction": 0.5}
    arguments = llm_args(llmapi_run("ngram", "1.2.0", build={**keys, "enable_kv_cache_reuse": False}))
    assert (arguments["tensor_parallel_size"], arguments["pipeline_parallel_size"]) == (2, 2)
    cache = {"enable_block_reuse": False, "free_gpu_memory_fraction": 0.5, "dtype": "fp8"}
    assert arguments["kv_cache_config"] == cache
    assert arguments["enable_chunked_prefill"] is True  # 16384 tokens do not fit into a step of 8192
    whole = llm_args(llmapi_run("ngram", "1.2.0", build={"max_num_tokens": 16384}))
    assert whole["enable_chunked_prefill"] is False


def test_further_arguments_go_beside_those_of_the_run():
    given = {
        "enable_attention_dp": True,
        "kv_cache_config": {"host_cache_size": 1 << 33},
        "speculative_config": {"acceptance_window": 100},
    }
    arguments = llm_args(llmapi_run("eagle3", "1.2.0", build={"llm_args": given}))
    assert arguments["enable_attention_dp"] is True
    assert (arguments["kv_cache_config"]["host_cache_size"], arguments["kv_cache_config"]["dtype"]) == (1 << 33, "auto")
    assert arguments["speculative_config"]["acceptance_window"] == 100
    assert arguments["speculative_config"]["max_draft_len"] == 3


@pytest.mark.parametrize(
    ("version", "given", "words"),
    [
        ("1.1.0", {"speculative_config": {"acceptance_window": 100}}, "not in 1.1.0; in 1.2"),
        ("1.2.0", {"enable_atention_dp": True}, "did you mean enable_attention_dp"),
        ("1.2.0", {"enable_attention_dp": "yes"}, "is not of type bool"),
        ("1.2.0", {"max_batch_size": 4}, "another key of the run config decides it"),
        ("1.2.0", {"sampler_type": "TRTLLMSampler"}, "the sampler judges the drafts"),
        ("1.0.0", {"enable_trtllm_sampler": True}, "the sampler judges the drafts"),
        ("1.2.0", {"load_format": "dummy"}, "dummy weights are not the target's"),
        ("1.2.0", {"kv_cache_config": {"dtype": "fp8"}}, "build.llm_args.kv_cache_config.dtype"),
        ("1.2.0", {"speculative_config": {"max_draft_len": 4}}, "another key of the run config decides it"),
        ("1.2.0", {"speculative_config": {"posterior_threshold": 0.1}}, "not the target's"),
        ("1.2.0", {"speculative_config": "off"}, "another key of the run config decides it"),
    ],
)
def test_further_arguments_are_checked_like_the_others(version, given, words):
    with pytest.raises(CapabilityError) as caught:
        llm_args(llmapi_run("eagle3", version, build={"llm_args": given}))
    assert words in str(caught.value)


def test_nothing_is_added_to_drafting_where_there_is_none():
    given = {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 4}}
    with pytest.raises(CapabilityError, match="speculative_config"):
        llm_args(llmapi_run("none", "1.2.0", build={"llm_args": given}))


@pytest.mark.parametrize("target", ["torch", "tensorrt"])
def test_further_arguments_are_for_llmapi_only(target):
    build = {"target": target, "llm_args": {"enable_attention_dp": True}}
    values = {"name": "x", "target": {"checkpoint": "c"}, "build": build}
    with pytest.raises((ConfigError, CapabilityError), match=r"build\.llm_args"):
        capabilities.check(RunConfig.model_validate(values))


def test_every_offered_rule_has_a_placement():
    for method, version in CASES:
        for rule in methods.METHODS[method].offer("llmapi", versions.line_of(versions.parse(version))).acceptance:
            if rule in ("greedy", "rejection", "exact_match"):
                assert placement(llmapi_run(method, version, acceptance=rule)) in ("none", "one_model", "two_model")
