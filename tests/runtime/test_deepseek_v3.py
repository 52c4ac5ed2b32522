"""The DeepSeek-V3 family against transformers on tiny random checkpoints, and what its loader refuses."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import tiny
from tests.runtime import parity
from tests.runtime.models import cold_logits, prompts, tiny_engine
from trt_spec.checkpoints import deepseek_v3 as layout
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.errors import CheckpointError
from trt_spec.runtime import loading
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.models import DeepseekV3Model, load_model
from trt_spec.runtime.models.deepseek_v3 import DeepseekV3Layer
from trt_spec.runtime.request import Request, SamplingParams

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32,
    "beta_slow": 1,
}
CASES = {
    "plain": {},
    "direct-queries": {"q_lora_rank": None},
    "biases": {"attention_bias": True},
    "direct-queries-biases": {"q_lora_rank": None, "attention_bias": True},
    "half-rope": {"rope_interleave": False},
    "yarn": {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "yarn-two-mscales": {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}, "rope_interleave": False},
    "yarn-no-mscale": {"rope_parameters": YARN},
    "all-dense": {"first_k_dense_replace": 3},
    "all-experts": {"first_k_dense_replace": 0, "n_shared_experts": 1},
    "one-group": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 6},
    "weights-as-they-are": {"norm_topk_prob": False, "routed_scaling_factor": 0.5},
    "tied": {"tie_word_embeddings": True},
    "large-eps": {"rms_norm_eps": 0.1},  # which the latent norms do not share
    "odd-sizes": {"hidden_size": 30, "moe_intermediate_size": 7, "kv_lora_rank": 9, "v_head_dim": 5},
}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory) -> parity.Pair:
    directory = tmp_path_factory.mktemp(request.param)
    return parity.Pair(directory, tiny.save_deepseek_v3(directory, **CASES[request.param]))


@pytest.mark.parametrize("check", parity.CHECKS, ids=lambda check: check.__name__.removeprefix("assert_"))
def test_equals_transformers(pair, check):
    check(pair)


@pytest.fixture
def checkpoint(tmp_path):
    tiny.save_deepseek_v3(tmp_path)
    return tmp_path


def load(path, dtype: torch.dtype = torch.float32) -> DeepseekV3Model:
    return load_model(path, dtype, parity.CPU, parity.NUM_POSITIONS)


def last_logits(model) -> torch.Tensor:
    return cold_logits(model, range(60))[-1]


def rewrite(path, change) -> None:
    """Replaces the tensors of a checkpoint by what `change` makes of them."""
    file = path / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("plain", {"rope_interleave": False}),
        ("plain", {"n_group": 1, "topk_group": 1}),
        ("plain", {"norm_topk_prob": False}),
        ("yarn", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.0}}),
        ("yarn", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    ],
    ids=["interleave", "groups", "normalisation", "mscale", "yarn"],
)
def test_parity_would_notice(tmp_path, case, changes):
    reference = tiny.save_deepseek_v3(tmp_path, **CASES[case])
    expected = parity.Pair(tmp_path, reference).expected(range(60))
    tiny.edit_json(tmp_path / "config.json", **changes)
    gap = (cold_logits(load(tmp_path), range(60)) - expected).abs().max()
    assert gap > 10 * parity.MAX_LOGIT_GAP


def test_the_cache_holds_compressed_rows(checkpoint):
    model = load(checkpoint)
    cache = model.make_cache(2, 8)
    assert cache.rows.shape == (3, 16, model.config.kv_lora_rank + model.config.qk_rope_head_dim)
    batch = pack([Rows(0, 0, [5, 6, 7])], 8, model.dtype, model.device)
    model.forward(batch, cache)
    latents = cache.rows[0, :3, : model.config.kv_lora_rank]
    weight = load_file(checkpoint / "model.safetensors")["model.layers.0.self_attn.kv_a_layernorm.weight"]
    torch.testing.assert_close((latents / weight).pow(2).mean(-1), torch.ones(3), atol=1e-4, rtol=0)  # normalised


def test_a_row_does_not_depend_on_its_neighbours(checkpoint):
    """What other sequences of the batch route to changes nothing."""
    model = load(checkpoint)
    tokens = list(range(20))
    alone = cold_logits(model, tokens)
    cache = model.make_cache(2, 32)
    batch = pack([Rows(0, 0, tokens), Rows(1, 0, list(range(60, 90)))], 32, model.dtype, model.device)
    parity.assert_close(model.logits(model.forward(batch, cache).last[:20]), alone)


def test_drafts_change_nothing(checkpoint):
    """The whole engine: slots, trees of rows and rollback on compressed rows; three requests at once."""
    requests = [
        Request(str(index), tokens, SamplingParams(max_tokens=20)) for index, tokens in enumerate(prompts(3, 97))
    ]
    target = load(checkpoint)
    plain = tiny_engine("none", target).generate(requests)
    drafted = tiny_engine("ngram", target).generate(requests)
    assert [result.token_ids for result in drafted] == [result.token_ids for result in plain]
    assert sum(result.completion.total_accepted_draft_tokens for result in drafted) > 0


# ---- dtypes ----


def test_the_router_stays_float32_in_a_bfloat16_model(checkpoint):
    model = load(checkpoint, torch.bfloat16)
    moe = model.layers[-1].mlp
    assert moe.router.weight.dtype is moe.router.bias.dtype is torch.float32
    assert moe.experts.down.dtype is model.dtype is torch.bfloat16
    bias = load_file(checkpoint / "model.safetensors")["model.layers.2.mlp.gate.e_score_correction_bias"]
    assert torch.equal(moe.router.bias, bias)


@pytest.mark.parametrize("case", ["all-dense", "direct-queries-biases"])
def test_bfloat16_is_float32_but_for_rounding(tmp_path, case):
    """With dense layers, or with all experts chosen, so that rounding cannot choose another expert."""
    changes = {"n_group": 1, "topk_group": 1, "n_routed_experts": 4, "num_experts_per_tok": 4} | CASES[case]
    tiny.save_deepseek_v3(tmp_path, **changes)
    wide, narrow = (cold_logits(load(tmp_path, dtype), range(60)) for dtype in (torch.float32, torch.bfloat16))
    # 8 bits of mantissa, some 20 roundings in a row: a few percent of the logits' spread.
    assert (narrow - wide).pow(2).mean().sqrt() < 0.05 * wide.std()


def test_float64_is_float32_but_for_rounding(checkpoint):
    wide, narrow = (cold_logits(load(checkpoint, dtype), range(60)) for dtype in (torch.float64, torch.float32))
    assert wide.dtype is torch.float64
    assert (wide - narrow).abs().max() <= parity.MAX_LOGIT_GAP


# ---- loading ----


def fuse_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One tensor for all experts of a layer, as transformers holds them in memory."""
    fused = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for prefix in {match.group(1) for name in tensors if (match := re.match(r"(.+\.mlp\.experts\.)\d+\.", name))}:
        gate, up, down = (
            torch.stack([tensors[f"{prefix}{expert}.{part}_proj.weight"] for expert in range(16)])
            for part in ("gate", "up", "down")
        )
        fused |= {f"{prefix}gate_up_proj": torch.cat((gate, up), dim=1), f"{prefix}down_proj": down}
    return fused


