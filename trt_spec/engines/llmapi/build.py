"""Builds an engine for the `llmapi` target: what `tensorrt_llm.LLM` needs, in one directory that can be moved.

Nothing is compiled. The directory holds the checkpoints as the pinned version reads them (linked where it reads them as
they are, converted where not), the arguments, and the manifest. TensorRT-LLM itself was not run: the manifest says so.
"""

from __future__ import annotations

import io
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any

from trt_spec import provenance
from trt_spec.atomic import atomic_directory, terminate_as_interrupt
from trt_spec.checkpoints.detect import inspect
from trt_spec.checkpoints.inspection import Inspection
from trt_spec.checkpoints.safetensors_dir import CheckpointDir
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.checkpoints.trtllm import normalise
from trt_spec.checkpoints.trtllm.conversion import Conversion
from trt_spec.config import loader, versions
from trt_spec.config.schema import RunConfig
from trt_spec.engines import manifest as manifests
from trt_spec.engines.llmapi.args import llm_args, placement, version_of
from trt_spec.engines.llmapi.sources import refuse_misfits
from trt_spec.engines.manifest import Check, CheckpointRecord, FileRecord, Manifest
from trt_spec.engines.plan import BuildPlan, Listing, PlannedFile, Step, commands
from trt_spec.engines.torch.build import BuildResult, existing_engine, what_is_left
from trt_spec.errors import BuildInterruptedError

ARGUMENTS_FILE = "llm_args.yaml"
Advance = Callable[[float | None, str | None], None]
NOT_EXECUTED = "that TensorRT-LLM loads it: nothing of TensorRT-LLM was run"
NOT_VERIFIED = (
    NOT_EXECUTED,
    "that its output follows the target's law, with and without speculation",
    "speed",
    "the served model: this manifest is about the engine alone",
)


@dataclass(frozen=True)
class Source:
    """One input checkpoint, opened, and what of it changes for the pinned version."""

    path: str
    checkpoint: CheckpointDir
    inspection: Inspection
    conversion: Conversion

    @property
    def names(self) -> list[str]:
        """Files of the directory that an engine may need; not those of other formats beside the tensors it reads."""
        weights = {info.file for info in self.checkpoint.tensors.values()}
        skipped = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack")
        others = [path.name for path in self.checkpoint.folder.iterdir() if path.is_file()]
        return sorted(weights | {name for name in others if not name.endswith(skipped) and not name.startswith(".")})


# --- plan ----------------------------------------------------------------------------------------------------------


def arguments_text(config: RunConfig, draft_facts: Mapping[str, Any] | None = None) -> str:
    """The content of llm_args.yaml; `draft_facts` as for `llm_args`.

    Raises:
        CapabilityError: the pinned version does not have what the run asks for.
    """
    from ruamel.yaml import YAML

    head = (
        f"# Arguments of tensorrt_llm.LLM {version_of(config)} for the run {config.name}, written by trt-spec build.\n"
        "# Paths are relative to this directory. Change the run config, not this file.\n"
    )
    stream = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(llm_args(config, draft_facts), stream)
    return head + stream.getvalue()


def plan(
    config: RunConfig,
    target: Listing,
    draft: Listing | None = None,
    *,
    conversions: Mapping[str, Conversion] | None = None,
    engines_dir: str = "engines",
    run: str = "",
) -> BuildPlan:
    """The steps and files of a build. Pure.

    Args:
        config: the run.
        target, draft: the checkpoints' file names.
        conversions: by role, what changes for the pinned version; none for checkpoints that are not there yet.
        engines_dir: where engines are kept.
        run: how the user named the run on the command line.

    Raises:
        CapabilityError: the pinned version does not have what the run asks for.
    """
    arguments = llm_args(config, _draft_facts(conversions or {}))
    engine_dir = str(PurePosixPath(engines_dir) / config.name)
    container = config.build.container or versions.container_of(version_of(config)).image
    steps = [Step("inspect the target" + (" and the draft, and check that they fit" if draft else ""))]
    for role, listing in (("target", target), ("draft", draft)):
        if listing is not None:
            steps.append(_checkpoint_step(role, listing, (conversions or {}).get(role)))
    steps.append(
        Step(
            f"write the arguments of tensorrt_llm.LLM {version_of(config)}, each checked against its fields",
            (PlannedFile(ARGUMENTS_FILE, ", ".join(arguments)),),
        )
    )
    steps.append(
        Step("write the resolved config", (PlannedFile("resolved.yaml", "the run config, defaults included"),))
    )
    steps.append(Step("write the manifest", (PlannedFile("manifest.json", "digests, versions, checks"),)))
    steps.append(Step(f"move everything to {engine_dir} in one rename"))
    notes = [f"{item.path} is not there yet; its files are assumed" for item in (target, draft) if _is_assumed(item)]
    notes.append(f"TensorRT-LLM loads it when the server starts, in {container}; nothing of it runs in a build")
    if config.build.container is None and not versions.container_of(version_of(config)).has_tritonserver:
        notes.append(
            f"no Triton image has exactly TensorRT-LLM {version_of(config)}, and that one has no tritonserver: name "
            f"one that has both with build.container ({versions.DEFAULT_VERSION['llmapi']} has one)"
        )
    facts = (conversions or {})["draft"].facts if "draft" in (conversions or {}) else None
    texts = ((ARGUMENTS_FILE, arguments_text(config, facts)),)
    head = (config.name, config.build.target, engine_dir)
    return BuildPlan(*head, tuple(steps), commands(run or config.name, config.build.target), tuple(notes), texts=texts)


