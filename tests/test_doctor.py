"""What `trt-spec doctor` says of TensorRT-LLM: by what is installed, on PATH and in the environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import pytest

from tests.engines.trtllm_stand_ins import StandIns
from trt_spec import doctor
from trt_spec.engines.tensorrt import tools


def examined() -> dict:
    """As `doctor --json` prints it."""
    return json.loads(json.dumps(asdict(doctor.examine())))


def abilities() -> dict[str, dict]:
    return {ability["name"]: ability for ability in examined()["abilities"]}


@pytest.fixture
def installed(monkeypatch):
    def install(version: str | None) -> None:
        monkeypatch.setattr(tools, "installed_version", lambda: version)

    return install


def test_without_tensorrt_llm_the_container_is_named(installed):
    installed(None)
    found = abilities()
    assert not found["build for tensorrt"]["is_possible"]
    assert "trtllm-build is not on PATH" in found["build for tensorrt"]["reason"]
    assert "26.07-trtllm-python-py3" in found["build for tensorrt"]["remedy"]
    assert found["build for llmapi"]["is_possible"], "it writes arguments only"
    assert "26.07-trtllm-python-py3" in found["build for llmapi"]["reason"]


def test_with_the_tools_engines_can_be_built(installed, tmp_path, monkeypatch):
    stand_ins = StandIns(tmp_path)
    monkeypatch.setenv("PATH", f"{stand_ins.bin}:{os.environ['PATH']}")
    monkeypatch.setattr(tools, "EXAMPLES_DIRS", (str(stand_ins.examples),))
    installed("1.2.1")
    found = abilities()["build for tensorrt"]
    assert found["is_possible"]
    assert found["reason"] == "TensorRT-LLM 1.2.1: none, draft_model, medusa, eagle, lookahead, redrafter"


def test_a_version_without_engines_says_which_was_the_last(installed):
    installed("1.4.0rc4")
    found = abilities()
    assert "1.3.0rc20 was the last" in found["build for tensorrt"]["reason"]
    assert found["build for llmapi"]["is_possible"]
    offers = examined()["tensorrt_llm"]["offers"]
    assert {offer["build_target"] for offer in offers} == {"llmapi"}


def test_a_version_before_llmapi_says_so(installed):
    installed("0.21.0")
    assert not abilities()["build for llmapi"]["is_possible"]


def test_forced_acceptance_is_shown(installed, monkeypatch):
    installed(None)
    monkeypatch.setenv("TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS", "3")
    assert "unset" in abilities()["generate what the target would"]["remedy"]
