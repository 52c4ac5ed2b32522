"""The roofline: sizes of published models, terms by hand, and published speeds and speed-ups."""

from __future__ import annotations

import json

import pytest

from tests.tuning import published
from trt_spec.errors import CheckpointError, UsageError
from trt_spec.tuning.model_shapes import find, from_config, from_params
from trt_spec.tuning.planner import Planner, as_schedule
from trt_spec.tuning.roofline import GPUS, Roofline, find_gpu
from trt_spec.tuning.survival import AcceptanceProfile

# Billions of parameters as published, with a tied embedding counted once more.
SIZES = {
    "llama-3.1-8b-instruct": 8.03,
    "llama-3.3-70b-instruct": 70.55,
    "llama-3.1-405b": 405.9,
    "llama-3.2-1b-instruct": 1.236 + 0.263,
    "vicuna-7b-v1.3": 6.74,
    "qwen3-8b": 8.19,
    "qwen3-32b": 32.76,
    "smollm2-135m": 0.1345 + 0.0283,
    "deepseek-r1": 671.0,
}


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_sizes_are_the_published_ones(name, size):
    assert find(f"checkpoints/{name}").num_params / 1e9 == pytest.approx(size, rel=2e-3)


def test_deepseek_multiplies_37_billion_and_reads_more_with_more_rows():
    shape = find("deepseek-v3")
    assert shape.active_params / 1e9 == pytest.approx(37, rel=0.02)
    assert shape.read_params(1) == pytest.approx(shape.active_params)
    per_layer = shape.expert_params * 58
    assert shape.read_params(2) - shape.active_params == pytest.approx(per_layer * (256 * (1 - (31 / 32) ** 2) - 8))
    assert shape.read_params(1e6) == pytest.approx(shape.num_params - shape.head_params)


