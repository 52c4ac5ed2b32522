"""What the loader of draft heads refuses: each time with the names, what the tensors are, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests import tiny
from tests.runtime.head_cases import (
    IDS,
    deepseek_target,
    draft,
    eagle3_case,
    load,
    load_head,
    mimo_target,
    stored,
)
from trt_spec.errors import CheckpointError, PairError
from trt_spec.runtime.heads import Eagle3Head


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory) -> Path:
    return tiny.llama_checkpoint(tmp_path_factory.mktemp("target") / "target")


@pytest.fixture(scope="module")
def target(target_dir):
    return load(target_dir)


def refusal(method: str, directory: Path | None, target, target_dir: Path, kind=CheckpointError) -> str:
    with pytest.raises(kind) as caught:
        load_head(method, directory, target, target_dir)
    assert caught.value.remedy
    return str(caught.value)


class Trap:
    """Unpickling this would write a file."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_a_pickle_that_runs_code_is_not_opened(tmp_path, target, target_dir):
    tensors = tiny.random_tensors(tiny.medusa_shapes(), 0, torch.float32)
    torch.save({**tensors, "extra": Trap(str(tmp_path / "ran"))}, tmp_path / "medusa_lm_head.pt")
    assert "it was not unpickled" in refusal("medusa", tmp_path, target, target_dir)
    assert not (tmp_path / "ran").exists()


def test_eagle_takes_every_generation_and_eagle3_insists(tmp_path, target, target_dir):
    case = eagle3_case(tmp_path / "three", target, target_dir, "layers.0", method="eagle")
    assert isinstance(case.head, Eagle3Head)
    draft(tmp_path / "one", tiny.eagle_shapes())
    message = refusal("eagle3", tmp_path / "one", target, target_dir, PairError)
    assert "EAGLE-1 or EAGLE-2 head: fc is 2H wide" in message
    assert "use method eagle," in message


@pytest.mark.parametrize(
    ("method", "kind", "evidence", "remedy"),
    [
        ("medusa", "eagle", "fc is 2H wide", "use method eagle,"),
        ("medusa", "eagle3", "fc fuses three captured layers", "use method eagle3,"),
        ("eagle", "medusa", "Medusa heads", "use method medusa,"),
        ("eagle3", "model", "a whole model", "use method draft_model,"),
        ("medusa", "model", "a whole model", "use method draft_model,"),
    ],
)
def test_a_checkpoint_of_another_method_is_named(tmp_path, target, target_dir, method, kind, evidence, remedy):
    if kind == "model":
        tiny.llama_checkpoint(tmp_path / "x", num_hidden_layers=1)
    elif kind == "medusa":
        tiny.save_draft(tmp_path / "x", tiny.medusa_shapes())
    elif kind == "eagle":
        draft(tmp_path / "x", tiny.eagle_shapes())
    else:
        draft(tmp_path / "x", tiny.eagle3_shapes(), tensors=tiny.vocabulary_maps(), **IDS)
    message = refusal(method, tmp_path / "x", target, target_dir, PairError)
    assert evidence in message
    assert remedy in message