def test_fused_experts_are_read_too(checkpoint):
    expected = last_logits(load(checkpoint))
    names = set(load_file(checkpoint / "model.safetensors"))
    rewrite(checkpoint, fuse_experts)
    assert "model.layers.1.mlp.experts.gate_up_proj" in set(load_file(checkpoint / "model.safetensors")) - names
    parity.assert_close(last_logits(load(checkpoint)), expected)


def with_mtp_layer(path) -> layout.DeepseekV3Config:
    """Adds one MTP layer of random weights; returns the config as parsed with it."""
    config = parse(path)
    rewrite(path, lambda tensors: tensors | tiny.random_tensors(layout.mtp_layer_tensors(config, 0), 1, torch.float32))
    tiny.edit_json(path / "config.json", num_nextn_predict_layers=1)
    return parse(path)


def parse(path) -> layout.DeepseekV3Config:
    checkpoint = CheckpointDir.open(path)
    return layout.parse_config(checkpoint.config, {name: info.shape for name, info in checkpoint.tensors.items()}, "")


def test_mtp_layers_are_left_alone_by_the_target(checkpoint):
    expected = last_logits(load(checkpoint))
    config = with_mtp_layer(checkpoint)
    assert (config.num_mtp_layers, config.num_nextn_predict_layers) == (1, 1)
    parity.assert_close(last_logits(load(checkpoint)), expected)


