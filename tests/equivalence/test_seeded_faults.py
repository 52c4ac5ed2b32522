"""A wrong engine cannot pass: faults are seeded into copies of the package, and `trt-spec verify` has to find them.

Each run is a process of its own. Certificates are at τ = 0.05, α = 1e-4; a fault may at most be inconclusive, and
those here are all `different`. `pytest -m nightly tests/equivalence/test_seeded_faults.py -s` prints which layer
found each, after how many tokens. With TRT_SPEC_FAULTS_OF=<run> the faults are seeded under that run's built engine
instead of a tiny one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.runs import tiny_run, write_run
from tests.equivalence.faults import FAULTS, PACKAGE, Fault
from trt_spec.config import loader
from trt_spec.triton.server.installation import free_ports
from trt_spec.triton.server.server import TritonServer

pytestmark = pytest.mark.nightly
SAMPLED = ("--temperature", "1.0", "--top-p", "0.9", "--set", "equivalence.tau=0.05", "--fresh", "--json")
SERVER_SAMPLED = ("--temperature", "0.7", *SAMPLED[2:])
OF = os.environ.get("TRT_SPEC_FAULTS_OF")


def trt_spec(*arguments: object, path: Path | None = None, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trt_spec", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment(path), capture_output=True, text=True, timeout=1200)


def environment(path: Path | None) -> dict[str, str]:
    return {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(working directory, run) of a built engine."""
    if OF:
        return Path.cwd(), OF
    root = tmp_path_factory.mktemp("run")
    config = tiny_run(root, "draft_model")
    path = write_run(root, config)
    done = trt_spec("build", path, cwd=root)
    assert done.returncode == 0, done.stderr
    return root, str(path)


def judged(fault: Fault | None, done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode in (0, 1, 4), done.stderr
    found = json.loads(done.stdout)
    tokens = {name: arm["num_tokens"] for name, arm in found.get("arms", {}).items()}
    num_tokens = tokens.get("speculation", 0)
    layer = found.get("layer", "") + (" on the plain arm" if found.get("arm") == "plain" else "")
    name = f"{fault.kind}: {fault.name}" if fault else "control: no fault"
    sys.stdout.write(f"\n{name:88} {found['verdict']:12} {layer if fault else '':28} {num_tokens:6}\n")
    return found


def test_the_control_is_certified(run, tmp_path):
    """The copy without a fault."""
    cwd, name = run
    shutil.copytree(PACKAGE, tmp_path / "trt_spec")
    done = trt_spec("verify", name, *SAMPLED, "--report", tmp_path / "report", path=tmp_path, cwd=cwd)
    assert judged(None, done)["verdict"] == "equivalent"


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.is_served], ids=lambda fault: fault.name)
def test_a_fault_of_the_engine_is_found(run, tmp_path, fault):
    cwd, name = run
    done = trt_spec("verify", name, *SAMPLED, "--report", tmp_path / "report", path=fault.seed(tmp_path), cwd=cwd)
    assert judged(fault, done)["verdict"] == "different"


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.is_served], ids=lambda fault: fault.name)
def test_a_fault_of_the_server_is_found(run, tmp_path, fault):
    """A real tritonserver, whose models import the copy; Triton's Python stub does not look at PYTHONPATH."""
    cwd, name = run
    assert trt_spec("emit", name, cwd=cwd).returncode == 0
    config = loader.load(name)
    for model in (cwd / "triton_repo" / config.name).glob("*/1/model.py"):
        text = model.read_text(encoding="utf-8")
        path = f"import sys\n\nsys.path.insert(0, {str(fault.seed(tmp_path / model.parent.parent.name))!r})\n"
        model.write_text(text.replace("from trt_spec", path + "from trt_spec", 1), encoding="utf-8")
    http_port, grpc_port, metrics_port = free_ports(3)
    repository = cwd / "triton_repo" / config.name
    server = TritonServer(repository, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port)
    try:
        server.start()
        arguments = ("--url", server.http_url, "--report", tmp_path / "report")
        done = trt_spec("verify", name, *SERVER_SAMPLED, *arguments, cwd=cwd)
    finally:
        server.stop()
        shutil.rmtree(repository)
    assert judged(fault, done)["verdict"] == "different"