MAPS = tiny.vocabulary_maps()
REFUSED = {
    # Case 57: the head is gone while a reduced vocabulary is declared.
    "no-head": ("eagle3", {"drop": ["lm_head.weight"]}, "random head"),
    "no-head-but-declared": (
        "eagle3",
        {"drop": ["lm_head.weight"], "tensors": {}, "config": {"draft_vocab_size": 64}},
        "draft_vocab_size 64",
    ),
    "no-map": ("eagle3", {"tensors": {}}, "64 rows, the target's vocabulary has 320"),
    # Case 60: maps that were made again, or never filled.
    "d2t-zeros": ("eagle3", {"tensors": {"d2t": torch.zeros(64, dtype=torch.int64)}}, "all zeros"),
    "d2t-falls": ("eagle3", {"tensors": {"d2t": MAPS["d2t"].flip(0)}}, "rising"),
    "d2t-holds-ids": ("eagle3", {"tensors": {"d2t": MAPS["d2t"] + torch.arange(64)}}, "points at id"),
    "t2d-differs": ("eagle3", {"tensors": MAPS | {"t2d": MAPS["t2d"].roll(1)}}, "not the same ones"),
    "d2t-of-floats": ("eagle3", {"tensors": {"d2t": MAPS["d2t"].float()}}, "not a row of integers"),
    "fc-of-another-target": ("eagle3", {"add": {"fc.weight": (32, 144)}}, "48 wide, the target's hidden state is 32"),
    "fc-of-eagle-1": ("eagle3", {"add": {"fc.weight": (32, 64)}}, "fc is 2H wide as in EAGLE-1"),
    "fc-of-eagle-3": ("eagle", {"add": {"fc.weight": (32, 96)}}, "fc is 3H = 96 wide as in EAGLE-3"),
    "fc-of-nothing": ("eagle", {"add": {"fc.weight": (32, 80)}}, "fc is 80 wide"),
    "unknown-tensor": ("eagle", {"add": {"layers.0.extra.weight": (3,)}}, "unexpected tensors: layers.0.extra.weight"),
    "second-layer": ("eagle", {"add": {"layers.1.mlp.up_proj.weight": (48, 32)}}, "layers.1.mlp.up_proj.weight"),
    "missing": ("eagle", {"drop": ["layers.0.mlp.up_proj.weight"]}, "missing tensors: layer.mlp.up_proj.weight"),
    "missing-norms": ("eagle3", {"config": {"fc_norm": True}}, "fc_norm.2.weight"),
    "embedding-rows": ("eagle3", {"add": {"embed_tokens.weight": (300, 32)}}, "embedding has 300 rows"),
    "layers-beyond": (
        "eagle3",
        {"config": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}},
        "inputs of layers [1, 2, 3]; the target has 2",
    ),
    "default-layers": ("eagle3", {"config": {"eagle_config": {}}}, "names no captured layers"),
    "heads-unknown": ("eagle", {"config": {"head_dim": None, "num_attention_heads": None}}, "neither head_dim nor"),
    "heads-contradict": ("eagle", {"config": {"num_attention_heads": 8}}, "num_attention_heads 8, head_dim 8, q 32"),
    "activation": ("eagle", {"config": {"hidden_act": "gelu"}}, "hidden_act"),
    "no-aux": ("eagle3", {"config": {"eagle_config": {"use_aux_hidden_state": False}}}, "use_aux_hidden_state"),
    "eh-proj": ("eagle3", {"config": {"eagle_config": {"eh_proj_before_attn": True}}}, "eh_proj_before_attn"),
    "several-at-once": ("eagle3", {"config": {"parallel_draft_step": 4}}, "parallel_draft_step"),
    "scaled-logits": ("eagle3", {"config": {"logit_scale": 0.5}}, "logit_scale"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_drafts_that_lie(tmp_path, target, target_dir, name):
    method, options, named = REFUSED[name]
    options = dict(options)
    config = IDS | options.pop("config", {}) if method == "eagle3" else options.pop("config", {})
    maps = options.pop("tensors", MAPS if method == "eagle3" else None)
    shapes = tiny.eagle3_shapes() if method == "eagle3" else tiny.eagle_shapes()
    draft(tmp_path, shapes, tensors=maps, **options, **config)
    assert named in refusal(method, tmp_path, target, target_dir)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_every_tensor_that_is_not_finite_is_named(tmp_path, target, target_dir, value):
    draft(tmp_path / "eagle", tiny.eagle_shapes())
    tensors = stored(tmp_path / "eagle")
    tensors["fc.weight"][3, 5] = tensors["layers.0.mlp.up_proj.weight"][0, 0] = value
    save_file(tensors, tmp_path / "eagle" / "model.safetensors")
    message = refusal("eagle", tmp_path / "eagle", target, target_dir)
    assert "not finite: fc.weight" in message
    assert "not finite: layer.mlp.up_proj.weight" in message
    tensors = tiny.random_tensors(tiny.medusa_shapes(), 0, torch.float32)
    tensors["2.0.linear.bias"][1] = value
    torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    assert "not finite: heads.2.blocks.0.linear.bias" in refusal(
        "medusa", tmp_path / "medusa_lm_head.pt", target, target_dir
    )


def edit_mtp(directory: Path, **changes: Tensor | None) -> None:
    """Replaces tensors of the first MiMo prediction layer; None removes one."""
    edited = stored(directory) | {f"model.mtp_layers.0.{name}.weight": tensor for name, tensor in changes.items()}
    kept = {name: tensor for name, tensor in edited.items() if tensor is not None}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})


def test_mtp_layers_that_are_not_there(tmp_path, target, target_dir):
    assert "this target has none" in refusal("mtp", None, target, target_dir)
    directory = mimo_target(tmp_path / "mimo")
    model = load(directory)
    tiny.edit_json(directory / "config.json", num_nextn_predict_layers=2)
    assert "config.json promises 2 prediction layers, the files hold 1" in refusal("mtp", None, model, directory)
    bare = mimo_target(tmp_path / "bare")
    kept = {name: tensor for name, tensor in stored(bare).items() if "mtp_layers" not in name}
    save_file(kept, bare / "model.safetensors", metadata={"format": "pt"})
    assert "promises 1 prediction layers, the files hold 0" in refusal("mtp", None, model, bare)


def test_mtp_tensors_are_all_loaded_or_named(tmp_path):
    directory = mimo_target(tmp_path)
    model = load(directory)
    edit_mtp(directory, surprise=torch.ones(2))
    assert "unexpected: model.mtp_layers.0.surprise.weight" in refusal("mtp", None, model, directory)
    edit_mtp(directory, surprise=None, input_proj=torch.ones(32, 96))
    assert "model.mtp_layers.0.input_proj.weight is [32, 96], not [32, 64]" in refusal("mtp", None, model, directory)
    edit_mtp(directory, input_proj=torch.full((32, 64), float("nan")))
    assert "not finite: model.mtp_layers.0.input_proj.weight" in refusal("mtp", None, model, directory)
    edit_mtp(directory, input_proj=torch.ones(32, 64), token_layernorm=None)
    assert "lack tensors: model.mtp_layers.0.token_layernorm.weight" in refusal("mtp", None, model, directory)


def test_deepseek_mtp_layers_are_numbered_on(tmp_path):
    deepseek_target(tmp_path, num_layers=2)
    model = load(tmp_path)
    shifted = {name.replace("model.layers.4.", "model.layers.6."): tensor for name, tensor in stored(tmp_path).items()}
    save_file(shifted, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "not numbered in a row" in refusal("mtp", None, model, tmp_path)
