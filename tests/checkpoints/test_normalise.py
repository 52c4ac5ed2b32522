"""Draft heads of every layout become what TensorRT-LLM's loaders look for, value for value, or are refused by name."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import tiny
from tests.checkpoints import trtllm_readers as readers
from trt_spec.checkpoints import eagle, medusa
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.detect import inspect
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.checkpoints.trtllm import normalise
from trt_spec.errors import CapabilityError, CheckpointError, ConfigError, PairError, UsageError

LLMAPI = ("1.0.0", "1.1.0", "1.2.1", "1.3.0rc20", "1.3.0rc29", "1.4.0rc4")
ENGINE = ("0.19.0", "0.21.0", "1.0.0", "1.2.1", "1.3.0rc20")
LAYERS = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}  # by their outputs


def shapes_of(path) -> dict[str, tuple[int, ...]]:
    return {name: info.shape for name, info in CheckpointDir.open(path).tensors.items()}


def config_of(path) -> dict:
    return json.loads((path / "config.json").read_text(encoding="utf-8"))


def head3(path, *, prefix="", layer="midlayer", vocab=320, draft_vocab=64, without=(), more=(), tensors=None, **config):
    """An EAGLE-3 head; `more` are further tensors by name and shape."""
    shapes = tiny.eagle3_shapes(layer=layer, vocab=vocab, draft_vocab=draft_vocab) | dict(more)
    maps = tiny.vocabulary_maps(vocab, draft_vocab) if draft_vocab < vocab else {}
    shapes = {prefix + name: shape for name, shape in shapes.items() if name not in without}
    return tiny.save_draft(path, shapes, tensors={**maps, **(tensors or {})}, **(LAYERS | config))


def canonical_tensors(layout, path) -> dict[str, torch.Tensor]:
    opened, unknown = layout.canonical(CheckpointDir.open(path))
    assert not unknown
    return {name: opened.read(name) for name in opened.tensors}


def assert_same_values(layout, before, after, added=()) -> None:
    old, new = canonical_tensors(layout, before), canonical_tensors(layout, after)
    assert set(new) - set(old) == set(added)
    assert set(old) <= set(new)
    assert all(old[name].dtype == new[name].dtype and torch.equal(old[name], new[name]) for name in old)


# --- EAGLE-3 on the PyTorch backend ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LLMAPI[1:])
@pytest.mark.parametrize(("prefix", "layer"), [("", "layers.0"), ("model.", "midlayer"), ("model.", "layers.0")])
def test_eagle3_names_and_config_are_what_the_loader_looks_for(tmp_path, version, prefix, layer):
    source = head3(tmp_path / "head", prefix=prefix, layer=layer, num_hidden_layers=40, architectures=["Other"])
    done = normalise.convert(source, tmp_path / "out", "llmapi", version)
    config = config_of(tmp_path / "out")
    wanted, given = readers.eagle3_parameters(config), readers.eagle3_given(shapes_of(tmp_path / "out"))
    assert wanted.items() <= given.items()
    assert set(given) - set(wanted) == {"model.embed_tokens.weight", "model.t2d", "lm_head.weight"}  # not read, or own
    assert given["lm_head.weight"] == (config["draft_vocab_size"], config["hidden_size"])
    assert readers.eagle3_class(config) == "EAGLE3LlamaForCausalLM"
    assert (config["vocab_size"], config["draft_vocab_size"]) == (320, 64)
    assert config["tie_word_embeddings"] is False
    assert config["torch_dtype"] == "float32"
    assert (config["rope_theta"], config["max_position_embeddings"]) == (10000.0, 2048)
    assert done.is_needed
    assert done.facts == {"eagle3_layers_to_capture": [0, 1, 2]}
    assert_same_values(eagle, source, tmp_path / "out")
    assert inspect(tmp_path / "out").problems == ()


def test_a_head_that_is_right_is_left_alone(tmp_path):
    normalise.convert(head3(tmp_path / "head"), tmp_path / "once", "llmapi", "1.2.1")
    again = normalise.convert(tmp_path / "once", tmp_path / "twice", "llmapi", "1.2.1")
    assert (again.is_needed, again.changes) == (False, ())
    assert not (tmp_path / "twice").exists()


def test_what_changed_is_said_and_recorded(tmp_path):
    source = head3(tmp_path / "head", layer="layers.0", without=("embed_tokens.weight",), vocab_size=320)
    done = normalise.convert(source, tmp_path / "out", "llmapi", "1.1.0")
    assert "layers.0.mlp.up_proj.weight becomes midlayer.mlp.up_proj.weight" in done.changes
    assert "config.json: draft_vocab_size is 64, was absent" in done.changes
    assert not any("vocab_size is 320" in change for change in done.changes)
    assert json.loads((tmp_path / "out" / "conversion.json").read_text()) == done.as_dict()


def test_a_full_vocabulary_needs_no_map(tmp_path):
    """Where vocab_size and draft_vocab_size differ the loader waits for a d2t that is not there."""
    source = head3(tmp_path / "head", draft_vocab=320, vocab_size=312)
    normalise.convert(source, tmp_path / "out", "llmapi", "1.2.1")
    config = config_of(tmp_path / "out")
    assert (config["vocab_size"], config["draft_vocab_size"]) == (320, 320)
    assert "model.d2t" not in readers.eagle3_parameters(config)


def test_a_full_vocabulary_beside_a_padded_target(tmp_path):
    target = tiny.llama_checkpoint(tmp_path / "target", num_hidden_layers=8, vocab_size=328)
    source = head3(tmp_path / "head", draft_vocab=320, vocab_size=320)
    normalise.convert(source, tmp_path / "out", "llmapi", "1.2.1", target)
    config = config_of(tmp_path / "out")
    assert (config["vocab_size"], config["draft_vocab_size"]) == (320, 320)


def test_a_head_shared_with_the_target(tmp_path):
    source = head3(tmp_path / "head", draft_vocab=320, without=("lm_head.weight",), tie_word_embeddings=True)
    done = normalise.convert(source, tmp_path / "out", "llmapi", "1.2.1")
    config = config_of(tmp_path / "out")
    assert "lm_head.weight" not in shapes_of(tmp_path / "out")
    assert (config["tie_word_embeddings"], config["draft_vocab_size"]) == (False, 320)
    assert any("takes the target's" in note for note in done.notes)


def test_a_nested_config_comes_out_flat(tmp_path):
    layer = {"head_dim": 8, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    source = head3(
        tmp_path / "head",
        layer="layers.0",
        transformer_layer_config=layer | {"max_position_embeddings": 777},
        norm_before_residual=False,
        auto_map={"AutoModel": "code.py"},
    )
    normalise.convert(source, tmp_path / "out", "llmapi", "1.2.1")
    config = config_of(tmp_path / "out")
    assert {"transformer_layer_config", "rope_parameters", "auto_map"}.isdisjoint(config)
    assert (config["rope_theta"], config["rms_norm_eps"], config["max_position_embeddings"]) == (5e5, 1e-5, 777)
    assert readers.eagle3_parameters(config).items() <= readers.eagle3_given(shapes_of(tmp_path / "out")).items()


def test_norms_before_fc_and_biases_are_flags_of_the_config(tmp_path):
    biases = {
        f"midlayer.self_attn.{name}_proj.bias": (size,) for name, size in zip("qkvo", (32, 16, 16, 32), strict=True)
    }
    more = {"input_norm.weight": (96,), "fc.bias": (32,), **biases}
    source = head3(tmp_path / "head", more=more, norm_before_fc=True)
    normalise.convert(source, tmp_path / "out", "llmapi", "1.3.0rc29")
    config = config_of(tmp_path / "out")
    assert (config["attention_bias"], config["bias"], config["eagle_config"]["norm_before_fc"]) == (True, True, True)
    assert readers.eagle3_parameters(config).items() <= readers.eagle3_given(shapes_of(tmp_path / "out")).items()


def test_norms_of_each_feature_from_the_version_that_has_them(tmp_path):
    more = {f"fc_norm.{index}.weight": (32,) for index in range(3)}
    source = head3(tmp_path / "head", more=more, fc_norm=True, norm_output=True)
    for version in ("1.2.1", "1.3.0rc20"):
        with pytest.raises(CheckpointError, match="not known to compute") as caught:
            normalise.plan(source, "llmapi", version)
        assert caught.value.got in ("norm_output", "fc_norm")
    normalise.convert(source, tmp_path / "out", "llmapi", "1.3.0rc21")
    config = config_of(tmp_path / "out")
    assert (config["fc_norm"], config["eagle_config"]["return_hidden_post_norm"]) == (True, True)
    assert readers.eagle3_parameters(config).items() <= readers.eagle3_given(shapes_of(tmp_path / "out")).items()


def test_a_narrow_head_brings_its_embedding(tmp_path):
    shapes = tiny.eagle3_shapes(target_hidden=48)
    tensors = tiny.vocabulary_maps()
    source = tiny.save_draft(tmp_path / "head", shapes, tensors=tensors, **LAYERS)
    normalise.convert(source, tmp_path / "out", "llmapi", "1.2.1")
    config = config_of(tmp_path / "out")
    assert config["target_hidden_size"] == 48
    assert readers.eagle3_parameters(config).items() <= readers.eagle3_given(shapes_of(tmp_path / "out")).items()
    target = tiny.llama_checkpoint(tmp_path / "target", num_hidden_layers=8, hidden_size=48, vocab_size=328)
    normalise.convert(source, tmp_path / "out", "llmapi", "1.2.1", target)  # whose vocabulary is padded
    assert readers.eagle3_parameters(config_of(tmp_path / "out")).items() <= (
        readers.eagle3_given(shapes_of(tmp_path / "out")).items()
    )
    for name in ("embed_tokens.weight", "lm_head.weight"):
        fewer = {
            key: shape for key, shape in tiny.eagle3_shapes(target_hidden=48, draft_vocab=320).items() if key != name
        }
        without = tiny.save_draft(tmp_path / name, fewer, **LAYERS)
        with pytest.raises(CheckpointError, match="of its own"):
            normalise.plan(without, "llmapi", "1.2.1")


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"norm_before_residual": True}, "norm_before_residual"),
        (
            {"more": {f"midlayer.self_attn.{name}_norm.weight": (8,) for name in "qk"}},
            "q_norm and k_norm",
        ),
        (
            {
                "more": {
                    f"midlayer.self_attn.{name}_proj.bias": (s,) for name, s in zip("qkv", (32, 16, 16), strict=True)
                }
            },
            "biases of attention",
        ),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 0, 1]}}, "captured layers [-1, 0, 1]"),
    ],
)
def test_what_the_backend_would_compute_wrongly_is_refused(tmp_path, changes, got):
    with pytest.raises(CheckpointError) as caught:
        normalise.plan(head3(tmp_path / "head", **changes), "llmapi", "1.4.0rc4")
    assert caught.value.got == got
    assert "torch" in caught.value.remedy


def test_layers_to_capture_that_version_1_0_cannot_name(tmp_path):
    target = tiny.llama_checkpoint(tmp_path / "target", num_hidden_layers=8)
    ours = head3(tmp_path / "ours")
    with pytest.raises(CheckpointError, match="captures layers"):
        normalise.plan(ours, "llmapi", "1.0.0", target)
    default = head3(tmp_path / "default", eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]})
    assert normalise.plan(default, "llmapi", "1.0.0", target).facts == {}
    assert normalise.plan(default, "llmapi", "1.1.0").facts == {"eagle3_layers_to_capture": [1, 3, 4]}


# --- EAGLE-1 and 2, Medusa, whole models on the engine path ------------------------------------------------------


@pytest.mark.parametrize("version", ENGINE)
@pytest.mark.parametrize("layer", ["layers.0", "midlayer"])
def test_eagle_is_what_the_converter_looks_for(tmp_path, version, layer):
    source = tiny.save_draft(tmp_path / "head", tiny.eagle_shapes(layer=layer), num_hidden_layers=32, eagle_config={})
    normalise.convert(source, tmp_path / "out", "tensorrt", version)
    assert readers.eagle_parameters(config_of(tmp_path / "out")) == shapes_of(tmp_path / "out")
    assert_same_values(eagle, source, tmp_path / "out", added=["fc.bias"])
    assert not CheckpointDir.open(tmp_path / "out").read("fc.bias").any()


def test_eagle_without_an_embedding_takes_the_targets(tmp_path):
    target = tiny.llama_checkpoint(tmp_path / "target")
    shapes = tiny.eagle_shapes()
    del shapes["embed_tokens.weight"]
    source = tiny.save_draft(tmp_path / "head", shapes, rope_theta=10000.0, eagle_config={})
    with pytest.raises(CheckpointError, match="no embedding"):
        normalise.plan(source, "tensorrt", "1.2.1")
    done = normalise.convert(source, tmp_path / "out", "tensorrt", "1.2.1", target)
    written = load_file(tmp_path / "out" / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(written, CheckpointDir.open(target).read("model.embed_tokens.weight"))
    assert any("embed_tokens.weight is taken from" in change for change in done.changes)


def test_eagle_made_for_other_positions_than_the_target(tmp_path):
    target = tiny.llama_checkpoint(tmp_path / "target", rope_theta=500000.0)
    source = tiny.save_draft(tmp_path / "head", tiny.eagle_shapes(), eagle_config={})
    with pytest.raises(CheckpointError, match="rotary positions"):
        normalise.plan(source, "tensorrt", "1.2.1", target)


@pytest.mark.parametrize("name", ["norm.weight", "layers.0.input_layernorm.weight", "layers.0.self_attn.q_proj.bias"])
def test_parts_of_a_head_that_the_engine_path_does_not_read(tmp_path, name):
    source = tiny.save_draft(tmp_path / "head", {**tiny.eagle_shapes(), name: (32,)}, eagle_config={})
    with pytest.raises(CheckpointError, match="does not read parts"):
        normalise.plan(source, "tensorrt", "1.2.1")


@pytest.mark.parametrize("version", ENGINE)
@pytest.mark.parametrize("prefix", ["", "medusa_head.", "model.medusa_head."])
def test_medusa_heads_are_what_the_converter_looks_for(tmp_path, version, prefix):
    shapes = tiny.medusa_shapes(prefix=prefix, num_heads=3, num_blocks=2)
    source = tiny.save_draft(tmp_path / "heads", shapes, medusa_num_heads=5, base_model_name_or_path="x")
    done = normalise.convert(source, tmp_path / "out", "tensorrt", version)
    assert shapes_of(tmp_path / "out") == readers.medusa_parameters(3, 2, 32, 320)
    assert (tmp_path / "out" / "medusa_lm_head.safetensors").is_file()
    config = config_of(tmp_path / "out")
    assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (3, 2)
    assert config["base_model_name_or_path"] == "x"
    assert done.facts == {"medusa_num_heads": 3, "medusa_num_layers": 2}
    assert_same_values(medusa, source, tmp_path / "out")


def test_medusa_heads_from_the_trainers_pickle_without_biases(tmp_path):
    shapes = {name: shape for name, shape in tiny.medusa_shapes().items() if not name.endswith("bias")}
    tensors = tiny.random_tensors(shapes, 0, torch.bfloat16)
    (tmp_path / "heads").mkdir()
    torch.save(tensors, tmp_path / "heads" / "medusa_lm_head.pt")
    (tmp_path / "heads" / "LICENSE").write_text("terms", encoding="utf-8")
    normalise.convert(tmp_path / "heads", tmp_path / "out", "tensorrt", "0.19.0")
    written = load_file(tmp_path / "out" / "medusa_lm_head.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in written.items()} == readers.medusa_parameters(3, 1, 32, 320)
    assert all(torch.equal(written[name], tensors[name]) for name in tensors)
    assert written["0.0.linear.bias"].dtype == torch.bfloat16
    assert not written["0.0.linear.bias"].any()
    assert (tmp_path / "out" / "LICENSE").read_text() == "terms"


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_a_tied_head_is_written_out_shard_by_shard(tmp_path, suffix):
    source = tiny.llama_checkpoint(tmp_path / "target", tie_word_embeddings=True, dtype=torch.bfloat16)
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    names = sorted(tensors)
    save = save_file if suffix == "safetensors" else torch.save
    for part, chosen in enumerate((names[:5], names[5:])):
        save({name: tensors[name] for name in chosen}, source / f"model-0000{part + 1}-of-00002.{suffix}")
    done = normalise.convert(source, tmp_path / "out", "tensorrt", "1.2.1")
    opened = CheckpointDir.open(tmp_path / "out")  # compares the index with the files
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
    assert set(opened.tensors) == {*tensors, "lm_head.weight"}
    assert all(torch.equal(opened.read(name), tensors[name]) for name in tensors)
    assert torch.equal(opened.read("lm_head.weight"), tensors["model.embed_tokens.weight"])
    assert opened.config["tie_word_embeddings"] is False
    assert "lm_head.weight is written out; it was tied to model.embed_tokens.weight" in done.changes
    assert inspect(tmp_path / "out").problems == ()
    assert Tokenizer.load(tmp_path / "out").vocab_size == Tokenizer.load(source).vocab_size


def test_the_head_is_a_parameter_of_its_own_where_the_converter_looks(tmp_path):
    """It takes named_parameters() of the model of transformers, which leaves a tied head out."""
    from transformers import AutoModelForCausalLM

    source = tiny.llama_checkpoint(tmp_path / "target", tie_word_embeddings=True)
    normalise.convert(source, tmp_path / "out", "tensorrt", "1.2.1")
    tied, own = (AutoModelForCausalLM.from_pretrained(path) for path in (source, tmp_path / "out"))
    assert "lm_head.weight" not in dict(tied.named_parameters())
    assert "lm_head.weight" in dict(own.named_parameters())
    token_ids = torch.arange(9)[None]
    assert torch.equal(tied(token_ids).logits, own(token_ids).logits)


@pytest.mark.parametrize(("build_target", "is_tied"), [("llmapi", True), ("llmapi", False), ("tensorrt", False)])
def test_whole_models_are_read_as_they_are(tmp_path, build_target, is_tied):
    source = tiny.llama_checkpoint(tmp_path / "model", tie_word_embeddings=is_tied)
    assert not normalise.convert(source, tmp_path / "out", build_target, "1.2.1").is_needed
    assert not (tmp_path / "out").exists()


def quantised(path, **config):
    """A tiny Llama whose matrices are FP8 with a scale beside each, as DeepSeek-V3's release stores its own."""
    source = tiny.llama_checkpoint(path, **config)
    tiny.edit_json(source / "config.json", quantization_config={"quant_method": "fp8"})
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if "_proj" in name]:
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = torch.ones(1, 1)
    save_file(tensors, source / "model.safetensors")
    return source


