"""Stub processes as /proc shows them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.waiting import WAIT_S, until
from trt_spec.triton.server import processes
from trt_spec.triton.server.installation import STUB
from trt_spec.triton.server.processes import Process, Stub, is_alive, orphaned_stubs, remove_stubs, stubs_of
from trt_spec.triton.server.scratch import PREFIX

REGION = "triton_python_backend_shm_region_trt_spec_test"


@pytest.fixture
def stub_process(tmp_path):
    """A process that looks like a stub: its name, its model, its region."""
    (tmp_path / STUB).symlink_to("/bin/sh")
    process = subprocess.Popen(
        [tmp_path / STUB, "-c", "sleep 60 & wait", "/repo/my_model/1/model.py", REGION], stdin=subprocess.DEVNULL
    )
    yield process
    process.kill()
    process.wait()


def children_named(name):
    until(lambda: any(stub.region == name for stub in stubs_of(os.getpid())))
    return [stub for stub in stubs_of(os.getpid()) if stub.region == name]


def test_stubs_are_found_with_their_region(stub_process):
    (stub,) = children_named(REGION)
    assert stub.process.pid == stub_process.pid
    assert is_alive(stub.process)


@pytest.mark.parametrize("parent", ["tritonserver", "init"])
def test_a_stub_is_orphaned_where_its_parent_is_no_server(tmp_path, parent):
    scratch = tmp_path / f"{PREFIX}test"
    scratch.mkdir()
    for name in (STUB, parent):
        (scratch / name).symlink_to("/bin/sh")
    script = f'"{scratch / STUB}" -c "read line" /repo/my_model/1/model.py {REGION}; true'
    with subprocess.Popen([scratch / parent, "-c", script], stdin=subprocess.PIPE) as process:
        until(lambda: stubs_of(process.pid))
        found = stubs_of(process.pid)
        assert ([stub for stub in orphaned_stubs() if stub.region == REGION] == found) == (parent == "init")
        process.stdin.close()  # ends the stub, and then its parent
    assert found


def test_the_model_comes_from_the_path():
    words = ["/b/" + STUB, "/repo/my_model/1/model.py", REGION]
    assert processes._model_name(words) == "my_model"
    assert processes._model_name(words[:1]) == "?"


def test_a_dead_process_and_a_recycled_id_are_not_alive(stub_process):
    (stub,) = children_named(REGION)
    assert not is_alive(Process(stub.process.pid, stub.process.started + 1))
    stub_process.kill()
    until(lambda: not is_alive(stub.process))  # it stays a zombie until somebody waits for it
    stub_process.wait()
    assert not is_alive(stub.process)


def test_stubs_left_over_are_ended_and_their_memory_removed(stub_process, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.1)
    (tmp_path / REGION).write_bytes(b"x")
    remove_stubs(children_named(REGION))
    assert not (tmp_path / REGION).exists()
    assert stub_process.wait(WAIT_S) != 0


def test_removing_twice_is_harmless(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "SHARED_MEMORY", tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    stub = Stub(processes._process(gone.pid), "m", REGION)
    gone.wait()
    remove_stubs([stub])
    remove_stubs([])
