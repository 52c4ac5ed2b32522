"""Checkpoints as a version of TensorRT-LLM reads them: `plan` says what changes, `convert` writes it, tensor by tensor.

Needs no TensorRT-LLM and no GPU. Nothing here was read by TensorRT-LLM itself: the layouts are those of its sources.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from trt_spec.atomic import atomic_directory, terminate_as_interrupt
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.detect import Opened
from trt_spec.checkpoints.hf_config import write_json
from trt_spec.checkpoints.inspection import Inspection, Problem
from trt_spec.checkpoints.method import refuse_problems
from trt_spec.checkpoints.streaming import write_index, write_safetensors
from trt_spec.checkpoints.tensor_files import INDEX_FILE
from trt_spec.checkpoints.trtllm import eagle, layouts
from trt_spec.checkpoints.trtllm.conversion import Conversion, changes
from trt_spec.checkpoints.trtllm.layouts import Layout
from trt_spec.config import versions
from trt_spec.errors import CapabilityError, CheckpointError, MachineError, UsageError

RECORD_FILE = "conversion.json"  # what was changed, and for whom
_TEXT_SUFFIXES = (".json", ".model", ".jinja", ".txt")  # config, tokenizer and chat template
_LICENCES = ("LICENSE", "NOTICE")
# Codes of problems that follow from quantised tensors: other types, scales beside them, packed shapes.
_OF_QUANTISATION = ("E-DTYPE", "E-MISSING", "E-UNEXPECTED", "E-SHAPE")

Advance = Callable[[float], None]


def plan(
    source: str | Path | Opened, build_target: str, version: str, target: str | Path | Opened | None = None
) -> Conversion:
    """What `version` reads in place of a checkpoint. Reads headers, config and vocabulary maps.

    Args:
        source: draft heads of any layout that `trt-spec inspect` knows, or a whole model.
        build_target: tensorrt or llmapi.
        version: of TensorRT-LLM.
        target: the checkpoint that the heads draft for; where given, the pair is checked.

    Raises:
        UsageError: the build target reads every layout itself (torch).
        ConfigError: `version` is none.
        CapabilityError: the version lacks the build target, or the build target the method.
        CheckpointError, PairError: problems of the checkpoint, or something in it that the version does not compute.
    """
    parsed = versions.parse(version)
    _refuse_version(build_target, parsed)
    opened, for_target = Opened.of(source), None if target is None else Opened.of(target)
    checkpoint, inspection = opened.checkpoint, opened.inspection_for(for_target)
    _refuse_unsound(inspection, for_target and for_target.inspection)
    layout = _layout(opened, inspection, build_target, parsed, for_target)
    method = "none" if _is_whole(inspection) else inspection.method
    return Conversion(
        source=checkpoint.path,
        method=method,
        build_target=build_target,
        version=str(parsed),
        copied=_copied(checkpoint, is_whole=method == "none"),
        changes=tuple(changes(checkpoint, layout)),
        **vars(layout),
    )


def convert(
    path: str | Path,
    out_dir: str | Path,
    build_target: str,
    version: str,
    target: str | Path | None = None,
    advance: Advance = lambda fraction: None,
) -> Conversion:
    """Writes what `version` reads in place of a checkpoint; nothing where it reads it as it is (not `is_needed`).

    Memory: a block of bytes, whatever the checkpoint's size; for .pt and .bin files one mapped file.

    Args:
        path, build_target, version, target: as for `plan`.
        out_dir: appears whole, or not at all; an earlier conversion there is replaced.
        advance: called with the part done, 0 to 1.

    Raises:
        As `plan`; UsageError where `out_dir` is or holds the checkpoint, or holds anything but an earlier conversion;
        MachineError where it cannot be written.
    """
    conversion = plan(path, build_target, version, target)
    if not conversion.is_needed:
        return conversion
    _refuse_overlap(conversion.source, Path(out_dir), target)
    _refuse_foreign(Path(out_dir))
    try:
        with terminate_as_interrupt(), atomic_directory(Path(out_dir)) as staging:
            write(conversion, staging, advance)
    except OSError as error:
        raise MachineError(
            "the converted checkpoint cannot be written",
            where=str(out_dir),
            got=error.strerror or str(error),
            remedy="free space there or make it writable; what was there is unchanged",
        ) from error
    return conversion


def write(conversion: Conversion, out_dir: Path, advance: Advance = lambda fraction: None) -> None:
    """Writes a planned conversion into an existing empty directory."""
    pieces = [item for items in conversion.files.values() for item in items]
    total, done = max(1, sum(item.num_bytes for item in pieces)), 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        advance(min(1.0, done / total))

    num_bytes = sum(
        write_safetensors(out_dir / name, items, on_bytes) for name, items in sorted(conversion.files.items())
    )
    if len(conversion.files) > 1:
        weight_map = {item.name: name for name, items in conversion.files.items() for item in items}
        write_index(out_dir, weight_map, num_bytes)
    folder = conversion.source if conversion.source.is_dir() else conversion.source.parent
    for name in conversion.copied:
        shutil.copyfile(folder / name, out_dir / name)
    write_json(out_dir / "config.json", conversion.config)
    write_json(out_dir / RECORD_FILE, conversion.as_dict())


def _refuse_version(build_target: str, version: Version) -> None:
    if build_target == "torch":
        raise UsageError(
            "the torch target reads every layout itself", remedy="leave the conversion out, or name tensorrt or llmapi"
        )
    if build_target == "tensorrt":
        has_it, first, last = versions.has_engine_path, versions.FIRST_ENGINE_VERSION, versions.LAST_ENGINE_VERSION
    else:
        has_it, first, last = versions.has_llmapi, versions.FIRST_LLMAPI_VERSION, versions.NEWEST_KNOWN_VERSION
    if not has_it(version):
        other = ", or build target llmapi" if build_target == "tensorrt" else ""
        raise CapabilityError(
            f"build target {build_target} is not in TensorRT-LLM {version}, or not known there",
            where="build.tensorrt_llm_version",
            got=str(version),
            expected=f"{first} to {last}",
            remedy=f"name a version from {first} to {last}{other}",
        )


def _refuse_unsound(inspection: Inspection, target: Inspection | None) -> None:
    """Problems of the checkpoint, the target and the pair; what the torch runtime alone does not compute is none."""
    problems = [problem for problem in inspection.problems if problem.about == "checkpoint"]
    problems = _readable(problems) if _is_whole(inspection) else problems
    if target is not None:
        problems += [problem.of_target() for problem in _readable(target.problems)]
    settings = [problem.setting or problem.message for problem in problems if problem.code == "E-CONFIG"]
    if settings and not _is_whole(inspection):
        raise CheckpointError(
            "config.json asks for what is not converted here",
            where=inspection.path,
            got="; ".join(settings),
            remedy="use a head of the method's own layout, with the config.json of its export",
            code="E-CONFIG",
        )
    refuse_problems("draft" if inspection.role == "draft" else "target", replace(inspection, problems=tuple(problems)))


def _readable(problems: Sequence[Problem]) -> list[Problem]:
    """Without what a quantised model has other than its original: TensorRT-LLM reads FP8, INT4 and the like."""
    is_quantised = any(problem.code == "E-DTYPE" for problem in problems)
    return [problem for problem in problems if not (is_quantised and problem.code in _OF_QUANTISATION)]


def _is_whole(inspection: Inspection) -> bool:
    return inspection.method in ("none", "mtp", "draft_model")


def _layout(
    opened: Opened, inspection: Inspection, build_target: str, version: Version, target: Opened | None
) -> Layout:
    """The layout of a checkpoint on a build target; what the target cannot draft with is refused by name."""
    checkpoint, of_target = opened.checkpoint, target and target.inspection
    if _is_whole(inspection):
        return layouts.causal_lm(checkpoint) if build_target == "tensorrt" else layouts.as_is(checkpoint)
    if build_target == "llmapi" and inspection.method == "eagle3":
        return eagle.eagle3(checkpoint, version, of_target)
    if build_target == "tensorrt" and inspection.method == "eagle":
        return eagle.eagle12(checkpoint, target and target.checkpoint, of_target)
    if build_target == "tensorrt" and inspection.method == "medusa":
        return layouts.medusa_heads(checkpoint, of_target)
    llmapi, tensorrt = (
        f"llmapi ({versions.FIRST_LLMAPI_VERSION} or later)",
        f"tensorrt (up to {versions.LAST_ENGINE_VERSION})",
    )
    raise CapabilityError(
        f"build target {build_target} does not draft with heads of method {inspection.method}",
        where=inspection.path,
        got=inspection.method,
        remedy=f"set build.target to {llmapi if inspection.method == 'eagle3' else tensorrt} or to torch",
    )


def _copied(checkpoint: CheckpointDir, *, is_whole: bool) -> tuple[str, ...]:
    """Licences travel with weights; a whole model keeps its tokenizer and the like too."""
    made = {"config.json", RECORD_FILE, INDEX_FILE, "pytorch_model.bin.index.json"}
    names = [entry.name for entry in sorted(checkpoint.folder.iterdir()) if entry.is_file()]
    texts = [name for name in names if name.endswith(_TEXT_SUFFIXES) and name not in made and name[0] != "."]
    licences = [name for name in names if name.partition(".")[0].upper() in _LICENCES]
    return tuple(dict.fromkeys((texts if is_whole else []) + licences))


def _refuse_overlap(source: Path, out_dir: Path, target: str | Path | None) -> None:
    """The output takes the place of what is at `out_dir`, which must not be what it is read from."""
    out = Path(os.path.realpath(out_dir))
    for path in filter(None, (source, Path(target) if target else None)):
        read = Path(os.path.realpath(path))
        if out == read or out in read.parents:
            raise UsageError(
                "the output would replace what it is made from",
                where=str(out_dir),
                got=str(path),
                remedy="name a directory of its own",
            )


def _refuse_foreign(out_dir: Path) -> None:
    """Only an earlier conversion is replaced, and nothing that somebody else put there."""
    if out_dir.exists() and not (out_dir / RECORD_FILE).exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise UsageError(
            "the output directory holds something else",
            where=str(out_dir),
            expected="a directory that does not exist, is empty, or holds an earlier conversion",
            remedy="name another directory, or remove this one first",
        )