def test_a_quantised_target_is_read_as_it_is(tmp_path):
    target = quantised(tmp_path / "target", num_hidden_layers=8)
    assert "E-DTYPE" in {problem.code for problem in inspect(target).problems}  # for torch
    assert not normalise.plan(target, "llmapi", "1.2.1").is_needed
    assert not normalise.plan(target, "tensorrt", "1.2.1").is_needed
    assert normalise.plan(head3(tmp_path / "head"), "llmapi", "1.2.1", target).is_needed
    tiny.edit_json(target / "config.json", num_nextn_predict_layers=1)
    for source, beside in ((target, None), (head3(tmp_path / "other"), target)):
        with pytest.raises((CheckpointError, PairError), match="cannot be used") as caught:
            normalise.plan(source, "llmapi", "1.2.1", beside)
        assert len(caught.value.details) == 1  # layers that are promised and not there are missing all the same
        assert "promises 1 prediction layers" in caught.value.details[0]


def test_quantised_heads_are_refused(tmp_path):
    tensors = {name: torch.zeros(shape).to(torch.float8_e4m3fn) for name, shape in tiny.medusa_shapes().items()}
    source = tiny.save_draft(tmp_path / "heads", {}, tensors=tensors)
    with pytest.raises(PairError, match="cannot be used"):
        normalise.plan(source, "tensorrt", "1.2.1")


