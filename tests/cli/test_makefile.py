"""What make would run, and the scripts that it uses to set itself up."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def commands(*arguments):
    """The recipe lines of a target whose environment is already made."""
    shown = subprocess.run(
        ["make", "-n", "-o", ".venv/.setup-done", "-C", ROOT, "--no-print-directory", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.splitlines()


def test_engine_is_build_then_emit():
    flags = "--model 'smollm2-135m' --method 'draft_model' --draft 'a b' --build-target 'torch' -v"
    lines = commands("engine", "MODEL=smollm2-135m", "SPEC=draft_model", "DRAFT=a b", "TARGET=torch", "ARGS=-v")
    assert [line.strip() for line in lines] == [f".venv/bin/trt-spec {name} {flags}" for name in ("build", "emit")]


def test_serve_builds_what_it_serves():
    lines = [line.split()[:2] for line in commands("serve")]
    assert lines == [[".venv/bin/trt-spec", name] for name in ("build", "emit", "serve")]


def test_the_default_run_of_make_engine_is_in_configs():
    [line, _] = commands("engine")
    model, method = (line.split(f"--{flag} '")[1].split("'")[0] for flag in ("model", "method"))
    assert (ROOT / "configs" / f"{model}-{method}.yaml").is_file()


def test_clean_keeps_what_it_says(tmp_path):
    for name in (
        "engines/run/x",
        "engines/README.md",
        "triton_repo/run.log",
        "checkpoints/c/x",
        "trt_spec/a",
        "tests/a",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    subprocess.run(["make", "-C", tmp_path, "-f", ROOT / "Makefile", "clean"], check=True, capture_output=True)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["checkpoints/c/x", "engines/README.md", "tests/a", "trt_spec/a"]


def find_python(*candidates):
    return subprocess.run([ROOT / "scripts" / "find-python", *candidates], capture_output=True, text=True, check=False)


def test_find_python_takes_the_first_that_works():
    assert find_python("no-such-python", sys.executable).stdout.strip() == sys.executable


def test_find_python_says_what_to_install():
    found = find_python("no-such-python", "false")
    assert found.returncode == 3
    assert "apt-get install python3.11" in found.stderr
    assert "PYTHON=" in found.stderr


def test_pip_install_fails_with_pips_own_words(tmp_path):
    command = [ROOT / "scripts" / "pip-install", sys.executable, tmp_path / "log", "--no-index", "no-such-package-here"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "no-such-package-here" in done.stderr
