"""The engine directory of the llmapi target: what is in it, that it is whole by itself, and what a plan says of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from tests import tiny
from tests.engines.llmapi_runs import llmapi_run
from tests.triton.llm_cases import llmapi_config
from trt_spec.config import loader
from trt_spec.config.schema import RunConfig
from trt_spec.engines import manifest as manifests
from trt_spec.engines.builder import build, plan_run
from trt_spec.engines.files import link_or_copy
from trt_spec.engines.llmapi.args import llm_args
from trt_spec.engines.llmapi.builder import NOT_EXECUTED
from trt_spec.errors import BuildError, BuildInterruptedError, CapabilityError, CheckpointError, PairError


def eagle3_config(root: Path, version: str = "1.2.1") -> RunConfig:
    """A run with an EAGLE-3 head that the version reads only after a conversion."""
    tiny.save_draft(
        root / "eagle3",
        tiny.eagle3_shapes(layer="layers.0"),
        tensors=tiny.vocabulary_maps(),
        eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
    )
    tiny.llama_checkpoint(root / "checkpoint", num_hidden_layers=4)
    config = llmapi_config(root, "none", version).model_dump(exclude_unset=True)
    config["speculation"] = {"method": "eagle3", "checkpoint": str(root / "eagle3"), "max_draft_len": 3}
    return RunConfig.model_validate({**config, "name": "served-eagle3"})


@pytest.fixture
def built(tmp_path):
    config = llmapi_config(tmp_path)
    return config, build(config, engines_dir=tmp_path / "engines")


def test_the_directory_is_whole_by_itself(built, tmp_path):
    config, result = built
    files = {str(path.relative_to(result.engine_dir)) for path in result.engine_dir.rglob("*") if path.is_file()}
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {f"target/{name}" for name in names} <= files
    assert {"llm_args.yaml", "resolved.yaml", "manifest.json"} <= files
    assert set(result.manifest.outputs) == files - {"manifest.json"}
    assert loader.load(result.engine_dir / "resolved.yaml") == config
    (tmp_path / "checkpoint" / "model.safetensors").unlink()  # a second name, not a link to the first
    assert (result.engine_dir / "target" / "model.safetensors").stat().st_size > 1000


def test_the_arguments_are_the_runs(built):
    config, result = built
    text = (result.engine_dir / "llm_args.yaml").read_text()
    assert yaml.safe_load(text) == llm_args(config)
    assert "LLM 1.2.1" in text.splitlines()[0]


def test_the_manifest_says_what_was_not_executed(built):
    _, result = built
    saved = manifests.read(result.engine_dir)
    assert saved == result.manifest
    assert NOT_EXECUTED in saved.not_verified
    assert saved.engine.tensorrt_llm_version == "1.2.1"
    assert saved.engine.drafter_placement == "two_model"
    assert (saved.engine.vocab_size, saved.engine.method) == (320, "ngram")
    assert saved.inputs["target"].files["model.safetensors"].sha256 == saved.outputs["target/model.safetensors"].sha256


def test_linked_weights_are_hashed_once(tmp_path, monkeypatch):
    hashed, real = [], manifests.file_digest
    monkeypatch.setattr(manifests, "file_digest", lambda path: hashed.append(Path(path).name) or real(path))
    build(llmapi_config(tmp_path), engines_dir=tmp_path / "engines")
    assert hashed.count("model.safetensors") == 1


def test_an_equal_build_does_nothing_and_another_one_replaces_it(built, tmp_path):
    config, first = built
    assert build(config, engines_dir=tmp_path / "engines").is_reused
    other = llmapi_config(tmp_path, version="1.1.0")
    second = build(other, engines_dir=tmp_path / "engines")
    assert not second.is_reused
    assert second.manifest.digest != first.manifest.digest


def test_a_damaged_engine_is_built_again(built, tmp_path):
    config, first = built
    (first.engine_dir / "llm_args.yaml").write_text("model: elsewhere\n")
    again = build(config, engines_dir=tmp_path / "engines")
    assert not again.is_reused
    assert yaml.safe_load((again.engine_dir / "llm_args.yaml").read_text()) == llm_args(config)


def test_a_draft_is_written_as_the_version_reads_it(tmp_path):
    result = build(eagle3_config(tmp_path), engines_dir=tmp_path / "engines")
    from safetensors import safe_open

    with safe_open(result.engine_dir / "draft" / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "midlayer.self_attn.q_proj.weight" in names
    assert not any(name.startswith("layers.0") for name in names)
    assert json.loads((result.engine_dir / "draft" / "config.json").read_text())["draft_vocab_size"] == 64
    fields = yaml.safe_load((result.engine_dir / "llm_args.yaml").read_text())["speculative_config"]
    assert fields["speculative_model_dir"] == "draft"
    assert fields["eagle3_layers_to_capture"] == [1, 2, 3]  # not the ones that TensorRT-LLM takes by itself


def test_a_pair_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    config = eagle3_config(tmp_path)
    tiny.save_draft(tmp_path / "eagle3", tiny.eagle3_shapes(target_hidden=48), tensors=tiny.vocabulary_maps())
    with pytest.raises(PairError):
        build(config, engines_dir=tmp_path / "engines")
    assert not (tmp_path / "engines" / config.name).exists()


def test_a_target_without_a_tokenizer_is_refused(tmp_path):
    config = llmapi_config(tmp_path)
    (tmp_path / "checkpoint" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="tokenizer"):
        build(config, engines_dir=tmp_path / "engines")


def test_something_else_at_its_place_is_left_alone(tmp_path):
    config = llmapi_config(tmp_path)
    (tmp_path / "engines" / config.name).mkdir(parents=True)
    (tmp_path / "engines" / config.name / "mine.txt").write_text("mine")
    with pytest.raises(BuildError, match="something else"):
        build(config, engines_dir=tmp_path / "engines")


def test_an_interruption_leaves_the_old_engine(built, tmp_path, monkeypatch):
    config, first = built

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("trt_spec.engines.llmapi.builder.link_or_copy", stop)
    with pytest.raises(BuildInterruptedError, match="untouched"):
        build(llmapi_config(tmp_path, version="1.1.0"), engines_dir=tmp_path / "engines")
    assert manifests.read(first.engine_dir) == first.manifest
    assert [path.name for path in (tmp_path / "engines").iterdir()] == [config.name]


def test_files_are_linked_where_they_can_be_and_copied_where_not(tmp_path, monkeypatch):
    (tmp_path / "blob").write_text("weights")
    (tmp_path / "model.safetensors").symlink_to("blob")  # as the hub's cache has them
    link_or_copy(tmp_path / "model.safetensors", tmp_path / "linked")
    assert (tmp_path / "linked").stat().st_ino == (tmp_path / "blob").stat().st_ino
    assert not (tmp_path / "linked").is_symlink()

    def refuse(*args):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    link_or_copy(tmp_path / "blob", tmp_path / "copied")
    assert (tmp_path / "copied").read_text() == "weights"
    assert (tmp_path / "copied").stat().st_ino != (tmp_path / "blob").stat().st_ino


# --- plans ---


def test_a_plan_without_checkpoints_is_for_a_laptop(tmp_path):
    found = plan_run(llmapi_run("eagle3", "1.2.0"), engines_dir="engines")
    assert [file.path for file in found.files if "/" not in file.path] == [
        "llm_args.yaml",
        "resolved.yaml",
        "manifest.json",
    ]
    assert sum("is not there yet" in note for note in found.notes) == 2
    assert any("nvcr.io" in note for note in found.notes)
    assert not (tmp_path / "engines").exists()


@pytest.mark.parametrize(
    ("version", "build", "is_noted"),
    [
        ("1.2.1", {}, False),
        ("1.3.0rc29", {}, True),
        ("1.3.0rc29", {"container": "registry/triton:1"}, False),
    ],
)
def test_a_plan_says_where_no_image_can_serve_it(version, build, is_noted):
    found = plan_run(llmapi_run("ngram", version, build=build), engines_dir="engines")
    assert any("has no tritonserver" in note for note in found.notes) == is_noted


def test_a_plan_names_every_file_that_the_build_writes(tmp_path):
    for config in (llmapi_config(tmp_path / "ngram"), eagle3_config(tmp_path / "eagle3")):
        planned = plan_run(config, engines_dir=tmp_path / "engines")
        result = build(config, engines_dir=tmp_path / "engines")
        written = {str(path.relative_to(result.engine_dir)) for path in result.engine_dir.rglob("*") if path.is_file()}
        assert {file.path for file in planned.files} == written


def test_what_cannot_be_is_refused_before_a_checkpoint_is_looked_for():
    with pytest.raises(CapabilityError, match="medusa"):
        plan_run(
            RunConfig.model_validate(
                {
                    "name": "x",
                    "target": {"checkpoint": "/nowhere"},
                    "speculation": {"method": "medusa", "checkpoint": "/nowhere"},
                    "build": {"target": "llmapi"},
                }
            )
        )