# --- what is refused before anything is written ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "build_target", "remedy"),
    [
        (lambda path: tiny.save_draft(path, tiny.medusa_shapes()), "llmapi", "tensorrt"),
        (lambda path: tiny.save_draft(path, tiny.eagle_shapes(), eagle_config={}), "llmapi", "tensorrt"),
        (head3, "tensorrt", "llmapi"),
    ],
)
def test_methods_that_a_target_lacks(tmp_path, make, build_target, remedy):
    with pytest.raises(CapabilityError) as caught:
        normalise.plan(make(tmp_path / "head"), build_target, "1.2.1")
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("build_target", "version", "kind"),
    [
        ("tensorrt", "1.3.0rc21", CapabilityError),
        ("tensorrt", "1.3.0", CapabilityError),
        ("tensorrt", "0.18.2", CapabilityError),
        ("llmapi", "0.21.0", CapabilityError),
        ("llmapi", "2.0", CapabilityError),
        ("llmapi", "newest", ConfigError),
        ("torch", "1.2.1", UsageError),
    ],
)
def test_versions_that_lack_a_target(tmp_path, build_target, version, kind):
    with pytest.raises(kind):
        normalise.plan(head3(tmp_path / "head"), build_target, version)


def test_problems_of_the_checkpoint_and_the_pair_come_first(tmp_path):
    broken = head3(tmp_path / "broken", without=("norm.weight",))
    with pytest.raises(PairError, match="cannot be used"):
        normalise.plan(broken, "llmapi", "1.2.1")
    target = tiny.llama_checkpoint(tmp_path / "target", num_hidden_layers=8, hidden_size=64, head_dim=16)
    with pytest.raises(PairError):
        normalise.plan(head3(tmp_path / "head"), "llmapi", "1.2.1", target)
    odd = head3(tmp_path / "odd", hidden_act="gelu")
    with pytest.raises(CheckpointError, match="not converted here") as caught:
        normalise.plan(odd, "llmapi", "1.2.1")
    assert "torch" not in str(caught.value)


def test_nothing_of_the_users_is_replaced(tmp_path):
    source = head3(tmp_path / "head", layer="layers.0")
    for out in (source, tmp_path):
        with pytest.raises(UsageError, match="replace what it is made from"):
            normalise.convert(source, out, "llmapi", "1.2.1")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(UsageError, match="something else"):
        normalise.convert(source, tmp_path / "mine", "llmapi", "1.2.1")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    assert "layers.0.mlp.up_proj.weight" in shapes_of(source)
    for _ in range(2):  # an earlier conversion is replaced
        normalise.convert(source, tmp_path / "out", "llmapi", "1.2.1")


def test_an_error_half_way_leaves_nothing(tmp_path, monkeypatch):
    source = head3(tmp_path / "head", layer="layers.0")

    def fail(fraction):
        if fraction > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        normalise.convert(source, tmp_path / "out", "llmapi", "1.2.1", advance=fail)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["head"]


def test_progress_rises_to_one(tmp_path):
    fractions = []
    normalise.convert(
        head3(tmp_path / "head", layer="layers.0"), tmp_path / "out", "llmapi", "1.2.1", advance=fractions.append
    )
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
