"""The Triton server that the PyPI wheel nvidia-pytriton carries: where it is, and whether it can run here.

The server's Python backend starts a stub process per model. The stub takes the first `python3` on PATH for its
packages and whatever libpython the dynamic linker finds for its interpreter. When it finds none the server hangs for
ever instead of failing, and when it finds another build the two halves of Python do not fit; both are settled first.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trt_spec.errors import MachineError

STUB = "triton_python_backend_stub"
MIN_SHM_BYTES = 64 << 20  # each model takes 1 MiB at start and grows by what its largest tensors need
_INSTALL = "make setup, or pip install nvidia-pytriton==0.7.0 (Linux x86-64, Python 3.10 to 3.12)"


@dataclass(frozen=True)
class Installation:
    """A Triton server that was found.

    Attributes:
        root: the directory `tritonserver` of the wheel.
        libraries: the wheel's own shared libraries.
        python_bin: directory whose `python3` is this interpreter.
        libpython: directory of this interpreter's shared library; None leaves it to the system's linker.
    """

    root: Path
    libraries: Path
    python_bin: Path
    libpython: Path | None

    @property
    def binary(self) -> Path:
        return self.root / "bin" / "tritonserver"

    @property
    def caches(self) -> Path:
        return self.root / "caches"

    @property
    def stub(self) -> Path:
        return self.root / "python_backend_stubs" / _python_version() / STUB

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Environment variables for the server: this Python first, its libpython and the wheel's libraries found."""
        env = dict(os.environ if base is None else base)
        libraries = [str(path) for path in (self.libpython, self.libraries) if path is not None]
        env["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, *filter(None, [env.get("LD_LIBRARY_PATH")])])
        env["PATH"] = os.pathsep.join([str(self.python_bin), env.get("PATH", os.defpath)])
        return env

    def assemble_backends(self, directory: Path) -> Path:
        """Makes a backend directory, of links, with the stub of this Python where the server looks for it.

        So site-packages stays as pip left it, and any number of servers may start at once.
        """
        python = directory / "backends" / "python"
        python.mkdir(parents=True)
        for source in (self.root / "backends" / "python").iterdir():
            if source.is_file():
                (python / source.name).symlink_to(source)
        stub = python / STUB
        stub.unlink(missing_ok=True)  # one that somebody copied into the wheel may be for another Python
        stub.symlink_to(self.stub)
        return python.parent


def _python_version() -> str:
    return "{}.{}".format(*sys.version_info[:2])


def find_installation() -> Installation:
    """Finds the server and checks that it can start here; raises MachineError with what is missing and what to do."""
    installation = locate()
    check_python(installation)
    check_libraries(installation)
    check_shared_memory()
    return installation


def locate() -> Installation:
    """Finds the server without checking more than that its files are there; raises MachineError where they are not."""
    spec = importlib.util.find_spec("pytriton")  # finds it without importing it
    if spec is None or not spec.submodule_search_locations:
        raise MachineError("no tritonserver here", expected="the package nvidia-pytriton", remedy=_INSTALL)
    package = Path(next(iter(spec.submodule_search_locations)))
    installation = Installation(
        root=package / "tritonserver",
        libraries=package.parent / "nvidia_pytriton.libs",
        python_bin=Path(sys.executable).parent,
        libpython=_libpython_directory(),
    )
    if not os.access(installation.binary, os.X_OK):
        raise MachineError(
            "nvidia-pytriton is installed and holds no tritonserver", where=str(installation.binary), remedy=_INSTALL
        )
    if not installation.stub.is_file():
        stubs = installation.root / "python_backend_stubs"
        there = sorted(path.name for path in stubs.iterdir()) if stubs.is_dir() else []
        raise MachineError(
            "the Triton server has no stub for this Python",
            got=f"Python {_python_version()}",
            expected="one of " + ", ".join(there),
            remedy="use Python 3.10, 3.11 or 3.12",
        )
    return installation


def _libpython_directory() -> Path | None:
    """Where this interpreter's shared library is; None where only the system's linker may know."""
    name = f"libpython{_python_version()}.so.1.0"
    candidates = [sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix) / "lib", Path(sys.base_prefix) / "lib64"]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        candidates.append(Path("/usr/lib") / multiarch)
    return next((Path(path) for path in candidates if path and (Path(path) / name).is_file()), None)


