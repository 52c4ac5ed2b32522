"""The README is true: its tables are generated, its names exist, and its examples run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.docs import update
from tests.engines.runs import tiny_run
from trt_spec.cli.app import EXIT_CODES, cli
from trt_spec.engines.builder import build
from trt_spec.triton.repository import emit
from trt_spec.triton.server.installation import free_ports
from trt_spec.triton.server.server import TritonServer

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_generated_tables_are_up_to_date():
    assert update.update(README) == README, "run: make docs"


def test_every_command_is_in_the_table_and_no_other():
    assert set(re.findall(r"^\| `trt-spec ([a-z]+)", README, re.MULTILINE)) == set(cli.commands)


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    for document in (README, (ROOT / "CONTRIBUTING.md").read_text()):
        named = re.findall(r"(?:`|^    )make ([a-z]+)", document, re.MULTILINE)
        assert named
        assert set(named) <= targets


def test_exit_codes_are_those_of_the_command_line():
    assert re.findall(r"^\| (\d+) \|", README, re.MULTILINE) == re.findall(r"\b(\d+) \w", EXIT_CODES)


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_make_without_a_target_lists_them_all():
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    shown = subprocess.run(["make", "-C", ROOT, "--no-print-directory"], capture_output=True, text=True, check=True)
    for target in re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE):
        assert re.search(rf"^  {target} ", shown.stdout, re.MULTILINE)


@pytest.mark.server
def test_the_examples_run_as_they_stand(tmp_path):
    config = tiny_run(tmp_path)
    engine_dir = build(config, engines_dir=tmp_path / "engines").engine_dir
    http_port, grpc_port, metrics_port = free_ports(3)
    repository = emit(config, engine_dir, tmp_path / "triton_repo")
    [curl], [python] = blocks("bash"), blocks("python")
    with TritonServer(repository, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port):
        script = python.replace("127.0.0.1:8001", f"127.0.0.1:{grpc_port}")
        answer = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed; the Python example ran")
        calls = curl.replace("127.0.0.1:8000", f"127.0.0.1:{http_port}")
        told = subprocess.run(calls, shell=True, capture_output=True, timeout=60, check=True).stdout
    assert answer.stdout
    assert told.count(b'"text_output"') > 2
    assert b"error" not in told


def test_it_is_for_a_reader():
    assert len(README.encode()) <= 14_000, "tables and references go to docs/"
