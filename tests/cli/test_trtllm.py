"""`trt-spec convert` and `trt-spec deploy` from outside: results, exit codes, and what is left on the disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests import tiny
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.cli.app import main


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Runs a command line in this process and an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        return (caught.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def heads(tmp_path):
    return tiny.save_draft(tmp_path / "heads", tiny.medusa_shapes(prefix="medusa_head."))


def test_convert_says_what_it_did(call, heads, tmp_path):
    code, out, err = call("convert", heads, "--for", "tensorrt", "--out", "out", "--json")
    done = json.loads(out)
    assert (code, done["path"], done["method"], done["is_needed"]) == (0, "out", "medusa", True)
    assert done["tensorrt_llm_version"] == "1.2.1"
    assert done["facts"] == {"medusa_num_heads": 3, "medusa_num_layers": 1}
    assert "converting" in err
    assert set(CheckpointDir.open(tmp_path / "out").tensors) == set(tiny.medusa_shapes())
    code, out, _ = call("convert", heads, "--for", "tensorrt", "--out", "out")  # again, over the earlier one
    assert code == 0
    assert "medusa_head.0.0.linear.bias becomes 0.0.linear.bias" in out
    assert "for " in out
    assert "tensorrt, TensorRT-LLM 1.2.1" in out


def test_convert_without_need_names_the_checkpoint_itself(call, tmp_path):
    model = tiny.llama_checkpoint(tmp_path / "model")
    code, out, _ = call("convert", model, "--for", "llmapi", "--out", "out", "--json")
    assert (code, json.loads(out)["path"]) == (0, str(model))
    assert "Nothing to convert" in call("convert", model, "--for", "llmapi", "--out", "out")[1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--for", "llmapi", "--out", "out"], "does not draft with heads of method medusa"),
        (["--for", "torch", "--out", "out"], "'torch' is not one of"),
        (["--for", "tensorrt", "--tensorrt-llm-version", "1.4.0rc4", "--out", "out"], "not in TensorRT-LLM 1.4.0rc4"),
        (["--for", "tensorrt", "--tensorrt-llm-version", "new", "--out", "out"], "this is no version"),
        (["--for", "tensorrt", "--out", "heads"], "would replace what it is made from"),
        (["--for", "tensorrt"], "Missing option '--out'"),
    ],
)
def test_what_convert_refuses_is_exit_code_2(call, heads, tmp_path, arguments, says):
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, out, err = call("convert", heads, *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_full_disk_is_exit_code_3(call, heads, monkeypatch):
    from trt_spec.checkpoints.trtllm import normalise

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(normalise, "write_safetensors", full)
    code, _, err = call("convert", heads, "--for", "tensorrt", "--out", "out")
    assert code == 3
    assert "No space left on device" in err


def test_a_conversion_that_is_stopped_leaves_nothing(heads, tmp_path):
    """SIGTERM while it writes."""
    code = (
        "import sys, time; from trt_spec.checkpoints.trtllm import normalise\n"
        "def slow(*arguments):\n    print('writing', flush=True); time.sleep(60)\n"
        "normalise.write_safetensors = slow\n"
        f"normalise.convert({str(heads)!r}, {str(tmp_path / 'out')!r}, 'tensorrt', '1.2.1')\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout.readline() == b"writing\n"
    os.kill(child.pid, signal.SIGTERM)
    started = time.monotonic()
    child.wait(timeout=30)
    assert time.monotonic() - started < 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heads"]


def test_deploy_writes_its_files_without_an_engine(call, tmp_path):
    flags = ["--model", "m", "--method", "ngram", "--build-target", "llmapi"]
    code, out, _ = call("deploy", *flags, "--image", "registry.example/m:1", "--json")
    told = json.loads(out)
    folder = tmp_path / told["deploy_dir"]
    assert (code, told["image"], told["num_gpus"]) == (0, "registry.example/m:1", 1)
    assert told["files"] == sorted(path.name for path in folder.iterdir())
    assert 'image: "registry.example/m:1"' in (folder / "kubernetes.yaml").read_text()
    assert 'claimName: "trt-spec"' in (folder / "kubernetes.yaml").read_text()
    assert f"sh {told['deploy_dir']}/docker.sh" in call("deploy", *flags)[1]


def test_deploy_of_the_torch_target_is_refused(call, tmp_path):
    code, _, err = call("deploy", "--model", "m", "--method", "ngram")
    assert code == 2
    assert "trt-spec serve" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "method", "missing"), [("llmapi", "ngram", "TensorRT-LLM"), ("tensorrt", "lookahead", "backend")]
)
def test_serve_without_tensorrt_llm_names_the_container_before_anything_starts(call, tmp_path, target, method, missing):
    code, _, err = call("serve", "--model", "m", "--method", method, "--build-target", target)
    assert code == 3
    assert missing in err
    assert "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3" in err
    assert f"trt-spec deploy --model m --method {method} --build-target {target}" in err
    assert f"sh deploy/m-{method}-{target}/docker.sh" in err
    assert "starting" not in err
    assert list(tmp_path.iterdir()) == []
