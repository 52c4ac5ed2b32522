"""The keys of what inspect, plan, convert and build print. Readers hold on to them: a change here is one for them."""

from __future__ import annotations

import json

from tests import tiny
from tests.engines.runs import tiny_run
from tests.engines.trtllm_runs import trtllm_run
from tests.triton.llm_cases import llmapi_config
from trt_spec.checkpoints.detect import inspect
from trt_spec.checkpoints.trtllm import normalise
from trt_spec.engines.builder import build, plan_run

ALWAYS = "path role method family is_native vocab_size hidden_size num_layers num_tensors num_parameters dtypes"
ALWAYS += " max_position_embeddings fits_target problems notes"
MODEL = "num_mtp_layers num_attention_heads num_key_value_heads head_dim has_tied_head"
EAGLE = "target_hidden_size has_own_embedding num_embeddings has_own_head draft_vocab_size has_d2t mapped_vocab_size"
PAIR = "num_shared tolerated_ids target_only_ids draft_only_ids target_padded_ids draft_padded_ids"


def keys(*texts: str) -> set[str]:
    return set(" ".join(texts).split())


def printed(value) -> dict:
    return json.loads(json.dumps(value.as_dict()))


def test_inspect(tmp_path):
    target = tiny.llama_checkpoint(tmp_path / "target")
    alone = printed(inspect(target))
    assert set(alone) == keys(ALWAYS, MODEL, "tokenizer")
    assert set(alone["tokenizer"]) == {"vocab_size", "eos_token_ids", "has_chat_template"}
    pair = printed(inspect(tiny.llama_checkpoint(tmp_path / "draft", num_hidden_layers=1), target))
    assert set(pair) == keys(ALWAYS, MODEL, "tokenizer_pair")
    assert set(pair["tokenizer_pair"]) == keys(PAIR)
    heads = tiny.save_draft(tmp_path / "medusa", tiny.medusa_shapes())
    assert set(printed(inspect(heads))) == keys(ALWAYS, "num_heads num_blocks has_own_outputs")
    layer = printed(inspect(tiny.save_draft(tmp_path / "eagle", tiny.eagle_shapes(hidden=16)), target))
    assert set(layer) == keys(ALWAYS, EAGLE, "captured_layers")
    assert set(layer["problems"][0]) == {"code", "message", "remedy"}
    assert set(alone["notes"][0] if alone["notes"] else {"code", "message"}) == {"code", "message"}


def test_plan_and_convert(tmp_path):
    common = "run build_target engine_dir steps commands notes files"
    assert set(printed(plan_run(tiny_run(tmp_path / "torch")))) == keys(common)
    assert set(printed(plan_run(llmapi_config(tmp_path / "llmapi")))) == keys(common, "texts")
    (tmp_path / "tensorrt").mkdir()
    planned = printed(plan_run(trtllm_run(tmp_path / "tensorrt", "medusa")))
    assert set(planned) == keys(common, "container container_command sizes tools")
    assert [set(planned[name][0]) for name in ("files", "sizes", "tools")] == [
        {"path", "source"},
        {"name", "asked", "built", "why"},
        {"step", "command"},
    ]
    done = printed(normalise.convert(tmp_path / "tensorrt" / "draft", tmp_path / "out", "tensorrt", "1.2.1"))
    record = "source method build_target tensorrt_llm_version is_needed files changes notes facts"
    assert set(done) == keys(record) == set(json.loads((tmp_path / "out" / "conversion.json").read_text()))


def test_manifest(tmp_path):
    limits = "method acceptance max_draft_len max_batch_size max_seq_len dtype vocab_size"
    torch = printed(build(tiny_run(tmp_path / "torch"), engines_dir=tmp_path / "engines").manifest)
    assert set(torch) == keys(
        "run build_target created digest engine config inputs outputs commands git versions machine verified",
        "not_verified format",
    )
    assert set(torch["engine"]) == keys(limits)
    record = torch["inputs"]["target"]
    assert set(record) == keys("path role method family num_tensors num_parameters dtypes files")
    assert set(record["files"]["config.json"]) == {"sha256", "size", "mtime_ns"}
    assert set(torch["verified"][0]) == {"check", "result", "details"}
    llmapi = printed(build(llmapi_config(tmp_path / "llmapi"), engines_dir=tmp_path / "engines").manifest)
    assert set(llmapi["engine"]) == keys(limits, "tensorrt_llm_version drafter_placement")
