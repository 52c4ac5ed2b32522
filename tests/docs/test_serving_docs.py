"""docs/serving.md is true: its examples run as they stand on a real server, and what it names exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.triton.conftest import built, installation, server
from trt_spec.config.explain import known_keys
from trt_spec.triton.compat import tensors as compat_tensors
from trt_spec.triton.contract import INPUT_BY_NAME, OUTPUT_BY_NAME, PREFIX

__all__ = ["built", "installation", "server"]  # fixtures

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
TEXT = PAGE.read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
CURLS = [call for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for call in block.strip().split("\n\n")]


def on(server, text):
    ports = {8000: server.http_port, 8001: server.grpc_port, 8002: server.metrics_port}
    return re.sub(r"127\.0\.0\.1:(800[012])", lambda match: f"127.0.0.1:{ports[int(match[1])]}", text)


@pytest.mark.server
@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_the_python_examples_run(server, number):
    done = subprocess.run(
        [sys.executable, "-c", on(server, PYTHON[number])], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.server
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("number", range(len(CURLS)))
def test_the_calls_over_http_are_answered(server, number):
    call = on(server, CURLS[number])
    told = subprocess.run(call, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout
    events = [json.loads(line.removeprefix("data: ")) for line in told.splitlines() if line]
    assert all("text_output" in event for event in events)
    assert (len(events) > 1) == ("generate_stream" in call)


def test_there_is_an_example_of_every_way_in():
    ways = ("tensorrt_llm/generate ", "tensorrt_llm/generate_stream", "ensemble/generate ", "ensemble/generate_stream")
    assert all(any(way in call for call in CURLS) for way in ways)
    code = "".join(PYTHON)
    assert all(call in code for call in ("client.infer(", "async_stream_infer(", "client.samples(", "client.stream("))


def test_names_exist():
    keys = {known.key for known in known_keys() if not known.is_section}
    assert set(re.findall(r"`((?:build|serve|speculation)\.\w+)`", TEXT)) <= keys
    known = {*INPUT_BY_NAME, *OUTPUT_BY_NAME, *compat_tensors.INPUT_BY_NAME, *compat_tensors.OUTPUT_DOCS}
    assert set(re.findall(rf"`({PREFIX}\w+)`", TEXT)) <= known
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert links
    assert all((PAGE.parent / link).exists() for link in links)
