"""Every layout is told from its tensors; whatever can be wrong with it, or with a pair, has a code and a remedy."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import tiny
from trt_spec.checkpoints.detect import inspect
from trt_spec.errors import CheckpointError

DEEPSEEK_LAYER = {
    "self_attn.kv_a_proj_with_mqa.weight": (12, 32),
    "self_attn.o_proj.weight": (32, 32),
    "mlp.gate.weight": (4, 32),
    "input_layernorm.weight": (32,),
}
DEEPSEEK_MTP = {
    "enorm.weight": (32,),
    "hnorm.weight": (32,),
    "eh_proj.weight": (32, 64),
    "shared_head.norm.weight": (32,),
}
MIMO_MTP = {
    "token_layernorm.weight": (32,),
    "hidden_layernorm.weight": (32,),
    "input_proj.weight": (32, 64),
    "final_layernorm.weight": (32,),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny.llama_checkpoint(tmp_path_factory.mktemp("target") / "target")


def codes(inspection) -> set[str]:
    assert all(problem.message and problem.remedy for problem in inspection.problems)
    return {problem.code for problem in inspection.problems}


def drop(folder, *names: str, **added: torch.Tensor) -> None:
    """Removes tensors of a checkpoint and adds others."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor for name, tensor in tensors.items() if name not in names} | added, path)


class TestWholeModels:
    @pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "mimo"])
    def test_families(self, tmp_path, family):
        found = inspect(tiny.llama_checkpoint(tmp_path / "x", model_type=family))
        assert (found.role, found.method, found.family, found.fits_target) == ("target", "none", family, None)
        assert (found.is_native, found.problems, found.notes) == (True, (), ())
        assert (found.vocab_size, found.hidden_size, found.num_layers) == (320, 32, 2)

    def test_names_of_files_and_folders_say_nothing(self, tmp_path):
        folder = tiny.llama_checkpoint(tmp_path / "medusa-eagle3-heads")
        (folder / "model.safetensors").rename(folder / "medusa_lm_head.safetensors")
        assert inspect(folder).method == "none"

    def test_the_json_shape(self, target):
        printed = json.loads(json.dumps(inspect(target).as_dict()))
        assert {"role", "method", "family", "fits_target", "problems", "notes", "tokenizer"} <= printed.keys()

    def test_tensors_overrule_model_type(self, tmp_path):
        folder = tiny.llama_checkpoint(tmp_path / "x", model_type="qwen3")
        tiny.edit_json(folder / "config.json", model_type="llama")
        found = inspect(folder)
        assert found.family == "qwen3"
        assert codes(found) == {"E-CONFIG"}

    def test_a_foreign_family_is_named_and_not_native(self, tmp_path):
        folder = tiny.llama_checkpoint(tmp_path / "x", extra={"model.layers.0.mlp.experts.0.w1.weight": (4, 4)})
        tiny.edit_json(folder / "config.json", model_type="mixtral")
        found = inspect(folder)
        assert (found.family, found.is_native) == ("mixtral", False)
        assert [note.code for note in found.notes] == ["N-FAMILY"]

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"num_hidden_layers": 3}, "E-CONFIG"),
            ({"num_hidden_layers": 10**12}, "E-CONFIG"),
            ({"hidden_size": 64}, "E-CONFIG"),
            ({"vocab_size": 100}, "E-CONFIG"),
            ({"vocab_size": None}, "E-CONFIG"),
            ({"intermediate_size": 96}, "E-SHAPE"),
            ({"num_nextn_predict_layers": 1}, "E-MTP-MISSING"),
            ({"quantization_config": {"bits": 4}}, "E-DTYPE"),
        ],
    )
    def test_a_config_that_lies(self, tmp_path, change, code):
        folder = tiny.llama_checkpoint(tmp_path / "x")
        tiny.edit_json(folder / "config.json", **change)
        assert code in codes(inspect(folder))

    @pytest.mark.parametrize(
        "change", [{"num_key_value_heads": "two"}, {"rope_scaling": "linear"}, {"rms_norm_eps": [1]}]
    )
    def test_a_value_of_a_wrong_kind(self, tmp_path, change):
        folder = tiny.llama_checkpoint(tmp_path / "x")
        tiny.edit_json(folder / "config.json", **change)
        assert codes(inspect(folder)) == {"E-CONFIG"}

    def test_missing_and_unexpected_tensors_are_named(self, tmp_path):
        folder = tiny.llama_checkpoint(tmp_path / "x")
        drop(folder, "model.norm.weight", "lm_head.weight", stray=torch.zeros(2))
        found = inspect(folder)
        messages = {problem.code: problem.message for problem in found.problems}
        assert messages["E-MISSING"] == "missing tensors: model.norm.weight, lm_head.weight"
        assert messages["E-UNEXPECTED"] == "unexpected tensors: stray"

    def test_a_layer_that_did_not_arrive(self, tmp_path):
        folder = tiny.llama_checkpoint(tmp_path / "x")
        drop(folder, *(name for name in load_file(folder / "model.safetensors") if ".layers.1." in name))
        assert {"E-CONFIG", "E-MISSING"} <= codes(inspect(folder))

    def test_integer_tensors_are_a_quantised_export(self, tmp_path):
        folder = tiny.llama_checkpoint(tmp_path / "x")
        drop(folder, **{"model.layers.0.mlp.up_proj.qweight": torch.zeros(2, dtype=torch.int32)})
        assert "E-DTYPE" in codes(inspect(folder))

    def test_a_tokenizer_that_is_too_large_for_the_model(self, tmp_path):
        folder = tiny.llama_checkpoint(tmp_path / "x")
        tiny.byte_level_tokenizer(folder, added=tuple(f"<{i}>" for i in range(20)))
        assert codes(inspect(folder)) == {"E-VOCAB"}

    def test_a_model_without_tokenizer_is_noted(self, tmp_path):
        found = inspect(tiny.llama_checkpoint(tmp_path / "x", tokenizer=False))
        assert (found.problems, [note.code for note in found.notes]) == ((), ["N-TOKENIZER"])