def _draft_facts(conversions: Mapping[str, Conversion]) -> dict[str, Any]:
    return conversions["draft"].facts if "draft" in conversions else {}


def _is_assumed(listing: Listing | None) -> bool:
    return listing is not None and listing.is_assumed


def _checkpoint_step(role: str, listing: Listing, conversion: Conversion | None) -> Step:
    if conversion is not None and conversion.is_needed:
        written = [*conversion.files, "config.json", normalise.RECORD_FILE, *conversion.copied]
        files = tuple(PlannedFile(f"{role}/{name}", f"{listing.path}, converted") for name in sorted(written))
        return Step(f"convert the {role}: " + "; ".join(conversion.changes), files)
    if listing.is_assumed and role == "draft":
        files = (PlannedFile(f"{role}/", f"{listing.path}, linked or converted"),)
        return Step("link the draft where TensorRT-LLM reads it as it is, else convert it", files)
    files = tuple(PlannedFile(f"{role}/{name}", f"{listing.path}/{name}, linked") for name in listing.inputs)
    return Step(f"link the {role}, which TensorRT-LLM reads as it is", files)


def plan_run(config: RunConfig, *, engines_dir: str = "engines", run: str = "") -> BuildPlan:
    """The plan of a build from what is on the disk; what is not there yet is assumed, and the plan says so."""
    llm_args(config)  # what cannot be is refused before a checkpoint is looked for
    listings, conversions, sources = {}, {}, {}
    target_is_there = Path(config.target.checkpoint).exists()
    for role, path in _paths(config).items():
        is_there = Path(path).exists() and (role == "target" or target_is_there)
        if is_there:
            source = sources[role] = _open(config, role)
            weights = tuple(sorted({info.file for info in source.checkpoint.tensors.values()}))
            others = tuple(name for name in source.names if name not in (*weights, "config.json"))
            listings[role], conversions[role] = Listing(path, weights, others), source.conversion
        else:
            listings[role] = Listing(path, is_assumed=True)
    if target_is_there:
        _check_fit(config, sources)
    return plan(config, **listings, conversions=conversions, engines_dir=engines_dir, run=run)


def _paths(config: RunConfig) -> dict[str, str]:
    paths = {"target": config.target.checkpoint, "draft": config.speculation.checkpoint}
    return {role: path for role, path in paths.items() if path is not None}


def _open(config: RunConfig, role: str) -> Source:
    """Opens one checkpoint and decides what of it changes; refuses what is unsound or does not fit the target."""
    path, target = _paths(config)[role], config.target.checkpoint if role == "draft" else None
    conversion = normalise.plan(path, config.build.target, str(version_of(config)), target)
    return Source(path, CheckpointDir.open(path), inspect(path, target), conversion)


def _check_fit(config: RunConfig, sources: Mapping[str, Source]) -> None:
    target, draft = sources["target"], sources.get("draft")
    refuse_misfits(config, target.inspection, target.checkpoint.config, None if draft is None else draft.inspection)


# --- build ---------------------------------------------------------------------------------------------------------


