"""Fields of the LLM API by version: the packaged table against a second copy of the facts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.version import Version

from trt_spec.config import llmapi_fields
from trt_spec.config.versions import line_of
from trt_spec.errors import CapabilityError
from trt_spec.methods import LLMAPI_LINES

NAMES = json.loads((Path(__file__).parents[1] / "data" / "llmapi_names.json").read_text())
WRITTEN = ("MTP", "Eagle", "Eagle3", "NGram", "DraftTarget")


@pytest.mark.parametrize("version", NAMES["classes"])
def test_the_table_has_the_fields_that_were_read(version):
    parsed = Version(version)
    assert list(llmapi_fields.decoding_types(parsed)) == NAMES["yaml_decoding_types"][version]
    for decoding_type in WRITTEN:
        known = NAMES["classes"][version].get(decoding_type)
        if known is not None:
            assert sorted(llmapi_fields.speculative_fields(parsed, decoding_type)) == known


@pytest.mark.parametrize("version", NAMES["yaml_decoding_types"])
@pytest.mark.parametrize("section", ["llm_args", "kv_cache_config"])
def test_the_sections_have_the_fields_that_were_read(section, version):
    other = NAMES[f"{section}_of"].get(version, {"lacks": [], "adds": []})
    expected = {*NAMES[section], *other["adds"]} - {*other["lacks"]}
    assert set(llmapi_fields.section_fields(section, line_of(Version(version)))) == expected


def test_every_line_of_versions_was_read():
    assert {line_of(Version(version)) for version in NAMES["yaml_decoding_types"]} == set(LLMAPI_LINES)


def speculative(decoding_type="Eagle", **fields):
    return {"model": "target", "speculative_config": {"decoding_type": decoding_type, **fields}}


@pytest.mark.parametrize(
    ("version", "arguments", "words"),
    [
        ("1.1.0", speculative(allow_advanced_sampling=True), "not in 1.1.0; in 1.2, 1.3-early, 1.3-late, 1.4"),
        ("1.0.0", speculative(max_concurrency=4), "not in 1.0.0; in 1.1"),
        ("1.2.0", speculative(use_rejection_sampling=True), "not in 1.2.0; in 1.3-late, 1.4"),
        ("1.4.0rc4", speculative("Eagle3", eagle3_one_model=False), "not in 1.4.0rc4; in 1.0"),
        ("1.2.0", speculative("Eagle3"), "decoding_type Eagle3: only in 1.3-early, 1.3-late, 1.4"),
        ("1.4.0rc4", speculative("Eagle"), "decoding_type Eagle: only in 1.0"),
        ("1.2.0", speculative("Egale"), "in no version that was read"),
        ("1.2.0", speculative(max_draft_length=4), "did you mean max_draft_len?"),
        ("1.2.0", speculative(max_draft_len="4"), "'4' is not of type Optional[int]"),
        ("1.2.0", speculative(max_draft_len=True), "True is not of type"),
        ("1.4.0rc4", speculative("NGram", max_matching_ngram_size=0), "0 is not of type PositiveInt"),
        ("1.2.0", {"model": "target", "max_batchsize": 4}, "did you mean max_batch_size?"),
        ("1.0.0", {"model": "t", "return_perf_metrics": True}, "return_perf_metrics: not in 1.0.0; in 1.1, 1.2,"),
        ("1.1.0", {"model": "t", "enable_trtllm_sampler": True}, "enable_trtllm_sampler: not in 1.1.0; in 1.0"),
        (
            "1.0.0",
            {"model": "t", "kv_cache_config": {"tokens_per_block": 32}},
            "tokens_per_block: not in 1.0.0; in 1.1",
        ),
        ("1.2.0", {"model": "t", "max_draft_len": 4}, "max_draft_len: no such field"),
        ("1.2.0", {"model": "t", "kv_cache_config": {"free_gpu_mem_fraction": 0.9}}, "kv_cache_config.free_gpu_mem"),
        ("1.2.0", {"model": "t", "kv_cache_config": {"enable_block_reuse": "yes"}}, "'yes' is not of type bool"),
        ("1.2.0", {"model": "t", "load_format": "lazy"}, "'lazy' is not of type"),
    ],
)
def test_what_a_version_does_not_take_is_refused_with_the_ones_that_do(version, arguments, words):
    with pytest.raises(CapabilityError) as caught:
        llmapi_fields.check(arguments, Version(version))
    assert words in str(caught.value)


def test_every_problem_is_told_at_once():
    with pytest.raises(CapabilityError) as caught:
        llmapi_fields.check({**speculative(a=1, b=2), "c": 3}, Version("1.2.0"))
    assert len(caught.value.details) == 3


def test_what_is_right_passes():
    llmapi_fields.check(
        {
            **speculative("MTP", max_draft_len=2, draft_len_schedule={8: 2, 16: 1}, relaxed_delta=0),
            "kv_cache_config": {"max_attention_window": [4096], "dtype": "fp8", "free_gpu_memory_fraction": 0.9},
            "guided_decoding_backend": None,
            "moe_config": {},
        },
        Version("1.3.0rc29"),
    )
    llmapi_fields.check(speculative(speculative_model_dir="draft", eagle3_layers_to_capture=[1, 2]), Version("1.2.0"))


@pytest.mark.parametrize(
    ("value", "text", "is_of_it"),
    [
        (1, "int", True),
        (True, "int", False),
        (None, "Optional[float]", True),
        (1, "Optional[float]", True),
        ("x", "Optional[Union[str,Path]]", True),
        (3, "Optional[Union[str,Path]]", False),
        ([1, 1], "Optional[Set[int]]", False),
        ([[0], [0, 1]], "Optional[List[List[int]]]", True),
        ({1: 2}, "Optional[dict[int,int]]", True),
        ({"1": 2}, "Optional[dict[int,int]]", False),
        ("llama3", "Literal['llama3','mistral_large3']", True),
        ("llama4", "Literal['llama3','mistral_large3']", False),
        (-1, "NonNegativeInt", False),
        (0.0, "NonNegativeFloat", True),
        ({}, "KvCacheConfig", True),
        ("x", "KvCacheConfig", False),
    ],
)
def test_types(value, text, is_of_it):
    assert llmapi_fields.has_type(value, text) is is_of_it