class TestPredictionLayers:
    def test_mimo(self, tmp_path):
        extra = {f"model.mtp_layers.0.{part}": shape for part, shape in MIMO_MTP.items()}
        folder = tiny.llama_checkpoint(tmp_path / "x", model_type="mimo", extra=extra, num_nextn_predict_layers=1)
        found = inspect(folder)
        assert (found.role, found.method, found.family) == ("target", "mtp", "mimo")
        assert found.problems == ()
        assert found.details.num_mtp_layers == 1
        own = inspect(folder, folder)
        assert (own.role, own.method, own.fits_target) == ("draft", "mtp", True)

    def deepseek(self, folder, num_mtp: int, promised: int):
        shapes = {"model.embed_tokens.weight": (320, 32), "lm_head.weight": (320, 32), "model.norm.weight": (32,)}
        for layer in range(2 + num_mtp):
            parts = DEEPSEEK_LAYER | (DEEPSEEK_MTP if layer >= 2 else {})
            shapes |= {f"model.layers.{layer}.{part}": shape for part, shape in parts.items()}
        config = {"model_type": "deepseek_v3", "num_hidden_layers": 2, "num_nextn_predict_layers": promised}
        return tiny.save_draft(folder, shapes, **config)

    def test_deepseek_v3(self, tmp_path):
        found = inspect(self.deepseek(tmp_path, 1, 1))
        assert (found.role, found.method, found.family) == ("target", "mtp", "deepseek_v3")
        assert (found.num_layers, found.details.num_mtp_layers) == (2, 1)
        assert "E-MTP-MISSING" not in codes(found)

    def test_deepseek_v3_as_transformers_saves_it(self, tmp_path):
        tiny.save_deepseek_v3(tmp_path)
        found = inspect(tmp_path)
        assert (found.family, found.is_native, found.num_layers, found.problems) == ("deepseek_v3", True, 3, ())
        drop(tmp_path, "model.layers.1.mlp.gate.e_score_correction_bias")
        assert codes(inspect(tmp_path)) == {"E-MISSING"}

    def test_promised_layers_that_an_exporter_dropped(self, tmp_path):
        found = inspect(self.deepseek(tmp_path, 0, 1))
        assert (found.method, found.details.num_mtp_layers) == ("none", 0)
        assert "E-MTP-MISSING" in codes(found)

    def test_a_layer_that_is_there_in_part(self, tmp_path):
        folder = self.deepseek(tmp_path, 1, 1)
        drop(folder, "model.layers.2.hnorm.weight")
        assert any("model.layers.2.hnorm.weight" in problem.message for problem in inspect(folder).problems)

    def test_prediction_layers_without_a_model(self, tmp_path):
        tiny.save_draft(tmp_path, {f"model.layers.61.{part}": shape for part, shape in DEEPSEEK_MTP.items()})
        with pytest.raises(CheckpointError, match="without their model"):
            inspect(tmp_path)


