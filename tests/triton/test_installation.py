"""Preflight: what is missing is said before a server starts, with the way out."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from trt_spec.errors import MachineError
from trt_spec.triton.server import installation as module
from trt_spec.triton.server.installation import (
    Installation,
    check_libraries,
    check_port,
    check_python,
    check_shared_memory,
    find_installation,
    free_ports,
    locate,
)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A site-packages with the files of nvidia-pytriton that matter, as empty ones."""
    root = tmp_path / "pytriton" / "tritonserver"
    version = "{}.{}".format(*sys.version_info[:2])
    for name in ("bin/tritonserver", f"python_backend_stubs/{version}/{module.STUB}", "backends/python/lib.so"):
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_text("")
        path.chmod(0o755)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "pytriton")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    return root


def test_a_missing_wheel_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match="no tritonserver here") as caught:
        find_installation()
    assert "pip install" in caught.value.remedy
    assert caught.value.exit_code == 3


def test_a_wheel_without_the_binary(wheel):
    (wheel / "bin" / "tritonserver").unlink()
    with pytest.raises(MachineError, match="holds no tritonserver"):
        locate()


def test_a_python_without_a_stub_names_those_that_have_one(wheel):
    (stub,) = wheel.glob("python_backend_stubs/*")
    stub.rename(stub.with_name("3.7"))
    with pytest.raises(MachineError, match="no stub for this Python") as caught:
        locate()
    assert "3.7" in caught.value.expected


def test_backends_are_links_with_the_stub_of_this_python(wheel, tmp_path):
    (wheel / "backends" / "python" / module.STUB).write_text("of another Python")
    found = locate()
    for name in ("first", "second"):
        backends = found.assemble_backends(tmp_path / name)
        assert {path.name for path in (backends / "python").iterdir()} == {"lib.so", module.STUB}
        assert (backends / "python" / module.STUB).resolve() == found.stub.resolve()


def test_the_environment_puts_this_python_first():
    found = Installation(Path("/root"), Path("/libs"), Path("/venv/bin"), Path("/python/lib"))
    env = found.environment({"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/cuda", "HOME": "/h"})
    assert env == {"PATH": "/venv/bin:/usr/bin", "LD_LIBRARY_PATH": "/python/lib:/libs:/cuda", "HOME": "/h"}
    assert replace(found, libpython=None).environment({})["LD_LIBRARY_PATH"] == "/libs"


def test_another_python3_first_is_refused(tmp_path):
    python3 = tmp_path / "python3"
    python3.write_text("#!/bin/sh\necho /usr 3 8\n")
    python3.chmod(0o755)
    found = Installation(tmp_path, tmp_path, tmp_path, None)
    with pytest.raises(MachineError, match="another Python") as caught:
        check_python(found)
    assert caught.value.got == "/usr 3 8"
    python3.unlink()
    with pytest.raises(MachineError, match="another Python"):
        check_python(found)


def test_numpy_2_is_refused(monkeypatch):
    monkeypatch.setattr(numpy, "__version__", "2.1.0")
    with pytest.raises(MachineError, match="NumPy 2"):
        check_python(Installation(Path("/"), Path("/"), Path(sys.executable).parent, None))


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("\tlibpython3.11.so.1.0 => not found\n\tlibc.so.6 => /lib/libc.so.6", "would hang without it"),
        ("\tlibb64.so.0d => not found", "cannot be started here"),
    ],
)
def test_missing_libraries_are_named(wheel, monkeypatch, output, what):
    monkeypatch.setattr(
        subprocess, "run", lambda *args, **kwargs: SimpleNamespace(stdout=output, stderr="", returncode=0)
    )
    monkeypatch.setattr(module.shutil, "which", lambda name: "/usr/bin/ldd")
    with pytest.raises(MachineError, match=what) as caught:
        check_libraries(locate())
    assert "lib" in str(caught.value)


def test_without_ldd_a_known_libpython_is_enough(wheel, monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    check_libraries(replace(locate(), libpython=Path("/python/lib")))
    with pytest.raises(MachineError, match="would hang"):
        check_libraries(replace(locate(), libpython=None))


def test_shared_memory(tmp_path):
    check_shared_memory(tmp_path, min_bytes=1)
    with pytest.raises(MachineError, match="too little shared memory") as caught:
        check_shared_memory(tmp_path, min_bytes=1 << 62)
    assert "--shm-size" in caught.value.remedy
    with pytest.raises(MachineError, match="no shared memory"):
        check_shared_memory(tmp_path / "gone")


def test_a_port_in_use_is_named_with_its_key():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(MachineError, match=f"port {port} is in use") as caught:
            check_port(port, "serve.http_port")
    assert "--set serve.http_port=" in caught.value.remedy
    check_port(port, "serve.http_port")


def test_free_ports_differ():
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        check_port(port, "x")


def test_the_wheel_of_this_environment_is_usable(installation):
    assert os.access(installation.binary, os.X_OK)
    assert installation.stub.is_file()


def test_no_remedy_installs_this_project_from_an_index_that_does_not_have_it():
    """`pip install trt-spec` would take whatever somebody else has published under the name."""
    package = Path(module.__file__).parents[1]
    assert [
        path for path in package.rglob("*.py") if re.search(r"pip install[^\n]*[ '\"]trt[-_]spec", path.read_text())
    ] == []