def build(
    config: RunConfig, *, engines_dir: Path = Path("engines"), run: str = "", advance: Advance | None = None
) -> BuildResult:
    """Writes engines/<run>/, or finds that an equal one is there.

    Args:
        config: the run; its build target is `llmapi`.
        engines_dir: where engines are kept.
        run: how the user named the run on the command line; recorded in the manifest's commands.
        advance: called with (part done or None, what is being done).

    Raises:
        CapabilityError: the pinned version does not have what the run asks for.
        CheckpointError, PairError: a checkpoint is unsound, or the two do not fit.
        BuildError: something that is no engine is at its place.
        BuildInterruptedError: stopped by Ctrl-C or SIGTERM. Whatever was at the engine's place is untouched.
    """
    started = time.monotonic()
    advance = advance or (lambda fraction, label: None)
    engine_dir = Path(engines_dir) / config.name
    old = existing_engine(engine_dir)
    try:
        with terminate_as_interrupt():
            llm_args(config)  # what cannot be is refused before a checkpoint is looked for
            advance(None, "inspecting the checkpoints")
            sources = {role: _open(config, role) for role in _paths(config)}
            _check_fit(config, sources)
            text = arguments_text(config, sources["draft"].conversion.facts if "draft" in sources else None)
            tokenizer = Tokenizer.load(sources["target"].checkpoint.folder)
            advance(None, "hashing the checkpoints")
            inputs = {role: _digests(source, old, role) for role, source in sources.items()}
            digest = manifests.build_digest(config.model_dump(mode="json", exclude_none=True), inputs)
            if old is not None and old.digest == digest and manifests.is_whole(engine_dir, old):
                return BuildResult(engine_dir, old, True, time.monotonic() - started)
            with atomic_directory(engine_dir) as staging:
                for role, source in sources.items():
                    _write_checkpoint(source, staging / role, role, advance)
                (staging / ARGUMENTS_FILE).write_text(text, encoding="utf-8")
                (staging / "resolved.yaml").write_text(loader.dump(config), encoding="utf-8")
                manifest = _manifest(config, sources, tokenizer, inputs, digest, run)
                manifest = _with_outputs(staging, manifest)
                manifests.write(staging, manifest)
                advance(None, f"moving it to {engine_dir}")
    except KeyboardInterrupt as interrupt:
        reason = str(interrupt) or "SIGINT"
        left = what_is_left(engine_dir, old)
        raise BuildInterruptedError(f"build of {config.name} interrupted ({reason}); {left}") from None
    return BuildResult(engine_dir, manifest, False, time.monotonic() - started)


def _digests(source: Source, old: Manifest | None, role: str) -> dict[str, FileRecord]:
    before = old.inputs.get(role) if old is not None else None
    known = before.files if before is not None and before.path == source.path else {}
    return manifests.digest_files(source.checkpoint.folder, source.names, known)


def _write_checkpoint(source: Source, out_dir: Path, role: str, advance: Advance) -> None:
    out_dir.mkdir()
    if source.conversion.is_needed:
        label = f"converting the {role}"
        normalise.write(source.conversion, out_dir, lambda part: advance(part, label))
        return
    advance(None, f"linking the {role}")
    for name in source.names:
        link_or_copy(source.checkpoint.folder / name, out_dir / name)


def link_or_copy(source: Path, link: Path) -> None:
    """A second name for a file, so that the engine is whole by itself; a copy on another file system.

    Symbolic links (as the hub's cache has them) are followed first: what they lead to may be outside of a container.
    """
    source = source.resolve()
    try:
        os.link(source, link)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, link)


def _manifest(
    config: RunConfig,
    sources: Mapping[str, Source],
    tokenizer: Tokenizer,
    inputs: Mapping[str, dict[str, FileRecord]],
    digest: str,
    run: str,
) -> Manifest:
    return Manifest(
        run=config.name,
        build_target=config.build.target,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        digest=digest,
        engine=limits(config, sources["target"].inspection.vocab_size or tokenizer.vocab_size),
        config=config.model_dump(mode="json", exclude_none=True),
        inputs={role: _record(role, source, inputs[role]) for role, source in sources.items()},
        outputs={},
        commands=commands(run or config.name, config.build.target),
        **provenance.of_build(),
        verified=(
            Check("the checkpoints", "sound, fitting together, and laid out as the pinned version reads them"),
            Check("llm_args.yaml", f"every field is one of TensorRT-LLM {version_of(config)}, as read in its sources"),
        ),
        not_verified=NOT_VERIFIED,
    )


def limits(config: RunConfig, vocab_size: int) -> dict[str, Any]:
    """What a server's configuration has to agree with."""
    return {
        "method": config.speculation.method,
        "acceptance": config.speculation.acceptance,
        "max_draft_len": config.speculation.max_draft_len,
        "max_batch_size": config.build.max_batch_size,
        "max_seq_len": config.build.max_seq_len,
        "dtype": config.target.dtype,
        "vocab_size": vocab_size,
        "tensorrt_llm_version": str(version_of(config)),
        "drafter_placement": placement(config),
    }


def _record(role: str, source: Source, files: dict[str, FileRecord]) -> CheckpointRecord:
    return CheckpointRecord(
        path=source.path,
        role=role,
        method=source.inspection.method,
        family=source.inspection.family,
        num_tensors=len(source.checkpoint.tensors),
        num_parameters=source.checkpoint.num_elements,
        dtypes=dict(Counter(info.dtype for info in source.checkpoint.tensors.values())),
        files=files,
    )


def _with_outputs(staging: Path, manifest: Manifest) -> Manifest:
    """The manifest with a record of every file; linked ones are not hashed a second time."""
    names = [str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file()]
    known = {f"{role}/{name}": file for role, record in manifest.inputs.items() for name, file in record.files.items()}
    return replace(manifest, outputs=manifests.digest_files(staging, names, known))
