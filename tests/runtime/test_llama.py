"""The Llama-like family against transformers on tiny random checkpoints, and what its loader refuses."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests import tiny
from tests.runtime import parity
from tests.runtime.models import cold_logits
from trt_spec.errors import CheckpointError, ConfigError
from trt_spec.runtime import loading
from trt_spec.runtime.models import load_model

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN_ROPE = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0}


def rope(theta: float = 10000.0, **scaling) -> dict:
    original = {"original_max_position_embeddings": 32} if scaling.get("rope_type") in ("llama3", "yarn") else {}
    return {"rope_parameters": {"rope_theta": theta, **({"rope_type": "default"} | scaling), **original}}


# Name to (class of transformers' config, changes to SIZES).
CASES = {
    "llama": ("LlamaConfig", rope(500.0)),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama-biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama-no-groups": ("LlamaConfig", {"num_key_value_heads": 4}),
    "llama-one-kv-head": ("LlamaConfig", {"num_key_value_heads": 1}),
    "llama-wide-heads": ("LlamaConfig", {"head_dim": 12}),
    "llama-linear": ("LlamaConfig", rope(rope_type="linear", factor=4.0)),
    "llama-llama3": ("LlamaConfig", rope(**LLAMA3_ROPE)),
    "llama-yarn": ("LlamaConfig", rope(**YARN_ROPE)),
    "mistral": ("MistralConfig", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("Qwen2Config", rope(**YARN_ROPE, attention_factor=1.5, truncate=False)),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "qwen3-biases": ("Qwen3Config", {"head_dim": 6, "attention_bias": True, "tie_word_embeddings": True}),
}


def save(directory, case: str):
    kind, changes = CASES[case]
    return tiny.save_reference(directory, getattr(transformers, kind)(**(SIZES | changes)))


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory) -> parity.Pair:
    directory = tmp_path_factory.mktemp(request.param)
    return parity.Pair(directory, save(directory, request.param))


@pytest.mark.parametrize("check", parity.CHECKS, ids=lambda check: check.__name__.removeprefix("assert_"))
def test_equals_transformers(pair, check):
    check(pair)


@pytest.mark.parametrize("case", ["llama-linear", "llama-llama3", "llama-yarn", "qwen2-yarn"])
def test_parity_would_notice_another_scaling(tmp_path, case):
    expected = parity.Pair(tmp_path, save(tmp_path, case)).expected(range(60))[-1]
    tiny.edit_json(tmp_path / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    assert (last_logits(load(tmp_path)) - expected).abs().max() > 10 * parity.MAX_LOGIT_GAP


@pytest.fixture
def checkpoint(tmp_path):
    save(tmp_path, "llama")
    return tmp_path


def load(path):
    return load_model(path, torch.float32, parity.CPU, parity.NUM_POSITIONS)


def last_logits(model) -> torch.Tensor:
    return cold_logits(model, range(60))[-1]


def edit_tensors(path, **changes: torch.Tensor | None) -> None:
    """Sets tensors of a checkpoint; None removes one."""
    file = path / "model.safetensors"
    tensors = {name: tensor for name, tensor in {**load_file(file), **changes}.items() if tensor is not None}
    save_file(tensors, file, metadata={"format": "pt"})


def refusal(path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load(path)
    return caught.value


def test_reads_the_config_of_older_exports(tmp_path):
    """rope_theta and rope_scaling with `type`, as before transformers 5, and no head_dim."""
    save(tmp_path, "llama-linear")
    expected = last_logits(load(tmp_path))
    tiny.edit_json(
        tmp_path / "config.json",
        rope_parameters=None,
        head_dim=None,
        rope_theta=10000.0,
        rope_scaling={"type": "linear", "factor": 4.0},
    )
    parity.assert_close(last_logits(load(tmp_path)), expected)


def test_mimo_is_qwen2_with_prediction_layers_left_alone(tmp_path):
    save(tmp_path, "qwen2")
    expected = last_logits(load(tmp_path))
    tiny.edit_json(tmp_path / "config.json", model_type="mimo", num_nextn_predict_layers=1)
    edit_tensors(tmp_path, **{"model.mtp_layers.0.input_proj.weight": torch.ones(32, 64)})
    parity.assert_close(last_logits(load(tmp_path)), expected)


def test_a_tied_head_may_be_stored_a_second_time_if_it_is_the_same(tmp_path):
    save(tmp_path, "llama-tied")
    expected = last_logits(load(tmp_path))
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    edit_tensors(tmp_path, **{"lm_head.weight": embedding.clone()})
    parity.assert_close(last_logits(load(tmp_path)), expected)
    edit_tensors(tmp_path, **{"lm_head.weight": embedding + 1})
    assert "different lm_head.weight" in str(refusal(tmp_path))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gemma2"}, ("gemma2", "llama, mistral, qwen2, qwen3, mimo, deepseek_v3")),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, ("dynamic", "rope_scaling")),
        ({"rope_parameters": {"rope_type": "linear"}}, ("factor", "linear")),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, ("partial_rotary_factor", "0.5")),
        ({"quantization_config": {"quant_method": "fp8"}}, ("quantization_config", "fp8")),
        ({"hidden_act": "gelu"}, ("hidden_act", "gelu")),
        ({"num_key_value_heads": 3}, ("num_key_value_heads", "a divisor of num_attention_heads, which is 4")),
        ({"num_key_value_heads": 8}, ("num_key_value_heads", "8")),
        ({"head_dim": 7}, ("head_dim", "an even number")),
        ({"tie_word_embeddings": True}, ("different lm_head.weight", "tie_word_embeddings")),
        ({"num_hidden_layers": 3}, ("missing: model.layers.2.mlp.up_proj.weight",)),
        ({"num_hidden_layers": 1}, ("unexpected: model.layers.1.mlp.up_proj.weight",)),
        (
            {"num_key_value_heads": 4},
            ("wrong shape: model.layers.0.self_attn.k_proj.weight is [16, 32], not [32, 32]",),
        ),
        ({"vocab_size": "97"}, ("vocab_size", "a positive integer")),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_refuses_a_config_that_it_would_compute_wrongly(checkpoint, changes, named):
    tiny.edit_json(checkpoint / "config.json", **changes)
    message = str(refusal(checkpoint))
    assert all(words in message for words in named), message


def test_refuses_quantised_tensors(checkpoint):
    edit_tensors(checkpoint, **{"model.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(1, 1)})
    assert refusal(checkpoint).remedy.startswith("the checkpoint is quantised")


@pytest.mark.parametrize(
    ("window", "limit", "what"), [(64, 64, "sliding window"), (None, 256, "positions"), (512, 256, "positions")]
)
def test_context_ends_at_the_window_or_the_positions(tmp_path, window, limit, what):
    tiny.save_reference(tmp_path, transformers.MistralConfig(**SIZES, sliding_window=window))
    model = load(tmp_path)
    loading.check_context(model, limit, "here")
    with pytest.raises(ConfigError, match=what) as caught:
        loading.check_context(model, limit + 1, "here")
    assert caught.value.expected == f"at most {limit}"


def test_a_window_that_no_layer_uses_is_no_limit(tmp_path):
    config = transformers.Qwen2Config(**SIZES, use_sliding_window=False)
    tiny.save_reference(tmp_path, config)
    tiny.edit_json(tmp_path / "config.json", sliding_window=16, layer_types=None)  # as Qwen2 was published
    loading.check_context(load(tmp_path), 256, "here")