def test_a_config_that_is_here_is_read(tmp_path):
    directory = tmp_path / "llama-3.1-8b"  # the file decides, not the name
    directory.mkdir()
    config = {"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 10, "num_attention_heads": 2}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="intermediate_size"):
        find(str(directory))
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 16, "num_key_value_heads": 1}))
    shape = find(str(directory))
    assert shape.layer_params(0) == 8 * 8 * 2 + 8 * 4 * 2 + 3 * 8 * 16  # q and o, k and v, the MLP
    assert (shape.kv_width, shape.attention_width) == (8, 16)
    (directory / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        find(str(directory))


def test_names_that_nobody_published_are_unknown():
    assert find("checkpoints/llama-3.1-80b") is None
    assert find("nowhere") is None


@pytest.mark.parametrize("size", [1e9, 8e9, 70e9, 400e9])
def test_a_count_of_parameters_is_kept(size):
    assert from_params(size).num_params == pytest.approx(size, rel=0.1)


def plain_model():
    config = {
        "num_hidden_layers": 10,
        "hidden_size": 1000,
        "vocab_size": 2000,
        "num_attention_heads": 10,
        "intermediate_size": 3000,
    }
    return from_config(config, "here")


def test_terms_by_hand():
    """10 layers of 4 · 10⁶ + 9 · 10⁶ and a head of 2 · 10⁶ parameters; context 100, batch 2, 3 rows each."""
    roofline = Roofline(find_gpu("a100"), plain_model(), "ngram", context=100, layer_overhead_us=5)
    params = 10 * 13e6 + 2e6
    kv_bytes = 2 * 100 * 10 * 2000 * 2
    operations = 2 * params * 6 + 2 * 6 * 100 * 10 * 2000
    seconds = (2 * params + kv_bytes) / (2039e9 * 0.8) + operations / (312e12 * 0.6)
    assert roofline.verify_ms(2, 3) == pytest.approx(1e3 * seconds + 10 * 0.005)
    assert roofline.draft_ms(2, 3) == 0


def test_several_gpus_share_and_talk():
    one = Roofline(find_gpu("A100"), plain_model(), "ngram", context=100, layer_overhead_us=0)
    four = Roofline(find_gpu("A100"), plain_model(), "ngram", context=100, layer_overhead_us=0, num_gpus=4)
    talk = 2 * 10 * (10e-6 + 2 * 0.75 * 6 * 1000 * 2 / 300e9)
    assert four.verify_ms(2, 3) == pytest.approx(one.verify_ms(2, 3) / 4 + 1e3 * talk)


def test_drafts_cost_what_they_read():
    """Bytes alone, at batch 1: eagle3 one layer, 3 h² and a head of 32 000; medusa h² and a head for each token."""
    target = find("llama-3.1-8b")
    layer, hidden = target.layer_params(0), 4096
    expected = {
        "eagle3": 3 * (layer + 3 * hidden**2 + hidden * 32_000),
        "eagle": 3 * (layer + 2 * hidden**2 + hidden * 128_256),
        "mtp": 3 * (layer + 2 * hidden**2 + hidden * 128_256),
        "medusa": 3 * (hidden**2 + hidden * 128_256),
        "draft_model": 3 * find("llama-3.2-1b").active_params,
    }
    for method, params in expected.items():
        draft = find("llama-3.2-1b") if method == "draft_model" else None
        roofline = Roofline(find_gpu("H100"), target, method, draft, context=0.001, layer_overhead_us=0)
        memory_ms = 1e3 * 2 * params / (3350e9 * 0.8)
        assert roofline.draft_ms(1, 3) == pytest.approx(memory_ms, rel=0.01)
        assert roofline.draft_ms(1, 0) == 0


def test_calibration_meets_the_given_speed():
    roofline = Roofline(find_gpu("A100"), find("vicuna-7b"), "medusa")
    slow, fast = roofline.calibrated(45), roofline.calibrated(130)
    assert slow.verify_ms(1, 1) == pytest.approx(1e3 / 45)
    assert slow.memory_efficiency == roofline.memory_efficiency
    assert fast.verify_ms(1, 1) == pytest.approx(1e3 / 130, rel=0.01)
    assert fast.layer_overhead_us == 0


def test_what_does_not_fit_is_refused_with_the_way_out():
    with pytest.raises(UsageError, match="do not fit") as caught:
        Roofline(find_gpu("H100"), find("llama-3.3-70b"), "ngram")
    assert "--num-gpus" in caught.value.remedy
    assert Roofline(find_gpu("H100"), find("llama-3.3-70b"), "ngram", num_gpus=4).max_batch > 16


def test_unknown_gpus_and_methods_are_named():
    with pytest.raises(UsageError, match="no such GPU") as caught:
        find_gpu("H101")
    assert "H100" in str(caught.value)
    with pytest.raises(UsageError, match="redrafter"):
        Roofline(find_gpu("H100"), find("llama-3.1-8b"), "redrafter")
    assert all(gpu.peak8 >= gpu.peak16 > 0 for gpu in GPUS.values())


def test_a_big_model_on_a_named_gpu_drafts_long_alone_and_less_in_company():
    """Nothing measured, all from numbers: the plan of a 70B deployment."""
    target, draft = find("llama-3.3-70b"), find("llama-3.2-1b")
    roofline = Roofline(find_gpu("H200"), target, "draft_model", draft, num_gpus=4, weights="fp8")
    schedule = as_schedule(Planner(roofline, AcceptanceProfile.given([0.8] * 8)).plan(range(1, 257)))
    lengths = list(schedule.values())
    assert lengths[0] >= 4
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < lengths[0] / 2


# ---- published numbers ----


@pytest.mark.parametrize(
    ("gpu", "model", "weights", "tokens_per_s"),
    [("H100", "llama-3.1-8b", "bf16", 158.34), ("H200", "llama-3.3-70b", "fp8", 51.14)],
)
def test_plain_speeds_at_batch_1(gpu, model, weights, tokens_per_s):
    """SGLang in the EAGLE-3 paper, and TensorRT-LLM in NVIDIA's post on Llama 3.3; efficiencies were chosen on them."""
    roofline = Roofline(find_gpu(gpu), find(model), "ngram", weights=weights)
    assert 1e3 / roofline.verify_ms(1, 1) == pytest.approx(tokens_per_s, rel=0.03)


def test_speedups_of_eagle3_over_batch_sizes():
    rows = published.eagle3_rows()
    assert published.mean_absolute_error(rows) < 0.06
    assert max(abs(row.error) for row in rows) < 0.2
    assert sum(row.is_fitted for row in rows) == 2


def test_speedups_of_medusa():
    rows = published.medusa_rows()
    assert published.mean_absolute_error(rows) < 0.08
    assert max(abs(row.error) for row in rows) < 0.11
