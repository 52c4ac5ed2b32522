"""Stub processes as /proc shows them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from tests.waiting import WAIT_S, until
from trt_spec.triton.server import processes
from trt_spec.triton.server.installation import STUB
from trt_spec.triton.server.processes import orphaned_stubs, remove_stubs, stubs_of
from trt_spec.triton.server.scratch import PREFIX

REGION = "triton_python_backend_shm_region_trt_spec_test"


@pytest.fixture
def stub_process(tmp_path):
    """A process that looks like a stub: its name, its model, its region."""
    (tmp_path / STUB).symlink_to("/bin/sh")
    script = tmp_path / "my_model" / "1" / "model.py"
    script.parent.mkdir(parents=True)
    script.write_text("sleep 60 & wait")
    process = subprocess.Popen([tmp_path / STUB, script, REGION], stdin=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


def children_named(name):
    until(lambda: any(stub.region == name for stub in stubs_of(os.getpid())))
    return [stub for stub in stubs_of(os.getpid()) if stub.region == name]


def test_stubs_are_found_with_their_region(stub_process):
    (stub,) = children_named(REGION)
    assert stub.pid == stub_process.pid
    assert (stub.is_alive, stub.model) == (True, "my_model")


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


def test_a_dead_process_and_a_recycled_id_are_not_alive(stub_process):
    (stub,) = children_named(REGION)
    assert not replace(stub, started=stub.started + 1).is_alive
    stub_process.kill()
    until(lambda: not stub.is_alive)  # it stays a zombie until somebody waits for it
    stub_process.wait()
    assert not stub.is_alive


def test_stubs_left_over_are_ended_and_their_memory_removed(stub_process, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.1)
    (tmp_path / REGION).write_bytes(b"x")
    remove_stubs(children_named(REGION))
    assert not (tmp_path / REGION).exists()
    assert stub_process.wait(WAIT_S) != 0


def test_removing_twice_is_harmless(stub_process, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "SHARED_MEMORY", tmp_path)
    stubs = children_named(REGION)
    stub_process.kill()
    stub_process.wait()
    remove_stubs(stubs)
    remove_stubs([])
