"""Checkpoints that do not fit the method of an llmapi run, or its version, are refused before anything is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import tiny
from tests.engines.llmapi_runs import llmapi_run
from tests.runtime.head_cases import deepseek_target, mimo_target
from trt_spec.checkpoints.detect import inspect
from trt_spec.engines.builder import build, plan_run
from trt_spec.engines.llmapi.mtp_targets import mtp_targets, refuse_without_mtp
from trt_spec.errors import CapabilityError, CheckpointError, ConfigError, PairError


def eagle3_head(directory):
    layers = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    return tiny.save_draft(directory, tiny.eagle3_shapes(), tensors=tiny.vocabulary_maps(), eagle_config=layers)


def run(method, root, version="1.2.0", draft=None, **speculation):
    made = llmapi_run(method, version, **speculation)
    paths = {"target": made.target.model_copy(update={"checkpoint": str(root / "target")})}
    if draft is not None:
        paths["speculation"] = made.speculation.model_copy(update={"checkpoint": str(draft)})
    return made.model_copy(update=paths)


def refused(config, root, kind, *words):
    for step in (build, plan_run):
        with pytest.raises(kind) as caught:
            step(config, engines_dir=root / "engines")
        assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not (root / "engines").exists()


def test_mtp_needs_layers_in_the_target(tmp_path):
    tiny.llama_checkpoint(tmp_path / "target")
    refused(run("mtp", tmp_path), tmp_path, CheckpointError, "this target has none", "ngram")


def test_mtp_needs_an_architecture_that_the_version_drafts_with(tmp_path):
    mimo_target(tmp_path / "target")
    config = run("mtp", tmp_path, "1.4.0rc4", max_draft_len=1)
    refused(config, tmp_path, CapabilityError, "1.4.0rc4", "mimo", "deepseek_v3", "build.target to torch")


def test_mtp_of_an_architecture_that_came_later_names_the_version(tmp_path):
    deepseek_target(tmp_path / "target")
    plan = plan_run(run("mtp", tmp_path, "1.0.0"), engines_dir="engines")  # DeepSeek-V3 is there from the start
    assert not any("not there" in note for note in plan.notes)
    tiny.edit_json(tmp_path / "target" / "config.json", model_type="deepseek_v32")
    found = inspect(str(tmp_path / "target"))
    found = replace(found, details=replace(found.details, mtp_layout="deepseek_v3"))
    with pytest.raises(CapabilityError, match="later one"):
        refuse_without_mtp(run("mtp", tmp_path, "1.1.0"), found, "deepseek_v32")
    refuse_without_mtp(run("mtp", tmp_path, "1.2.0"), found, "deepseek_v32")


def test_which_architectures_have_mtp_in_which_line():
    assert mtp_targets("1.0") == mtp_targets("1.1") == ("deepseek_v3",)
    assert "qwen3_next" in mtp_targets("1.2")
    assert "qwen3_5*" not in mtp_targets("1.3-early")
    assert "qwen3_5*" in mtp_targets("1.3-late")
    assert mtp_targets("1.3-late") == mtp_targets("1.4")


def test_layers_in_turn_draft_no_further_than_there_are(tmp_path):
    deepseek_target(tmp_path / "target", num_layers=2)
    refused(run("mtp", tmp_path, max_draft_len=3), tmp_path, ConfigError, "at most 2")


def test_a_draft_of_another_method_is_refused(tmp_path):
    tiny.llama_checkpoint(tmp_path / "target", num_hidden_layers=4)
    heads = eagle3_head(tmp_path / "eagle3")
    model = tiny.llama_checkpoint(tmp_path / "model", seed=1)
    refused(run("draft_model", tmp_path, draft=heads), tmp_path, PairError, "another method", "eagle3")
    refused(run("eagle3", tmp_path, draft=model), tmp_path, PairError, "another method", "draft_model")


def test_a_head_is_no_target(tmp_path):
    eagle3_head(tmp_path / "target")
    refused(run("none", tmp_path), tmp_path, CheckpointError, "no whole model")