class TestMedusa:
    @pytest.mark.parametrize("prefix", ["", "medusa_head.", "medusa_heads.", "model.medusa_head."])
    @pytest.mark.parametrize("num_blocks", [1, 2])
    def test_the_trainers_names(self, tmp_path, target, prefix, num_blocks):
        shapes = tiny.medusa_shapes(prefix=prefix, num_heads=4, num_blocks=num_blocks)
        found = inspect(tiny.save_draft(tmp_path, shapes, medusa_num_heads=5), target)
        assert (found.role, found.method, found.fits_target, found.problems) == ("draft", "medusa", True, ())
        assert (found.details.num_heads, found.details.num_blocks) == (4, num_blocks)
        assert [note.code for note in found.notes] == ["N-CONFIG"]

    @pytest.mark.parametrize(
        ("block", "output"),
        [
            ("medusa_heads.{}.medusa_layers.0.linear.{}", "medusa_heads.{}.lm_head.weight"),
            ("blocks.{}.layers.0.{}", "lm_heads.{}.weight"),
        ],
    )
    def test_names_of_other_projects(self, tmp_path, block, output):
        shapes = {}
        for head in range(2):
            shapes |= {block.format(head, "weight"): (32, 32), block.format(head, "bias"): (32,)}
            shapes[output.format(head)] = (320, 32)
        found = inspect(tiny.save_draft(tmp_path, shapes))
        assert (found.method, found.problems, found.details.num_heads) == ("medusa", (), 2)

    def test_a_pickle(self, tmp_path):
        torch.save(tiny.random_tensors(tiny.medusa_shapes(), 0, torch.float16), tmp_path / "medusa_lm_head.pt")
        assert inspect(tmp_path).method == "medusa"

    def test_a_head_with_a_hole(self, tmp_path):
        shapes = tiny.medusa_shapes()
        del shapes["1.1.weight"]
        found = inspect(tiny.save_draft(tmp_path, shapes))
        assert "missing tensors: heads.1.lm_head.weight" in [problem.message for problem in found.problems]

    def test_heads_that_share_the_targets_output(self, tmp_path, target):
        shapes = {name: shape for name, shape in tiny.medusa_shapes().items() if "linear" in name}
        found = inspect(tiny.save_draft(tmp_path, shapes), target)
        assert (found.method, found.fits_target, found.problems) == ("medusa", True, ())
        assert (found.details.num_heads, found.details.has_own_outputs) == (3, False)
        assert "N-SHARED-HEAD" in [note.code for note in found.notes]
        del shapes["1.0.linear.weight"]
        assert "E-MISSING" in codes(inspect(tiny.save_draft(tmp_path, shapes), target))

    def test_one_tensor_under_two_names(self, tmp_path):
        shapes = tiny.medusa_shapes(num_heads=1) | tiny.medusa_shapes(num_heads=1, prefix="medusa_head.")
        with pytest.raises(CheckpointError, match=r"two tensors mean heads\.0"):
            inspect(tiny.save_draft(tmp_path, shapes))

    @pytest.mark.parametrize(("change", "code"), [({"hidden": 16}, "E-HIDDEN"), ({"vocab": 100}, "E-VOCAB")])
    def test_heads_of_another_target(self, tmp_path, target, change, code):
        found = inspect(tiny.save_draft(tmp_path, tiny.medusa_shapes(**change)), target)
        assert found.fits_target is False
        assert code in codes(found)

    def test_rows_that_differ_in_padding_alone_fit(self, tmp_path, target):
        found = inspect(tiny.save_draft(tmp_path, tiny.medusa_shapes(vocab=316)), target)
        assert (found.fits_target, [note.code for note in found.notes]) == (True, ["N-PADDING"])