def check_python(installation: Installation) -> None:
    """Raises MachineError where the first `python3` is not this one, whose packages the stub takes; or NumPy is 2."""
    python3 = installation.python_bin / "python3"
    code = "import sys; print(sys.prefix, *sys.version_info[:2])"
    try:
        found = subprocess.run(
            [python3, "-c", code], capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        found = str(error)
    wanted = "{} {} {}".format(sys.prefix, *sys.version_info[:2])
    if found != wanted:
        raise MachineError(
            "Triton's Python backend would start another Python",
            where=str(python3),
            got=found,
            expected=wanted,
            remedy="run trt-spec from a virtual environment, whose bin holds python3",
        )
    import numpy

    if int(numpy.__version__.split(".")[0]) >= 2:
        raise MachineError(
            "Triton's Python stub reads arrays wrongly with NumPy 2",
            got=f"numpy {numpy.__version__}",
            expected="numpy 1.26",
            remedy="pip install 'numpy<2'",
        )


def check_libraries(installation: Installation) -> None:
    """Raises MachineError with the libraries that the dynamic linker would not find for the server and the stub."""
    ldd = shutil.which("ldd")
    if ldd is None:
        if installation.libpython is None:
            raise _no_libpython()
        return
    for program in (
        installation.stub,
        installation.root / "backends" / "python" / "libtriton_python.so",
        installation.binary,
    ):
        run = subprocess.run([ldd, program], capture_output=True, text=True, env=installation.environment(), timeout=60)
        missing = [line.split("=>")[0].strip() for line in run.stdout.splitlines() if "not found" in line]
        if any(name.startswith("libpython") for name in missing):
            raise _no_libpython()
        if missing or run.returncode != 0:
            raise MachineError(
                f"{program.name} cannot be started here",
                where=str(program),
                got="missing " + ", ".join(missing) if missing else run.stderr.strip(),
                remedy="install these libraries; the server is built for Linux x86-64 with glibc 2.35 or later",
            )


def _no_libpython() -> MachineError:
    version = _python_version()
    return MachineError(
        f"libpython{version}.so.1.0 is missing, and the Triton server would hang without it",
        where=str(sysconfig.get_config_var("LIBDIR")),
        remedy=f"install it (Debian: apt install libpython{version}; pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared)",
    )


def check_shared_memory(directory: Path = Path("/dev/shm"), min_bytes: int = MIN_SHM_BYTES) -> None:
    """Raises MachineError where there is too little shared memory for the tensors that server and stubs exchange."""
    try:
        stat = os.statvfs(directory)
    except OSError as error:
        raise MachineError(
            "no shared memory here", where=str(directory), got=error.strerror, remedy="mount a tmpfs there"
        ) from None
    free = stat.f_bavail * stat.f_frsize
    if free < min_bytes:
        raise MachineError(
            "too little shared memory for the Triton server",
            where=str(directory),
            got=f"{free >> 20} MiB free",
            expected=f"at least {min_bytes >> 20} MiB",
            remedy="start the container with --shm-size=256m or more, or remove what is stale there",
        )


_BIND_PROBLEMS = {
    errno.EADDRINUSE: ("is in use", "stop what listens there, or choose another port"),
    errno.EACCES: ("is not allowed", "choose a port above 1023"),
    errno.EADDRNOTAVAIL: ("cannot be used", "choose an address of this machine"),
}


def bind(port: int, what: str, host: str = "127.0.0.1") -> socket.socket:
    """A socket on a port, which the config key or option `what` sets; raises MachineError where it cannot be had."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that only linger are no obstacle
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        option = what if what.startswith("--") else f"--set {what}=<port>"
        problem, remedy = _BIND_PROBLEMS.get(error.errno, ("cannot be used", "choose another address or port"))
        raise MachineError(
            f"port {port} {problem}",
            where=what,
            got=f"{host}:{port}: {error.strerror}",
            remedy=f"{remedy}; {option} chooses the port",
        ) from None
    return bound


def check_port(port: int, what: str) -> None:
    """Raises as `bind` where no server can listen on a port."""
    bind(port, what).close()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports on which nothing listens right now, all different."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
