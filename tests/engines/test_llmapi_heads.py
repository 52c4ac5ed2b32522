"""What a draft's checkpoint decides reaches the engine: its tensors' names, and which layers of the target it reads."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from tests import tiny
from tests.engines.llmapi_runs import llmapi_run
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.engines.builder import build
from trt_spec.errors import CheckpointError


def eagle3_run(tmp_path, layers: list[int], version: str):
    """A run with an EAGLE-3 head that reads the outputs of `layers` of a target of eight."""
    target = tiny.llama_checkpoint(tmp_path / "target", num_hidden_layers=8)
    extras = {"eagle_aux_hidden_state_layer_ids": layers}
    shapes = tiny.eagle3_shapes(layer="layers.0")
    head = tiny.save_draft(tmp_path / "head", shapes, tensors=tiny.vocabulary_maps(), eagle_config=extras)
    run = llmapi_run("eagle3", version, checkpoint=str(head))
    return run.model_copy(update={"target": run.target.model_copy(update={"checkpoint": str(target)})})


def arguments(engine_dir) -> dict:
    return YAML(typ="safe").load((engine_dir / "llm_args.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", ["1.1.0", "1.2.1", "1.4.0rc4"])
def test_layers_of_the_heads_own_choice_are_captured(tmp_path, version):
    result = build(eagle3_run(tmp_path, [0, 2, 5], version), engines_dir=tmp_path / "engines")
    speculative = arguments(result.engine_dir)["speculative_config"]
    assert speculative["eagle3_layers_to_capture"] == [0, 2, 5]
    assert speculative["speculative_model_dir"] == "draft"
    assert "midlayer.mlp.up_proj.weight" in CheckpointDir.open(result.engine_dir / "draft").tensors


def test_the_default_layers_are_left_to_the_version(tmp_path):
    result = build(eagle3_run(tmp_path, [1, 3, 4], "1.0.0"), engines_dir=tmp_path / "engines")
    assert "eagle3_layers_to_capture" not in arguments(result.engine_dir)["speculative_config"]


def test_layers_that_a_version_cannot_name_end_the_build(tmp_path):
    with pytest.raises(CheckpointError, match="captures layers"):
        build(eagle3_run(tmp_path, [0, 2, 5], "1.0.0"), engines_dir=tmp_path / "engines")
    assert not (tmp_path / "engines" / "llmapi-eagle3").exists()