class TestEagle:
    @pytest.mark.parametrize("layer", ["layers.0", "midlayer"])
    def test_eagle_1_and_2(self, tmp_path, target, layer):
        found = inspect(tiny.save_draft(tmp_path, tiny.eagle_shapes(layer=layer), num_hidden_layers=40), target)
        assert (found.role, found.method, found.fits_target, found.problems) == ("draft", "eagle", True, ())

    @pytest.mark.parametrize("layer", ["layers.0", "midlayer"])
    @pytest.mark.parametrize("prefix", ["", "model."])
    def test_eagle_3(self, tmp_path, target, layer, prefix):
        shapes = {prefix + name: shape for name, shape in tiny.eagle3_shapes(layer=layer).items()}
        config = {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 64, "vocab_size": 320}
        found = inspect(tiny.save_draft(tmp_path, shapes, tensors=tiny.vocabulary_maps(), **config), target)
        assert (found.role, found.method, found.fits_target, found.problems) == ("draft", "eagle3", True, ())
        assert (found.vocab_size, found.details.target_hidden_size) == (64, 32)

    def test_a_draft_narrower_than_its_target(self, tmp_path, target):
        shapes = tiny.eagle3_shapes(hidden=16, target_hidden=32)
        assert inspect(tiny.save_draft(tmp_path, shapes, tensors=tiny.vocabulary_maps()), target).fits_target
        del shapes["embed_tokens.weight"]
        found = inspect(tiny.save_draft(tmp_path, shapes, tensors=tiny.vocabulary_maps()), target)
        assert codes(found) == {"E-HIDDEN"}

    def test_positions_that_end_before_the_targets_are_noted(self, tmp_path, target):
        found = inspect(tiny.save_draft(tmp_path, tiny.eagle_shapes(), max_position_embeddings=64), target)
        assert found.fits_target is True
        assert [note.code for note in found.notes] == ["N-POSITIONS"]

    def test_a_nested_config_is_read_like_a_flat_one(self, tmp_path, target):
        nested = {"head_dim": None, "transformer_layer_config": {"head_dim": 8}, "norm_before_residual": True}
        found = inspect(
            tiny.save_draft(tmp_path, tiny.eagle3_shapes(), tensors=tiny.vocabulary_maps(), **nested), target
        )
        assert (found.method, found.problems) == ("eagle3", ())

    def test_a_nested_config_says_where_the_residual_starts(self, tmp_path, target):
        """Speculators and vLLM differ in what they take for granted."""
        nested = {"head_dim": None, "transformer_layer_config": {"head_dim": 8}}
        found = inspect(
            tiny.save_draft(tmp_path, tiny.eagle3_shapes(), tensors=tiny.vocabulary_maps(), **nested), target
        )
        [message] = [problem.message for problem in found.problems if problem.code == "E-CONFIG"]
        assert "norm_before_residual" in message

    def test_captured_layers_count_inputs_or_outputs(self, tmp_path, target):
        key, maps = "eagle_aux_hidden_state_layer_ids", tiny.vocabulary_maps()
        for config in ({"eagle_config": {key: [-1, 0, 1]}}, {"eagle_config": None, key: [0, 1, 2]}):
            found = inspect(tiny.save_draft(tmp_path, tiny.eagle3_shapes(), tensors=maps, **config), target)
            assert found.details.captured_layers == (0, 1, 2)

    @pytest.mark.parametrize(
        ("config", "code"),
        [
            ({"head_dim": None}, "E-CONFIG"),
            ({"num_attention_heads": 3}, "E-CONFIG"),
            ({"hidden_act": "relu"}, "E-CONFIG"),
            ({"rope_theta": "many"}, "E-CONFIG"),
            ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "all"}}, "E-CONFIG"),
            ({"eagle_config": {}}, "E-LAYERS"),
            ({"eagle_config": {"eh_proj_before_attn": True}}, "E-CONFIG"),
            ({"eagle_config": {"use_mtp_layernorm": True}}, "E-CONFIG"),
            ({"eagle_config": {"use_aux_hidden_state": False}}, "E-CONFIG"),
            ({"parallel_draft_step": 2}, "E-CONFIG"),
            ({"logit_scale": 0.5}, "E-CONFIG"),
            ({"draft_vocab_size": 65}, "E-CONFIG"),
        ],
    )
    def test_configs_that_cannot_be_computed(self, tmp_path, target, config, code):
        found = inspect(
            tiny.save_draft(tmp_path, tiny.eagle3_shapes(), tensors=tiny.vocabulary_maps(), **config), target
        )
        assert code in codes(found)

    def test_parts_of_two_generations(self, tmp_path):
        shapes = tiny.eagle_shapes() | {"fc.weight": (32, 96)}
        assert "E-GENERATION" in codes(inspect(tiny.save_draft(tmp_path, shapes)))
        shapes = tiny.eagle3_shapes() | {"fc.weight": (32, 64)}
        assert "E-GENERATION" in codes(inspect(tiny.save_draft(tmp_path, shapes)))

    def test_a_reduced_vocabulary_without_a_head(self, tmp_path):
        shapes = tiny.eagle3_shapes()
        del shapes["lm_head.weight"]
        found = inspect(tiny.save_draft(tmp_path, shapes, draft_vocab_size=64, vocab_size=320))
        assert codes(found) == {"E-HEAD"}

    def test_a_reduced_vocabulary_without_a_map(self, tmp_path):
        found = inspect(tiny.save_draft(tmp_path, tiny.eagle3_shapes(), draft_vocab_size=64, vocab_size=320))
        assert codes(found) == {"E-D2T"}

    @pytest.mark.parametrize(
        "fault", ["zeros", "ids instead of offsets", "another t2d", "beyond", "not rising", "below 0"]
    )
    def test_maps_that_lie(self, tmp_path, fault):
        maps = tiny.vocabulary_maps()
        if fault == "zeros":
            maps = {"d2t": torch.zeros(64, dtype=torch.int64)}
        elif fault == "ids instead of offsets":
            maps["d2t"] = maps["d2t"] + torch.arange(64)
        elif fault == "another t2d":
            maps["t2d"] = maps["t2d"].roll(1)
        elif fault == "beyond":
            maps = {"d2t": maps["d2t"].clone()}
            maps["d2t"][-1] = 300
        else:  # no t2d, so that the offsets alone have to show it
            maps = {"d2t": maps["d2t"].clone()}
            maps["d2t"][{"not rising": 5, "below 0": 0}[fault]] = {"not rising": -4, "below 0": -1}[fault]
        found = inspect(tiny.save_draft(tmp_path, tiny.eagle3_shapes(), tensors=maps, vocab_size=320))
        assert codes(found) == {"E-D2T"}

    @pytest.mark.parametrize("name", ["midlayer.hidden_norm.weight", "norm.weight", "midlayer.mlp.up_proj.weight"])
    def test_missing_tensors(self, tmp_path, name):
        shapes = tiny.eagle3_shapes()
        del shapes[name]
        found = inspect(tiny.save_draft(tmp_path, shapes, tensors=tiny.vocabulary_maps()))
        assert found.method == "eagle3"
        assert codes(found) == {"E-MISSING"}

    @pytest.mark.parametrize("shape", [(), (0,), (32,), (1, 1, 1)])
    @pytest.mark.parametrize("name", ["fc.weight", "midlayer.self_attn.q_proj.weight", "lm_head.weight", "norm.weight"])
    def test_tensors_that_are_no_matrices(self, tmp_path, target, name, shape):
        shapes = tiny.eagle3_shapes() | {name: shape if name != "norm.weight" else (*shape, 2)}
        found = inspect(tiny.save_draft(tmp_path, shapes, tensors=tiny.vocabulary_maps()), target)
        assert "E-SHAPE" in codes(found)

    def test_unknown_tensors_and_a_second_layer(self, tmp_path):
        shapes = tiny.eagle_shapes() | {"layers.1.mlp.up_proj.weight": (48, 32), "extra": (1,)}
        found = inspect(tiny.save_draft(tmp_path, shapes))
        assert [problem.message for problem in found.problems] == [
            "unexpected tensors: extra, layers.1.mlp.up_proj.weight"
        ]

    def test_drafts_of_another_target(self, tmp_path, target):
        found = inspect(tiny.save_draft(tmp_path / "a", tiny.eagle_shapes(hidden=16)), target)
        assert codes(found) == {"E-HIDDEN"}
        wide = tiny.eagle3_shapes(target_hidden=48)
        found = inspect(tiny.save_draft(tmp_path / "b", wide, tensors=tiny.vocabulary_maps()), target)
        assert codes(found) == {"E-HIDDEN"}
        maps = tiny.vocabulary_maps(vocab=200, draft_vocab=40)
        shapes = tiny.eagle3_shapes(vocab=200, draft_vocab=40)
        assert codes(inspect(tiny.save_draft(tmp_path / "c", shapes, tensors=maps), target)) == {"E-VOCAB"}
        config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 9]}}
        found = inspect(
            tiny.save_draft(tmp_path / "d", tiny.eagle3_shapes(), tensors=tiny.vocabulary_maps(), **config), target
        )
        assert codes(found) == {"E-LAYERS"}


