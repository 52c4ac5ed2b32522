"""Builds an engine for the `torch` target: checkpoints in, one self-contained directory out.

The order is: look at everything, refuse what does not fit, only then write. What is written appears by one rename,
after the engine was loaded from where it lies and its greedy output compared with speculation on and off.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trt_spec import provenance
from trt_spec.atomic import atomic_directory, terminate_as_interrupt
from trt_spec.config import loader
from trt_spec.config.schema import RunConfig
from trt_spec.engines import manifest as manifests
from trt_spec.engines.engine_dir import BuildResult, existing_engine, signal_name, what_is_left
from trt_spec.engines.manifest import Check, CheckpointRecord, FileRecord, Manifest
from trt_spec.engines.plan import BuildPlan, plan
from trt_spec.engines.torch.self_check import self_check
from trt_spec.engines.torch.sources import Sources, open_sources
from trt_spec.engines.torch.weights import write_checkpoint
from trt_spec.errors import BuildInterruptedError
from trt_spec.runtime.loading import load_engine
from trt_spec.runtime.step_costs import measure_step_costs, write_step_costs

Advance = Callable[[float | None, str | None], None]

NOT_VERIFIED_OF_SPECULATION = (
    "that sampled output (temperature above 0) follows the target's law with speculation on",
)
NOT_VERIFIED = (
    "greedy output beyond the few prompts of the self-check",
    "speed",
    "the served model: this manifest is about the engine alone",
)


def build(
    config: RunConfig, *, engines_dir: Path = Path("engines"), run: str = "", advance: Advance | None = None
) -> BuildResult:
    """Builds engines/<run>/, or finds that an equal one is there.

    Args:
        config: the run; its build target is `torch`.
        engines_dir: where engines are kept.
        run: how the user named the run on the command line; recorded in the manifest's commands.
        advance: called with (part done or None, what is being done).

    Raises:
        CapabilityError: the method is not offered on this target.
        CheckpointError, PairError: a checkpoint is unsound, or the two do not fit.
        GateFailure: the engine's greedy output changes with speculation.
        BuildError: something that is no engine is at its place.
        BuildInterruptedError: stopped by Ctrl-C or SIGTERM. Whatever was at the engine's place is untouched.
    """
    started = time.monotonic()
    advance = advance or (lambda fraction, label: None)
    engine_dir = Path(engines_dir) / config.name
    old = existing_engine(engine_dir)
    try:
        with terminate_as_interrupt():
            advance(None, "inspecting the checkpoints")
            sources = open_sources(config)
            build_plan = plan(config, **sources.listings, engines_dir=str(engines_dir), run=run)
            advance(None, "hashing the checkpoints")
            inputs = _digest_inputs(sources, old)
            digest = manifests.build_digest(_plain_config(config), inputs)
            if old is not None and old.digest == digest and manifests.is_whole(engine_dir, old):
                return BuildResult(engine_dir, old, True, time.monotonic() - started)
            with atomic_directory(engine_dir) as staging:
                manifest = _write(staging, config, build_plan, sources, inputs, digest, advance)
                advance(None, f"moving it to {engine_dir}")
    except KeyboardInterrupt as interrupt:
        left = what_is_left(engine_dir, old)
        raise BuildInterruptedError(f"build of {config.name} interrupted ({signal_name(interrupt)}); {left}") from None
    return BuildResult(engine_dir, manifest, False, time.monotonic() - started)


def _digest_inputs(sources: Sources, old: Manifest | None) -> dict[str, dict[str, FileRecord]]:
    """Records of every file read, by role; digests of unchanged files come from the old manifest."""
    records = {}
    for role, listing in sources.listings.items():
        folder = sources.checkpoints[role].folder
        before = old.inputs.get(role) if old is not None else None
        known = before.files if before is not None and before.path == listing.path else {}  # of this very directory
        names = [name for name in listing.inputs if (folder / name).is_file()]
        records[role] = manifests.digest_files(folder, names, known)
    return records


def _plain_config(config: RunConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude_none=True)


def _write(
    staging: Path,
    config: RunConfig,
    build_plan: BuildPlan,
    sources: Sources,
    inputs: Mapping[str, Mapping[str, FileRecord]],
    digest: str,
    advance: Advance,
) -> Manifest:
    """Writes the whole engine to `staging`, checks it there, and returns its manifest, written too."""
    for role, checkpoint in sources.checkpoints.items():
        label = f"writing the {role} in {config.target.dtype}"
        write_checkpoint(
            checkpoint,
            sources.listings[role],
            staging / role,
            config.target.dtype,
            lambda part, label=label: advance(part, label),
        )
    (staging / "resolved.yaml").write_text(loader.dump(config), encoding="utf-8")
    manifest = Manifest(
        run=config.name,
        build_target=config.build.target,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        digest=digest,
        engine=_limits(config, sources),
        config=_plain_config(config),
        inputs={role: _checkpoint_record(role, sources, dict(files)) for role, files in inputs.items()},
        outputs={},
        commands=build_plan.commands,
        **provenance.of_build(),
        verified=_checks_before_writing(sources),
        not_verified=(*(() if config.speculation.method == "none" else NOT_VERIFIED_OF_SPECULATION), *NOT_VERIFIED),
    )
    manifests.write(staging, manifest)  # the engine that is now loaded reads it
    advance(None, "loading it and comparing greedy tokens with speculation on and off")
    engine = load_engine(staging)
    checked = self_check(engine)
    speculation = config.speculation
    if speculation.adaptive_draft_len and speculation.costs is None:
        advance(None, "timing steps by their rows")
        write_step_costs(staging, measure_step_costs(engine.target, engine.limits))
    written = [str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file()]
    written.remove(manifests.FILE_NAME)
    manifest = replace(
        manifest, verified=(*manifest.verified, checked), outputs=manifests.digest_files(staging, written)
    )
    manifests.write(staging, manifest)
    return manifest


def _limits(config: RunConfig, sources: Sources) -> dict[str, Any]:
    """What a server's configuration has to agree with."""
    return {
        "method": config.speculation.method,
        "acceptance": config.speculation.acceptance,
        "max_draft_len": config.speculation.max_draft_len,
        "max_batch_size": config.build.max_batch_size,
        "max_seq_len": config.build.max_seq_len,
        "dtype": config.target.dtype,
        "vocab_size": sources.inspections["target"].vocab_size,
    }


def _checkpoint_record(role: str, sources: Sources, files: dict[str, FileRecord]) -> CheckpointRecord:
    checkpoint, inspection = sources.checkpoints[role], sources.inspections[role]
    return CheckpointRecord(
        path=sources.listings[role].path,
        role=role,
        method=inspection.method,
        family=inspection.family,
        num_tensors=len(checkpoint.tensors),
        num_parameters=checkpoint.num_elements,
        dtypes=dict(Counter(info.dtype for info in checkpoint.tensors.values())),
        files=files,
    )


def _checks_before_writing(sources: Sources) -> tuple[Check, ...]:
    checks = [Check("the target's tensors", "all there, none unknown, shapes as config.json says")]
    if "draft" in sources.checkpoints:
        is_model = sources.inspections["draft"].method == "draft_model"
        agreed = "tokenizers equal id by id" if is_model else "widths, vocabulary and layers are those of the target"
        checks.append(Check("the draft's tensors, and that it fits the target", agreed))
    if sources.inspections["target"].method == "mtp":
        number = sources.inspections["target"].details.num_mtp_layers
        checks.append(Check("the target's MTP layers", f"all there that config.json promises: {number}"))
    return tuple(checks)
