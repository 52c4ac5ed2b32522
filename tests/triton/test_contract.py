"""The contract is a superset of the llmapi model's, under the same names and data types."""

from __future__ import annotations

import pytest

from trt_spec.runtime.request import SamplingParams
from trt_spec.triton.contract import CLIENT_NAMES, INPUT_BY_NAME, INPUTS, OUTPUT_BY_NAME, OUTPUTS, PREFIX, unary_name

# Name, data type and dims of the llmapi model of TensorRT-LLM: 0.19, 1.0 to 1.2 and main (late 2026) together.
LLMAPI_INPUTS = """
text_input STRING -1 | streaming BOOL 1 | stop BOOL 1 | image_url STRING -1
sampling_param_beam_width INT32 1 | sampling_param_best_of INT32 1 | sampling_param_temperature FP32 1
sampling_param_top_k INT32 1 | sampling_param_top_p FP32 1 | sampling_param_frequency_penalty FP32 1
sampling_param_presence_penalty FP32 1 | sampling_param_max_tokens INT32 1 | sampling_param_stop STRING -1
sampling_param_seed UINT64 1 | sampling_param_exclude_input_from_output BOOL 1
sampling_param_return_perf_metrics BOOL 1 | return_finish_reason BOOL 1 | return_stop_reason BOOL 1
return_cumulative_logprob BOOL 1 | lora_id UINT64 1 | lora_name STRING 1 | lora_path STRING 1
lora_ckpt_source STRING 1 | sampling_param_logits_post_processor_name STRING 1
"""
LLMAPI_OUTPUTS = """
text_output STRING -1 | finish_reason STRING -1 | stop_reason STRING -1 | cumulative_logprob FP32 -1
kv_cache_reused_block INT32 -1 | kv_cache_missed_block INT32 -1 | kv_cache_alloc_new_blocks INT32 -1
kv_cache_alloc_total_blocks INT32 -1 | kv_cache_hit_rate FP32 -1 | arrival_time_ns INT64 1
first_scheduled_time_ns INT64 1 | first_token_time_ns INT64 1 | last_token_time_ns INT64 1 | acceptance_rate FP32 1
total_accepted_draft_tokens INT32 1 | total_draft_tokens INT32 1
"""
OURS = {
    "input_ids": "INT32",
    "speculation": "BOOL",
    "max_draft_len": "INT32",
    "sampling_param_min_tokens": "INT32",
    "sampling_param_min_p": "FP32",
    "sampling_param_repetition_penalty": "FP32",
    "sampling_param_stop_token_ids": "INT32",
    "sampling_param_ignore_eos": "BOOL",
    "sampling_param_logprobs": "BOOL",
    "sampling_param_n": "INT32",
}
OUR_OUTPUTS = {
    "output_ids": "INT32",
    "num_input_tokens": "INT32",
    "num_output_tokens": "INT32",
    "logprobs": "FP32",
    "num_drafts": "INT32",
    "accepted_per_position": "INT32",
}


def rows(table: str) -> list[list[str]]:
    return [cell.split() for line in table.strip().splitlines() for cell in line.split(" | ")]


@pytest.mark.parametrize(("table", "ours"), [(LLMAPI_INPUTS, INPUT_BY_NAME), (LLMAPI_OUTPUTS, OUTPUT_BY_NAME)])
def test_every_tensor_of_llmapi_is_here(table, ours):
    for name, data_type, size in rows(table):
        assert (ours[name].data_type, ours[name].dims) == (data_type, (int(size),)), name


def test_what_llmapi_lacks_is_here_too():
    assert {name: INPUT_BY_NAME[name].data_type for name in OURS} == OURS
    assert {name: OUTPUT_BY_NAME[name].data_type for name in OUR_OUTPUTS} == OUR_OUTPUTS


def test_names_are_unique_and_documented():
    for table in (INPUTS, OUTPUTS):
        assert len({tensor.name for tensor in table}) == len(table)
        assert all(tensor.doc for tensor in table)
    assert len({tensor.short_name for tensor in INPUTS if tensor.name != "stop"}) == len(INPUTS) - 1


def test_every_sampling_parameter_can_be_sent():
    fields = set(SamplingParams.__dataclass_fields__) - {"logit_bias"}
    assert fields <= set(CLIENT_NAMES)
    assert all(CLIENT_NAMES[name].name == PREFIX + name for name in fields)


def test_the_alias_has_a_name_of_its_own():
    assert unary_name("tensorrt_llm") == "tensorrt_llm_unary"
