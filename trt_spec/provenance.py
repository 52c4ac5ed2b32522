"""What a result came from: commit, package versions, hardware, digest of the config. Looks, imports nothing heavy."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trt_spec.config.schema import RunConfig

PACKAGES = (
    "trt-spec",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "tritonclient",
    "nvidia-pytriton",
    "tensorrt-llm",
    "tensorrt",
)
_SOURCES = (".py", ".cc", ".h", ".inl")
_TIMEOUT_S = 10


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver names it."""

    name: str
    memory: str
    driver: str


@dataclass(frozen=True)
class Hardware:
    """The machine.

    Attributes:
        num_cores: that this process may use.
    """

    system: str
    processor: str
    num_cores: int | None
    memory_gib: float | None
    gpus: list[Gpu]  # as JSON has it


@dataclass(frozen=True)
class Commit:
    """Where a checkout stands, and whether tracked files differ from it."""

    commit: str
    is_dirty: bool


@dataclass(frozen=True)
class Provenance:
    """What a result came from; `config_digest` is None where it is of no config."""

    git: Commit | None
    versions: dict[str, str]
    hardware: Hardware
    config_digest: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; without what is not there."""
        return {name: value for name, value in asdict(self).items() if name == "git" or value is not None}


def versions() -> dict[str, str]:
    """Version of Python and of every package of `PACKAGES` that is installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> Hardware:
    """This machine, without a CUDA context."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Hardware(platform.platform(), _processor(), cores, _memory_gib(), _gpus())


def git_commit(directory: Path | None = None) -> Commit | None:
    """Where this checkout stands; None outside of a checkout."""
    directory = directory or Path(__file__).resolve().parent.parent
    if not (directory / ".git").exists():
        return None  # installed from a wheel: a repository further up is somebody else's
    commit = _output(["git", "-C", str(directory), "rev-parse", "HEAD"])
    status = _output(["git", "-C", str(directory), "status", "--porcelain", "--untracked-files=no"])
    if commit is None or status is None:
        return None
    return Commit(commit.strip(), bool(status.strip()))


def source_digest(rooms: Iterable[str], directory: Path | None = None) -> str:
    """SHA-256 of all sources of these rooms of the package as they are on disk, committed or not."""
    directory = directory or Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(path for room in rooms for path in (directory / room).rglob("*") if path.suffix in _SOURCES):
        digest.update(f"{path.relative_to(directory)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def config_digest(config: RunConfig) -> str:
    """SHA-256 of the config's values; equal configs have equal digests, whatever their files look like."""
    canonical = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def collect(config: RunConfig | None = None) -> Provenance:
    """All of the above; the digest only where a config is given."""
    return Provenance(git_commit(), versions(), hardware(), None if config is None else config_digest(config))


def of_build() -> dict[str, Any]:
    """The fields `git`, `versions` and `machine` of a manifest."""
    found = collect().as_dict()
    return {"git": found["git"], "versions": found["versions"], "machine": found["hardware"]}


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _gpus() -> list[Gpu]:
    """From nvidia-smi rather than torch: the driver's word, and no CUDA context."""
    if shutil.which("nvidia-smi") is None:
        return []
    fields = ("name", "memory.total", "driver_version")
    text = _output(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"])
    rows = [line.split(", ") for line in (text or "").splitlines()]
    return [Gpu(*row) for row in rows if len(row) == len(fields)]


def _output(command: list[str]) -> str | None:
    """Standard output of a command; None where it is missing, fails or hangs."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