class TestDraftModels:
    def test_a_draft_of_the_same_tokenizer(self, tmp_path, target):
        small = tiny.llama_checkpoint(tmp_path / "x", num_hidden_layers=1)
        found = inspect(small, target)
        assert (found.role, found.method, found.fits_target, found.problems) == ("draft", "draft_model", True, ())
        assert found.details.tokenizer_pair.target_padded_ids == (315, 320)

    def test_padding_of_different_length(self, tmp_path, target):
        found = inspect(tiny.llama_checkpoint(tmp_path / "x", num_hidden_layers=1, vocab_size=328), target)
        assert found.fits_target is True
        assert [note.code for note in found.notes] == ["N-PADDING"]

    def test_a_draft_with_too_few_rows(self, tmp_path, target):
        small = tiny.llama_checkpoint(tmp_path / "x", num_hidden_layers=1, vocab_size=300)
        found = inspect(small, target)
        assert codes(found) == {"E-VOCAB"}
        assert "300 rows" in found.problems[0].message

    def test_one_differing_id(self, tmp_path, target):
        small = tiny.llama_checkpoint(tmp_path / "x", num_hidden_layers=1)
        tiny.swap_ids(small, 40, 41)
        found = inspect(small, target)
        assert found.fits_target is False
        assert codes(found) == {"E-VOCAB"}
        assert "id 40" in found.problems[0].message

    def test_a_draft_without_tokenizer(self, tmp_path, target):
        small = tiny.llama_checkpoint(tmp_path / "x", num_hidden_layers=1, tokenizer=False)
        assert codes(inspect(small, target)) == {"E-TOKENIZER"}

    def test_what_is_noted(self, tmp_path, target):
        shorter = tiny.llama_checkpoint(
            tmp_path / "x", num_hidden_layers=1, max_position_embeddings=64, dtype=torch.bfloat16
        )
        found = inspect(shorter, target)
        assert found.fits_target is True
        assert {note.code for note in found.notes} == {"N-POSITIONS", "N-DTYPE"}
        assert "N-SIZE" in {note.code for note in inspect(target, target).notes}

    def test_a_target_with_problems_of_its_own(self, tmp_path, target):
        broken = tiny.llama_checkpoint(tmp_path / "x")
        tiny.edit_json(broken / "config.json", num_hidden_layers=9)
        found = inspect(target, broken)
        assert found.fits_target is False
        assert found.problems[0].message.startswith("the target: ")

    def test_a_draft_given_as_target(self, tmp_path, target):
        heads = tiny.save_draft(tmp_path, tiny.medusa_shapes())
        assert codes(inspect(target, heads)) == {"E-TARGET"}


def test_tensors_of_no_known_kind(tmp_path):
    tiny.save_draft(tmp_path, {"encoder.weight": (2, 2)})
    with pytest.raises(CheckpointError, match="no kind that is known") as caught:
        inspect(tmp_path)
    assert caught.value.got == "encoder.weight"