def test_an_mtp_layer_holds_a_decoder_layer(checkpoint):
    """Described whole, and its decoder layer runs on a cache of its own with the target's attention and table."""
    config = with_mtp_layer(checkpoint)
    model, stored = load(checkpoint), load_file(checkpoint / "model.safetensors")
    tensors = {name: stored[name] for name in layout.mtp_layer_tensors(config, 0)}
    own = {name.removeprefix("model.layers.3.") for name in tensors}
    assert {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight", *layout.MTP_COPIES} < own
    assert "mlp.gate.e_score_correction_bias" in own
    layer = DeepseekV3Layer(config, tensors, layout.mtp_layer_prefix(config, 0), model.attention)
    cache = model.attention.make_cache(1, 1, 8)
    batch = pack([Rows(0, 0, [1, 2, 3])], 8, model.dtype, model.device)
    x = torch.randn(3, config.hidden_size)
    out = layer(x, 0, model.attention.context(batch, cache))
    assert out.shape == x.shape
    assert cache.rows[0, :3].abs().amin() > 0


def test_published_sizes_give_the_published_parameter_count():
    """DeepSeek-V3 without its MTP layer has 671 billion parameters."""
    sizes = {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048}
    sizes |= {"num_hidden_layers": 61, "first_k_dense_replace": 3, "num_attention_heads": 128, "q_lora_rank": 1536}
    sizes |= {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    sizes |= {"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4}
    shapes = layout.expected_tensors(layout.parse_config(sizes | {"max_position_embeddings": 163840}, {}, "")).values()
    assert round(sum(torch.Size(shape).numel() for shape in shapes) / 1e9) == 671


def refusal(path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "deepseek_v2"}, ("not native", "deepseek_v2")),
        ({"scoring_func": "softmax"}, ("scoring_func", "softmax")),
        ({"topk_method": "group_limited_greedy"}, ("topk_method", "noaux_tc")),
        ({"num_key_value_heads": 2}, ("num_key_value_heads", "4, as query heads")),
        ({"quantization_config": {"quant_method": "fp8"}}, ("quantization_config", "an unquantised checkpoint")),
        ({"n_group": 3}, ("contradict", "n_group 3")),
        ({"num_experts_per_tok": 9}, ("contradict", "num_experts_per_tok 9")),
        ({"n_group": 16}, ("contradict", "groups of 2 or more")),
        ({"kv_lora_rank": None}, ("kv_lora_rank", "a positive integer")),
        ({"first_k_dense_replace": -1}, ("first_k_dense_replace", "at least 0")),
        (
            {"first_k_dense_replace": 2},
            ("missing: model.layers.1.mlp.up_proj.weight", "unexpected: model.layers.1.mlp"),
        ),
        ({"q_lora_rank": None}, ("missing: model.layers.0.self_attn.q_proj.weight", "unexpected: ")),
        ({"attention_bias": True}, ("missing: model.layers.0.self_attn.kv_a_proj_with_mqa.bias",)),
        ({"n_routed_experts": 12}, ("unexpected: model.layers.1.mlp.experts.12.up_proj.weight",)),
        ({"num_hidden_layers": 2}, ("unexpected: model.layers.2.self_attn.o_proj.weight",)),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, ("dynamic",)),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_refuses_a_config_that_it_would_compute_wrongly(checkpoint, changes, named):
    tiny.edit_json(checkpoint / "config.json", **changes)
    message = refusal(checkpoint)
    assert all(words in message for words in named), message


def test_missing_experts_are_named(checkpoint):
    rewrite(checkpoint, lambda tensors: {k: v for k, v in tensors.items() if ".experts.7." not in k})
    message = refusal(checkpoint)
    assert "6 missing" in message
    assert "missing: model.layers.2.mlp.experts.7.down_proj.weight" in message


def test_context_ends_at_the_positions(checkpoint):
    model = load(checkpoint)
    loading.check_context(model, 256, "here")
    with pytest.raises(Exception, match="positions"):
        loading.check_context(model, 257, "here")
