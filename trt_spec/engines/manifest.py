"""The manifest of an engine: what went in, what came out, what was checked. Written last, read first.

Two builds are the same when their digest is: SHA-256 over the resolved config and the SHA-256 of every input file.
Hashing reads every byte once; where a manifest already holds a file's digest together with its size and modification
time, and neither has changed, the recorded digest is taken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trt_spec.checkpoints.checkpoint_dir import file_digest
from trt_spec.checkpoints.hf_config import write_json
from trt_spec.config.schema import RunConfig
from trt_spec.errors import CheckpointError

FORMAT = 1  # of this file and of the directory around it; a change makes every engine be rebuilt
FILE_NAME = "manifest.json"


@dataclass(frozen=True)
class FileRecord:
    """One file: SHA-256 in hex, size in bytes, modification time in nanoseconds when it was hashed."""

    sha256: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class CheckpointRecord:
    """One input checkpoint: where it was, its files, and what its tensors add up to."""

    path: str
    role: str
    method: str
    family: str | None
    num_tensors: int
    num_parameters: int
    dtypes: dict[str, int]
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class Check:
    """One thing that was verified: its name, the result in words, and the numbers behind it."""

    check: str
    result: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """What a server's configuration has to agree with: lengths in tokens, sizes as counts.

    Those with a default are of TensorRT-LLM's engines, those that begin with `engine_` as the built engine has them.
    """

    method: str
    acceptance: str
    max_draft_len: int
    max_batch_size: int
    max_seq_len: int
    dtype: str
    vocab_size: int | None
    tensorrt_llm_version: str | None = None
    drafter_placement: str | None = None
    max_total_draft_tokens: int | None = None
    max_input_len: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    engine_max_seq_len: int | None = None
    engine_max_num_tokens: int | None = None
    engine_max_draft_len: int | None = None
    speculative_decoding_mode: int | None = None

    @classmethod
    def of(cls, config: RunConfig, vocab_size: int | None, **of_the_target: Any) -> Limits:
        """Those of a run, and those that its build target adds."""
        spec, build = config.speculation, config.build
        asked = (spec.method, spec.acceptance, spec.max_draft_len, build.max_batch_size, build.max_seq_len)
        return cls(*asked, config.target.dtype, vocab_size, **of_the_target)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without what only other build targets have."""
        return {key: value for key, value in asdict(self).items() if value is not None or key == "vocab_size"}


@dataclass(frozen=True)
class Manifest:
    """Everything recorded of one engine.

    Attributes:
        digest: identity of the build, see the module's docstring.
        engine: what a server's configuration has to agree with.
        config: the resolved run config.
        inputs: checkpoints by role, `target` and maybe `draft`.
        outputs: every other file of the engine directory, by relative path.
        commands: from this config to a served model.
        git: commit of the checkout that built it, and whether it was changed; None outside of one.
        versions: of the packages that took part, and of this one.
        machine: where it was built.
        verified: what was checked, with results.
        not_verified: what was not, in words.
    """

    run: str
    build_target: str
    created: str
    digest: str
    engine: Limits
    config: dict[str, Any]
    inputs: dict[str, CheckpointRecord]
    outputs: dict[str, FileRecord]
    commands: tuple[str, ...]
    git: dict[str, Any] | None
    versions: dict[str, Any]
    machine: dict[str, Any]
    verified: tuple[Check, ...]
    not_verified: tuple[str, ...]
    format: int = FORMAT

    def as_dict(self) -> dict[str, Any]:
        """The manifest for JSON."""
        return {**asdict(self), "engine": self.engine.as_dict()}


def write(engine_dir: Path, manifest: Manifest) -> None:
    """Writes manifest.json, indented, keys in the order of the class."""
    write_json(engine_dir / FILE_NAME, manifest.as_dict())


def read(engine_dir: Path) -> Manifest:
    """The manifest of a built engine.

    Raises:
        CheckpointError: there is no engine, or its manifest is damaged or of another format.
    """
    path = Path(engine_dir) / FILE_NAME

    def refusal(what: str, where: Path = path, **fields: Any) -> CheckpointError:
        remedy = "build the engine: trt-spec build <run> (or make engine MODEL=... SPEC=...)"
        return CheckpointError(what, where=str(where), remedy=remedy, **fields)

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise refusal("no engine here", Path(engine_dir), expected=FILE_NAME) from None
    except (OSError, ValueError) as error:
        raise refusal("the engine's manifest cannot be read", got=str(error)) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        got = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise refusal("the engine's manifest has another format", got=got, expected=FORMAT)
    try:
        return TypeAdapter(Manifest).validate_python(data)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise refusal("the engine's manifest is damaged", got="; ".join(wrong)) from None


def digest_files(
    directory: Path, names: Iterable[str], known: Mapping[str, FileRecord] | None = None
) -> dict[str, FileRecord]:
    """Records of `names` below `directory`; a `known` one whose size and time still hold is returned as it is.

    Raises:
        CheckpointError: a file is missing or unreadable.
    """
    return {name: _digest_file(Path(directory) / name, (known or {}).get(name)) for name in sorted(names)}


def _digest_file(path: Path, known: FileRecord | None) -> FileRecord:
    try:
        stat = path.stat()
        if known is not None and (known.size, known.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
            return known
        digest = file_digest(path)
    except OSError as error:
        raise CheckpointError("a file cannot be read", where=str(path), got=error.strerror) from None
    return FileRecord(digest, stat.st_size, stat.st_mtime_ns)


def build_digest(config: Mapping[str, Any], inputs: Mapping[str, Mapping[str, FileRecord]]) -> str:
    """The identity of a build: of its resolved, JSON-ready config and its file records by role."""
    content = {role: {name: record.sha256 for name, record in files.items()} for role, files in inputs.items()}
    canonical = json.dumps({"format": FORMAT, "config": config, "inputs": content}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def is_whole(engine_dir: Path, manifest: Manifest) -> bool:
    """Whether every recorded output is still there, unchanged (by size and time, else by digest)."""
    try:
        found = digest_files(engine_dir, manifest.outputs, manifest.outputs)
    except CheckpointError:
        return False
    return all(found[name].sha256 == record.sha256 for name, record in manifest.outputs.items())
