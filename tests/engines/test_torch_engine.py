"""An engine is whole, self-contained and the same as its checkpoints; what does not fit is refused before writing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tests import tiny
from tests.engines.runs import tiny_run, write_run
from trt_spec.config import loader
from trt_spec.engines import builder
from trt_spec.engines import manifest as manifests
from trt_spec.engines.builder import plan_run
from trt_spec.engines.torch import builder as torch_builder
from trt_spec.errors import BuildError, CapabilityError, CheckpointError, GateFailure, MachineError, PairError
from trt_spec.runtime.loading import load_engine
from trt_spec.runtime.request import Request


def build(config, root):
    return builder.build(config, engines_dir=root / "engines", run=config.name)


def files(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("method", ["none", "ngram", "draft_model"])
def test_an_engine_is_what_the_plan_says_and_generates(tmp_path, method):
    config = tiny_run(tmp_path, method)
    planned = plan_run(config, engines_dir=str(tmp_path / "engines"))
    result = build(config, tmp_path)
    assert not result.is_reused
    assert files(result.engine_dir) == sorted(file.path for file in planned.files)
    assert str(result.engine_dir) == planned.engine_dir
    shutil.rmtree(tmp_path / "target")  # self-contained
    shutil.rmtree(tmp_path / "draft", ignore_errors=True)
    engine = load_engine(result.engine_dir)
    [answer] = engine.generate([Request("a", (5, 6, 7))])
    assert answer.completion.num_output_tokens == 64 or answer.completion.finish_reason == "eos"


def test_resolved_config_reloads_to_the_same(tmp_path):
    config = tiny_run(tmp_path)
    result = build(config, tmp_path)
    assert loader.load(result.engine_dir / "resolved.yaml") == config


def test_weights_are_those_of_the_checkpoint_in_the_engines_dtype(tmp_path):
    result = build(tiny_run(tmp_path, dtype="bfloat16"), tmp_path)
    source = load_file(tmp_path / "target" / "model.safetensors")
    written = load_file(result.engine_dir / "target" / "model.safetensors")
    assert written.keys() == source.keys()
    for name, tensor in source.items():
        assert torch.equal(written[name], tensor.to(torch.bfloat16))
    assert json.loads((result.engine_dir / "target" / "config.json").read_text())["dtype"] == "bfloat16"


def test_shards_stay_shards(tmp_path):
    config = tiny_run(tmp_path)
    path = tmp_path / "target" / "model.safetensors"
    tensors = load_file(path)
    path.unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for name, held in shards.items():
        save_file({key: tensors[key] for key in held}, path.with_name(name))
    index = {"weight_map": {key: name for name, held in shards.items() for key in held}}
    tiny.write_json(path.with_name("model.safetensors.index.json"), index)
    target = build(config, tmp_path).engine_dir / "target"
    assert json.loads((target / "model.safetensors.index.json").read_text())["weight_map"] == index["weight_map"]
    assert load_file(target / "model-00002-of-00002.safetensors").keys() == set(names[5:])


def test_the_manifest_says_what_went_in_came_out_and_was_checked(tmp_path):
    config = tiny_run(tmp_path, "draft_model")
    result = build(config, tmp_path)
    manifest = manifests.read(result.engine_dir)
    assert manifest == result.manifest
    assert manifest.config == config.model_dump(mode="json", exclude_none=True)
    assert set(manifest.inputs) == {"target", "draft"}
    for role in manifest.inputs:
        record = manifest.inputs[role].files["model.safetensors"]
        assert record == manifests.digest_files(tmp_path / role, ["model.safetensors"])["model.safetensors"]
    assert manifest.inputs["target"].num_tensors == 21
    assert set(manifest.outputs) == set(files(result.engine_dir)) - {"manifest.json"}
    assert manifest.commands[0] == "trt-spec build tiny-draft_model"
    checks = {check.check: check.result for check in manifest.verified}
    assert checks["greedy tokens with speculation on and off"].startswith("3 of 3 prompts equal; ")
    assert manifest.not_verified
    assert manifest.engine.vocab_size == 320


def test_an_equal_rebuild_does_nothing(tmp_path):
    config = tiny_run(tmp_path)
    first = build(config, tmp_path)
    before = {name: (first.engine_dir / name).stat().st_mtime_ns for name in files(first.engine_dir)}
    os.utime(tmp_path / "target" / "model.safetensors")  # touched, not changed
    second = build(config, tmp_path)
    assert second.is_reused
    assert second.manifest == first.manifest
    assert before == {name: (first.engine_dir / name).stat().st_mtime_ns for name in files(first.engine_dir)}


@pytest.mark.parametrize("change", ["config", "weights", "output", "missing output", "damaged manifest"])
def test_a_rebuild_happens_where_anything_changed(tmp_path, change):
    config = tiny_run(tmp_path)
    engine_dir = build(config, tmp_path).engine_dir
    if change == "config":
        config = loader.loads(loader.dump(config), overrides=["speculation.max_draft_len=3"])
    elif change == "weights":
        tiny.llama_checkpoint(tmp_path / "target", seed=7)
    elif change == "output":
        (engine_dir / "target" / "config.json").write_text("{}")
    elif change == "missing output":
        (engine_dir / "resolved.yaml").unlink()
    else:
        (engine_dir / "manifest.json").write_text("{")
    result = build(config, tmp_path)
    assert not result.is_reused
    assert manifests.is_whole(engine_dir, manifests.read(engine_dir))


def test_another_checkpoint_of_equal_size_and_time_is_hashed_again(tmp_path):
    """Copies and archives keep times, so two checkpoints of one shape may differ in their bytes alone."""
    config = tiny_run(tmp_path)
    first = build(config, tmp_path)
    other = shutil.copytree(tmp_path / "target", tmp_path / "other")
    weights, before = other / "model.safetensors", (tmp_path / "target" / "model.safetensors").stat()
    content = bytearray(weights.read_bytes())
    content[-4:] = bytes(4)
    weights.write_bytes(content)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = build(loader.loads(loader.dump(config), overrides=[f"target.checkpoint={other}"]), tmp_path)
    digests = [one.manifest.inputs["target"].files["model.safetensors"].sha256 for one in (first, second)]
    assert digests[0] != digests[1]


# --- refused, with nothing written --------------------------------------------------------------------------------


def refuse(config, root, error, *says):
    with pytest.raises(error) as caught:
        build(config, root)
    for part in says:
        assert part in str(caught.value)
    assert not (root / "engines" / config.name).exists()
    assert list((root / "engines").glob(".*")) == []


def edit_weights(path, edit):
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def test_a_missing_tensor_is_named(tmp_path):
    config = tiny_run(tmp_path)
    path = tmp_path / "target" / "model.safetensors"
    edit_weights(path, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    refuse(config, tmp_path, CheckpointError, "missing", "model.layers.1.mlp.up_proj.weight")


def test_an_extra_tensor_is_named(tmp_path):
    config = tiny_run(tmp_path, extra={"model.layers.1.mystery.weight": (2, 2)})
    refuse(config, tmp_path, CheckpointError, "unexpected", "model.layers.1.mystery.weight")


@pytest.mark.parametrize("text", [None, "{"])
def test_a_target_without_a_usable_tokenizer_is_refused_before_anything_is_written(tmp_path, monkeypatch, text):
    config = tiny_run(tmp_path)
    path = tmp_path / "target" / "tokenizer.json"
    path.unlink() if text is None else path.write_text(text)
    monkeypatch.setattr(torch_builder, "write_checkpoint", None)  # not called
    refuse(config, tmp_path, CheckpointError, "tokenizer.json", str(tmp_path / "target"))


def test_a_tensor_that_is_not_finite_is_named(tmp_path):
    config = tiny_run(tmp_path)
    path = tmp_path / "target" / "model.safetensors"
    edit_weights(path, lambda tensors: tensors["model.norm.weight"].fill_(float("nan")))
    refuse(config, tmp_path, CheckpointError, "model.norm.weight", "NaN")


def test_a_value_beyond_the_engines_dtype_is_named(tmp_path):
    config = tiny_run(tmp_path, dtype="float16")
    path = tmp_path / "target" / "model.safetensors"
    edit_weights(path, lambda tensors: tensors["model.norm.weight"].fill_(1e5))
    refuse(config, tmp_path, CheckpointError, "model.norm.weight", "float16")


def test_a_tokenizer_that_differs_at_one_id_is_refused(tmp_path):
    config = tiny_run(tmp_path, "draft_model")
    tiny.swap_ids(tmp_path / "draft", 300, 301)
    refuse(config, tmp_path, PairError, "300", "301")


def test_a_draft_of_another_method_is_refused(tmp_path):
    config = tiny_run(tmp_path, "draft_model")
    shutil.rmtree(tmp_path / "draft")
    tiny.save_draft(tmp_path / "draft", tiny.eagle_shapes(), model_type="llama")
    refuse(config, tmp_path, PairError, "of another method", "eagle", str(tmp_path / "draft"))


def test_what_is_not_offered_is_refused_by_name(tmp_path):
    config = tiny_run(tmp_path)
    config = loader.loads(loader.dump(config), overrides=["build.target=llmapi", "build.device=auto"])
    refuse(config, tmp_path, CapabilityError, "llmapi")


def test_an_engine_whose_greedy_output_changes_is_not_put_in_place(tmp_path, monkeypatch):
    from trt_spec.engines.torch import self_check

    config = tiny_run(tmp_path)
    generate = self_check._generate
    monkeypatch.setattr(
        self_check,
        "_generate",
        lambda engine, prompts, speculation: [
            [*ids[:3], (ids[3] + speculation) % 320, *ids[4:]]
            for ids in generate(engine, prompts, speculation=speculation)
        ],
    )
    refuse(config, tmp_path, GateFailure, "differs at 3: ")


def test_what_is_no_engine_is_not_replaced(tmp_path):
    config = tiny_run(tmp_path)
    mine = tmp_path / "engines" / config.name / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(BuildError, match="something else"):
        build(config, tmp_path)
    assert mine.read_text() == "mine"


def test_a_full_disk_is_the_machines_fault(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    refuse(tiny_run(tmp_path / "sources"), tmp_path, MachineError, "No space left on device")


# --- interrupted --------------------------------------------------------------------------------------------------

INTERRUPTED = """
    import sys, time
    from pathlib import Path
    from trt_spec.engines.builder import build
    from trt_spec.engines.torch import builder as torch_builder
    from trt_spec.config import loader
    from trt_spec.errors import TrtSpecError

    def stop(engine):
        print("checking", flush=True)
        time.sleep(60)

    torch_builder.self_check = stop
    try:
        build(loader.load(sys.argv[1]), engines_dir=Path(sys.argv[2]))
    except TrtSpecError as error:
        print(error, flush=True)
        sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_build_leaves_the_old_engine_whole(tmp_path, how):
    config = tiny_run(tmp_path)
    old = build(config, tmp_path)
    changed = loader.loads(loader.dump(config), overrides=["speculation.max_draft_len=3"])
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), write_run(tmp_path, changed), tmp_path / "engines"]
    builder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert builder.stdout.readline() == "checking\n"
    builder.send_signal(how)
    said, _ = builder.communicate(timeout=30)
    if how != signal.SIGKILL:
        assert builder.returncode == 130
        assert f"interrupted ({how.name}); the engine that was there is untouched" in said
        assert files(tmp_path / "engines") == [f"tiny-ngram/{name}" for name in files(old.engine_dir)]
    assert manifests.is_whole(old.engine_dir, old.manifest)
    assert manifests.read(old.engine_dir) == old.manifest
    assert build(config, tmp_path).is_reused
    build(changed, tmp_path)
    assert list((tmp_path / "engines").iterdir()) == [old.engine_dir]  # also what kill -9 had left
