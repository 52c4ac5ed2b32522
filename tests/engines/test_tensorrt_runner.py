"""Builds for `tensorrt` with stand-ins for its tools: what is run, what is checked, and what is kept when it stops."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests import tiny
from tests.engines.runs import write_run
from tests.engines.trtllm_runs import trtllm_run
from tests.engines.trtllm_stand_ins import StandIns
from trt_spec.config import loader
from trt_spec.engines import builder
from trt_spec.engines import manifest as manifests
from trt_spec.engines.tensorrt import plan as tensorrt
from trt_spec.engines.tensorrt import tool_process
from trt_spec.engines.tensorrt.work_dir import WorkDir
from trt_spec.errors import BuildError, CapabilityError, CheckpointError, MachineError, PairError

METHODS = ("none", "draft_model", "medusa", "eagle", "lookahead", "redrafter")


@pytest.fixture
def stand_ins(tmp_path, monkeypatch) -> StandIns:
    made = StandIns(tmp_path / "tools")
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    return made


def build(config, tmp_path, **options):
    return builder.build(config, engines_dir=tmp_path / "engines", run=config.name, **options)


def engine_config(result, role: str = "target") -> dict:
    return json.loads((result.engine_dir / tensorrt.ENGINE_DIRS[role] / "config.json").read_text())


def no_work_is_left(tmp_path) -> bool:
    return [path.name for path in (tmp_path / "engines").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("version", ["0.19.0", "0.21.0", "1.2.1", "1.3.0rc20"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_builds_with_tools_that_know_only_the_flags_of_the_version(tmp_path, monkeypatch, method, version):
    stand_ins = StandIns(tmp_path / "tools", version)
    monkeypatch.setenv("PATH", f"{stand_ins.bin}:{os.environ['PATH']}")
    config = trtllm_run(tmp_path, method, stand_ins)
    result = build(config, tmp_path)
    manifest = manifests.read(result.engine_dir)
    assert manifest == result.manifest
    assert manifest.engine.tensorrt_llm_version == version
    assert {"engine/config.json", "engine/rank0.engine", "tokenizer/tokenizer.json"} <= set(manifest.outputs)
    assert ("draft_engine/rank0.engine" in manifest.outputs) == (method == "draft_model")
    assert loader.load(result.engine_dir / "resolved.yaml") == config
    assert no_work_is_left(tmp_path)
    steps = stand_ins.ran()
    expected = ["convert:target-checkpoint", "build:target-engine"]
    if method == "draft_model":
        expected += ["convert:draft-checkpoint", "build:draft-engine"]
    if method == "redrafter" and not version.startswith("0."):
        expected.insert(0, "convert:base-checkpoint")
    assert steps == expected


def test_the_sizes_are_those_that_the_builder_made(tmp_path, stand_ins):
    config = trtllm_run(tmp_path, "eagle", stand_ins, speculation={"tree": {"choices": [[0], [1], [0, 0], [1, 0]]}})
    result = build(config, tmp_path)
    written = engine_config(result)
    assert written["build_config"]["max_seq_len"] == 128 + 4 + 2
    assert written["pretrained_config"]["max_non_leaves_per_layer"] == 2
    assert result.manifest.engine.engine_max_seq_len == 134
    assert result.manifest.engine.max_seq_len == 128
    assert result.manifest.engine.engine_max_draft_len == 4


def test_ranks_of_a_parallel_engine_are_all_there(tmp_path, stand_ins):
    config = trtllm_run(tmp_path, "none", stand_ins, tensor_parallel_size=2, pipeline_parallel_size=2)
    result = build(config, tmp_path)
    assert {f"engine/rank{rank}.engine" for rank in range(4)} <= set(result.manifest.outputs)


def test_an_equal_engine_is_not_built_again_and_needs_no_tools(tmp_path, stand_ins, monkeypatch):
    config = trtllm_run(tmp_path, "medusa", stand_ins)
    first = build(config, tmp_path)
    stand_ins.ran()
    monkeypatch.setenv("PATH", "/nowhere")
    second = build(config, tmp_path)
    assert second.is_reused
    assert second.manifest == first.manifest
    assert stand_ins.ran() == []


def test_what_a_build_left_that_stopped_after_its_engine_was_in_place_is_removed(tmp_path, stand_ins):
    config = trtllm_run(tmp_path, "none", stand_ins)
    build(config, tmp_path)
    left = Path(tensorrt.work_dir_of(config, tmp_path / "engines"))
    left.mkdir()
    assert build(config, tmp_path).is_reused
    assert not left.exists()


def test_a_changed_checkpoint_is_built_again(tmp_path, stand_ins):
    config = trtllm_run(tmp_path, "none", stand_ins)
    build(config, tmp_path)
    stand_ins.ran()
    tiny.llama_checkpoint(tmp_path / "target", seed=7)
    assert not build(config, tmp_path).is_reused
    assert stand_ins.ran() == ["convert:target-checkpoint", "build:target-engine"]


# --- resuming --------------------------------------------------------------------------------------------------------


def test_a_failed_step_is_told_with_its_last_lines_and_the_next_build_goes_on(tmp_path, stand_ins):
    config = trtllm_run(tmp_path, "draft_model", stand_ins)
    stand_ins.order(fail="convert:draft-checkpoint", why="ValueError: vocabulary of another size")
    with pytest.raises(BuildError) as caught:
        build(config, tmp_path)
    error = caught.value
    assert error.what == "convert-draft failed"
    assert error.got == "exit code 1"
    assert error.details[-1] == "ValueError: vocabulary of another size"
    assert Path(error.where).read_text().endswith("vocabulary of another size\n")
    assert "goes on from there" in error.remedy
    assert not (tmp_path / "engines" / config.name).exists()
    assert stand_ins.ran() == ["convert:target-checkpoint", "build:target-engine", "convert:draft-checkpoint"]
    stand_ins.order()
    lines = []
    result = build(config, tmp_path, log=lines.append)
    assert stand_ins.ran() == ["convert:draft-checkpoint", "build:draft-engine"]
    assert "convert-target was done before" in lines
    assert (result.engine_dir / "logs" / "convert-target.log").exists()
    assert no_work_is_left(tmp_path)


def test_a_changed_size_builds_the_engine_again_and_keeps_the_conversion(tmp_path, stand_ins):
    stand_ins.order(fail="build:target-engine")
    with pytest.raises(BuildError):
        build(trtllm_run(tmp_path, "none", stand_ins), tmp_path)
    stand_ins.ran()
    stand_ins.order()
    build(trtllm_run(tmp_path, "none", stand_ins, max_batch_size=2), tmp_path)
    assert stand_ins.ran() == ["build:target-engine"]


def test_another_version_does_everything_again(tmp_path, monkeypatch):
    home = tmp_path / "tools"
    for version, orders in (("1.1.0", {"fail": "build:target-engine"}), ("1.2.1", {})):
        shutil.rmtree(home, ignore_errors=True)
        stand_ins = StandIns(home, version)
        monkeypatch.setenv("PATH", f"{stand_ins.bin}:{os.environ['PATH']}")
        stand_ins.order(**orders)
        with pytest.raises(BuildError) if orders else nullcontext():
            build(trtllm_run(tmp_path, "none", stand_ins), tmp_path)
    assert stand_ins.ran() == ["convert:target-checkpoint", "build:target-engine"]


@pytest.mark.parametrize("damage", ["truncated", "removed", "input"])
def test_what_is_not_as_it_was_is_done_again(tmp_path, stand_ins, damage):
    config = trtllm_run(tmp_path, "none", stand_ins)
    stand_ins.order(fail="build:target-engine")
    with pytest.raises(BuildError):
        build(config, tmp_path)
    stand_ins.ran()
    stand_ins.order()
    weights = tmp_path / "engines" / f".{config.name}.work" / "target-checkpoint" / "rank0.safetensors"
    if damage == "truncated":
        weights.write_bytes(b"w")
    elif damage == "removed":
        weights.unlink()
    else:
        tiny.llama_checkpoint(tmp_path / "target", seed=7)
    build(config, tmp_path)
    assert stand_ins.ran() == ["convert:target-checkpoint", "build:target-engine"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_build_leaves_no_tool_behind_and_goes_on_after_what_is_done(tmp_path, stand_ins, monkeypatch, how):
    config = trtllm_run(tmp_path, "none", stand_ins)
    stand_ins.order(hang="build:target-engine")
    command = [sys.executable, "-m", "trt_spec", "build", str(write_run(tmp_path, config))]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    tool = wait_for(stand_ins.home / "hanging")
    process.send_signal(how)
    _, err = process.communicate(timeout=30)
    monkeypatch.chdir(tmp_path)  # as the command did: paths are part of what a step is
    if how == signal.SIGKILL:  # nobody was left to end the tool, which still writes
        with pytest.raises(MachineError, match="another build"):
            builder.build(config, run=config.name)
        os.kill(tool, signal.SIGKILL)
        while is_running(tool):
            time.sleep(0.02)
    else:
        assert process.returncode == 130
        assert f"interrupted ({how.name}); what was finished is kept in engines/.tiny-none.work" in err
        assert "Converting rank 0" in err, "lines are streamed"
        assert not is_running(tool)
    assert not (tmp_path / "engines" / config.name).exists()
    stand_ins.ran()
    stand_ins.order()
    builder.build(config, run=config.name)
    assert stand_ins.ran() == ["build:target-engine"]


def wait_for(path: Path) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.05)
    raise AssertionError("the tool did not start")


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_two_builds_of_a_run_do_not_meet(tmp_path, stand_ins):
    config = trtllm_run(tmp_path, "none", stand_ins)
    with (
        WorkDir.opened(Path(tensorrt.work_dir_of(config, tmp_path / "engines"))),
        pytest.raises(MachineError, match="another build"),
    ):
        build(config, tmp_path)


def test_an_engine_that_is_there_survives_a_failed_build(tmp_path, stand_ins):
    config = trtllm_run(tmp_path, "none", stand_ins)
    first = build(config, tmp_path)
    stand_ins.order(fail="build:target-engine")
    with pytest.raises(BuildError):
        build(trtllm_run(tmp_path, "none", stand_ins, max_batch_size=2), tmp_path)
    assert manifests.read(first.engine_dir) == first.manifest
    assert manifests.is_whole(first.engine_dir, first.manifest)


# --- what was built is compared --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "lie", "words"),
    [
        ("lookahead", {"build_config.max_draft_len": 0}, "build_config.max_draft_len is 0, expected 15"),
        ("lookahead", {"build_config.speculative_decoding_mode": 1}, "speculative_decoding_mode is 1, expected 8"),
        ("draft_model", {"build_config.plugin_config.use_paged_context_fmha": False}, "fmha is False"),
        ("none", {"build_config.max_batch_size": 2048}, "max_batch_size is 2048, expected 4"),
        ("none", {"build_config.max_seq_len": 64}, "max_seq_len is 64, expected 128"),
        ("none", {"build_config.max_num_tokens": 3}, "max_num_tokens is 3, expected 4 to 8192"),
        ("none", {"version": "1.1.0"}, "version is 1.1.0, and the run config pins 1.2.1"),
        ("none", {"dtype": "bfloat16"}, "dtype is bfloat16, expected float16"),
        ("none", {"mapping.tp_size": 2}, "mapping.tp_size is 2, expected 1"),
        ("medusa", {"architecture": "LlamaForCausalLM"}, "LlamaForCausalLM, expected MedusaForCausalLM"),
        ("eagle", {"num_eagle_layers": 4}, "num_eagle_layers is 4, expected 5"),
        ("redrafter", {"redrafter_greedy_search": False}, "redrafter_greedy_search is False, expected True"),
    ],
)
def test_an_engine_that_is_not_what_was_asked_for_is_refused(tmp_path, stand_ins, method, lie, words):
    stand_ins.order(lie=lie)
    with pytest.raises(BuildError) as caught:
        build(trtllm_run(tmp_path, method, stand_ins), tmp_path)
    assert "something else than was asked for" in caught.value.what
    assert any(words in detail for detail in caught.value.details), caught.value.details
    assert not (tmp_path / "engines" / f"tiny-{method}").exists()


def test_a_missing_rank_is_refused(tmp_path, stand_ins):
    stand_ins.order(drop="target-engine/rank1")
    with pytest.raises(BuildError) as caught:
        build(trtllm_run(tmp_path, "none", stand_ins, tensor_parallel_size=2), tmp_path)
    assert caught.value.details == ("rank1.engine is missing",)


# --- machines and checkpoints that do not do -------------------------------------------------------------------------


def test_without_the_tools_the_container_and_its_command_are_named(tmp_path, monkeypatch):
    config = trtllm_run(tmp_path, "medusa", tensorrt_llm_version="1.2.1")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MachineError) as caught:
        build(config, tmp_path)
    error = caught.value
    assert error.exit_code == 3
    assert "trtllm-build is not on PATH" in error.details
    assert error.expected == "the container nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert "docker run" in error.remedy
    assert "trt-spec build tiny-medusa" in error.remedy
    assert f"-v {config.target.checkpoint}:{config.target.checkpoint}:ro" in error.remedy
    assert not (tmp_path / "engines").exists(), "nothing is written"


def test_a_missing_converter_is_named(tmp_path, stand_ins):
    config = trtllm_run(tmp_path, "eagle", stand_ins)
    script = stand_ins.examples / "eagle" / "convert_checkpoint.py"
    script.unlink()
    with pytest.raises(MachineError) as caught:
        build(config, tmp_path)
    assert caught.value.details == (f"{script} is not here",)


def test_a_machine_without_a_gpu_is_told_before_the_long_conversion(tmp_path, stand_ins):
    (stand_ins.bin / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    with pytest.raises(MachineError) as caught:
        build(trtllm_run(tmp_path, "none", stand_ins), tmp_path)
    assert caught.value.details == ("nvidia-smi shows no GPU, and trtllm-build needs one",)
    assert stand_ins.ran() == []


def test_another_version_that_is_installed_is_refused(tmp_path, stand_ins, monkeypatch):
    from trt_spec.engines.tensorrt import tools

    monkeypatch.setattr(tools, "installed_version", lambda: "1.1.0")
    with pytest.raises(MachineError) as caught:
        build(trtllm_run(tmp_path, "none", stand_ins), tmp_path)
    assert caught.value.details == ("TensorRT-LLM 1.1.0 is installed, and the run config pins 1.2.1",)


@pytest.mark.parametrize(
    ("why", "kind", "words"),
    [
        ("ModuleNotFoundError: No module named 'tensorrt_llm'", MachineError, "container"),
        ("RuntimeError: no CUDA-capable device is detected", MachineError, "GPU"),
        ("ValueError: max_workers must be greater than 0", MachineError, "GPU"),
        ("torch.OutOfMemoryError: CUDA out of memory", MachineError, "max_batch_size"),
        ("OSError: [Errno 28] No space left on device", MachineError, "free space"),
        ("ConnectionError: Couldn't reach 'cnn_dailymail' on the Hub", BuildError, "calibration_dataset"),
        ("ValueError: something else", BuildError, "read the log"),
    ],
)
def test_known_causes_are_told_with_their_remedy(tmp_path, stand_ins, why, kind, words):
    stand_ins.order(fail="convert:target-checkpoint", why=why)
    with pytest.raises(kind) as caught:
        build(trtllm_run(tmp_path, "none", stand_ins), tmp_path)
    assert type(caught.value) is kind
    assert words in caught.value.remedy


def test_a_tool_of_another_version_that_does_not_know_a_flag_is_told(tmp_path):
    command = [sys.executable, "-c", "import argparse; argparse.ArgumentParser().parse_args(['--new'])"]
    with pytest.raises(MachineError) as caught:
        tool_process.run(command, tmp_path / "log", lambda line: None, name="x")
    assert "another version" in caught.value.remedy


def test_a_killed_tool_is_short_of_memory(tmp_path):
    with pytest.raises(MachineError) as caught:
        tool_process.run(["sh", "-c", "kill -9 $$"], tmp_path / "log", lambda line: None, name="x")
    assert caught.value.got == "signal SIGKILL"
    assert "memory" in caught.value.remedy


def test_lines_of_a_progress_bar_come_one_by_one(tmp_path):
    lines = []
    tool_process.run(["printf", "10%%\r20%%\rdone\n"], tmp_path / "log", lines.append, name="x")
    assert lines == ["10%", "20%", "done"]


def test_forced_acceptance_in_the_environment_is_refused(tmp_path, stand_ins, monkeypatch):
    monkeypatch.setenv("TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS", "3")
    with pytest.raises(CapabilityError):
        build(trtllm_run(tmp_path, "none", stand_ins), tmp_path)


def test_checkpoints_that_do_not_do_are_refused_before_a_tool_runs(tmp_path, stand_ins):
    (tmp_path / "a").mkdir()
    config = trtllm_run(tmp_path / "a", "redrafter", stand_ins)
    (tmp_path / "a" / "draft" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="ReDrafter"):
        build(config, tmp_path)
    (tmp_path / "b").mkdir()
    config = trtllm_run(tmp_path / "b", "none", stand_ins)
    (tmp_path / "b" / "target" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="tokenizer"):
        build(config, tmp_path)
    (tmp_path / "c").mkdir()
    config = trtllm_run(tmp_path / "c", "draft_model", stand_ins)
    tiny.byte_level_tokenizer(tmp_path / "c" / "draft", vocab_size=300)
    with pytest.raises(PairError):
        build(config, tmp_path)
    assert stand_ins.ran() == []


def test_more_heads_than_the_checkpoint_has_are_refused(tmp_path, stand_ins):
    from trt_spec.errors import ConfigError

    with pytest.raises(ConfigError, match="fewer tokens"):
        build(trtllm_run(tmp_path, "medusa", stand_ins, speculation={"max_draft_len": 9}), tmp_path)


def test_eagle3_heads_are_refused_by_name(tmp_path, stand_ins):
    draft = tiny.save_draft(tmp_path / "draft", tiny.eagle3_shapes(), tensors=tiny.vocabulary_maps())
    assert draft.exists()
    with pytest.raises((CapabilityError, CheckpointError), match=r"eagle3|EAGLE-3"):
        build(trtllm_run(tmp_path, "eagle", stand_ins), tmp_path)


def test_an_engine_for_tensorrt_is_not_loaded_into_this_process(tmp_path, stand_ins):
    from trt_spec.runtime.loading import load_engine

    engine_dir = build(trtllm_run(tmp_path, "none", stand_ins), tmp_path).engine_dir
    with pytest.raises(CapabilityError, match="not in this process") as caught:
        load_engine(engine_dir)
    assert "--url" in caught.value.remedy
