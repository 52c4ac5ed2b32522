"""Builds an engine, in the same steps for every build target: look, refuse, hash, write, check, swap in.

A new target is a module with a `Builder`, and a line in `methods`. Nothing is written before everything was looked at.
What is written appears by one rename, after it was checked where it lies.
"""

from __future__ import annotations

import pkgutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

from trt_spec import provenance
from trt_spec.atomic import atomic_directory, terminate_as_interrupt
from trt_spec.checkpoints.detect import Opened
from trt_spec.checkpoints.method import max_draft_levels, refuse_deep_drafts, refuse_other_draft, refuse_problems
from trt_spec.checkpoints.mtp import refuse_layout
from trt_spec.checkpoints.trtllm.conversion import Conversion
from trt_spec.config import capabilities, loader
from trt_spec.config.schema import RunConfig
from trt_spec.engines import manifest
from trt_spec.engines.manifest import Check, FileRecord, Limits, Manifest
from trt_spec.engines.plan import BuildPlan, Listing, PlannedFile, Step, commands
from trt_spec.engines.sources import Source, Sources, checkpoint_paths, inspections
from trt_spec.errors import BuildError, BuildInterruptedError, CheckpointError
from trt_spec.methods import BUILDERS

NOT_VERIFIED = ("speed", "the served model: this manifest is about the engine alone")  # by a build of any target
Advance = Callable[[float | None, str | None], None]  # part done or None, what is being done
Log = Callable[[str], None]  # one line that another's tool prints


@dataclass(frozen=True)
class BuildResult:
    """An engine in place; `is_reused` where an equal one was there already."""

    engine_dir: Path
    manifest: Manifest
    is_reused: bool
    seconds: float


def builder_for(config: RunConfig, engines_dir: str | Path = "engines", run: str = "") -> Builder:
    """What plans and builds engines/<run>/; `run` is how the user named the run, which commands repeat.

    Raises:
        CapabilityError: the combination is not offered.
    """
    capabilities.check(config)
    return pkgutil.resolve_name(BUILDERS[config.build.target])(config, engines_dir, run)


def plan_run(config: RunConfig, *, engines_dir: str | Path = "engines", run: str = "") -> BuildPlan:
    """What `build` would do, from what is on the disk; arguments and errors as for `builder_for` and `Builder.plan`."""
    return builder_for(config, engines_dir, run).plan()


def build(
    config: RunConfig,
    *,
    engines_dir: str | Path = "engines",
    run: str = "",
    advance: Advance | None = None,
    log: Log | None = None,
) -> BuildResult:
    """Builds engines/<run>/; arguments and errors as for `builder_for` and `Builder.build`."""
    return builder_for(config, engines_dir, run).build(advance, log)


class Builder(ABC):
    """Plans and builds one engine for one build target.

    Attributes:
        not_verified: what a build does not check, in words.
        last_words: what is done beside the rename, for a plan.
    """

    not_verified: ClassVar[tuple[str, ...]]
    last_words = ""

    def __init__(self, config: RunConfig, engines_dir: str | Path = "engines", run: str = "") -> None:
        self.config = config
        self.engines_dir = Path(engines_dir)
        self.engine_dir = self.engines_dir / config.name
        self.run = run
        self.advance: Advance = lambda fraction, label: None
        self.log: Log = lambda line: None

    def plan(self) -> BuildPlan:
        """What `build` would do; checkpoints that are not there yet are assumed, and the plan says so.

        Raises:
            CapabilityError: the pinned version does not have what the run asks for.
            CheckpointError, PairError: a checkpoint that is there cannot be used.
        """
        self.check_config()
        return self.plan_of(self._look(is_plan=True))

    def build(self, advance: Advance | None = None, log: Log | None = None) -> BuildResult:
        """Builds the engine, or finds that an equal one is there.

        Raises:
            CapabilityError: the pinned version does not have what the run asks for.
            CheckpointError, PairError, ConfigError: a checkpoint is unsound, or they do not fit together or the run.
            MachineError: this machine lacks what the build needs.
            GateFailure: the engine's greedy output changes with speculation.
            BuildError: something that is no engine is at its place, or a tool failed.
            BuildInterruptedError: stopped by Ctrl-C or SIGTERM. Whatever was at the engine's place is untouched.
        """
        started = time.monotonic()
        self.advance, self.log = advance or self.advance, log or self.log
        old = existing_engine(self.engine_dir)
        try:
            with terminate_as_interrupt():
                built = self._build(old)
        except KeyboardInterrupt as interrupt:
            reason = str(interrupt) or "SIGINT"  # Ctrl-C raises it bare; SIGTERM with its name
            kept = self.what_is_kept() or what_is_left(self.engine_dir, old)
            raise BuildInterruptedError(f"build of {self.config.name} interrupted ({reason}); {kept}") from None
        return BuildResult(self.engine_dir, built, built is old, time.monotonic() - started)

    def _build(self, old: Manifest | None) -> Manifest:
        self.check_config()
        self.advance(None, "inspecting the checkpoints")
        sources = self.open()
        if old is None:
            self.check_machine(sources)
        self.advance(None, "hashing the checkpoints")
        inputs = {
            role: manifest.digest_files(source.folder, source.names, self.known_files(source, old))
            for role, source in sources.items()
        }
        plain = self.config.model_dump(mode="json", exclude_none=True)
        digest = manifest.build_digest(plain, inputs)
        if old is not None:
            if old.digest == digest and manifest.is_whole(self.engine_dir, old):
                self.remove_parts()
                return old
            self.check_machine(sources)
        with self.prepared(sources, inputs), atomic_directory(self.engine_dir) as staging:
            self.write(sources, staging)
            (staging / "resolved.yaml").write_text(loader.dump(self.config), encoding="utf-8")
            built = Manifest(
                run=self.config.name,
                build_target=self.config.build.target,
                created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                digest=digest,
                engine=self.limits(sources, staging),
                config=plain,
                inputs={
                    role: source.record(inputs[role], self.config.speculation.method)
                    for role, source in sources.items()
                },
                outputs={},
                commands=commands(self.run or self.config.name, self.config.build.target),
                **provenance.of_build(),
                verified=(),
                not_verified=self.not_verified,
            )
            manifest.write(staging, built)  # the engine that is now checked may read it
            verified = self.checks(sources, staging)
            built = replace(built, verified=verified, outputs=_outputs(staging, inputs))
            manifest.write(staging, built)
            self.advance(None, f"moving it to {self.engine_dir}")
        return built

    def open(self) -> Sources:
        """The checkpoints, opened, inspected, and refused where they are unsound or do not fit; nothing is written."""
        sources = self._look()
        for role, source in sources.items():
            if source.opened is not None and source.conversion is None:  # a conversion was refused on its own terms
                found = source.inspection
                own = (None, self.config.build.target)
                problems = tuple(problem for problem in found.problems if problem.limits_only in own)
                refuse_problems(role, replace(found, problems=problems))
        self.refuse_misfits(sources)
        self.check_tokenizer(sources["target"])
        return sources

    def _look(self, *, is_plan: bool = False) -> dict[str, Source]:
        """The checkpoints, opened in turn; in a plan those that are there."""
        sources: dict[str, Source] = {}
        for role, path in checkpoint_paths(self.config).items():
            if is_plan and not Path(path).exists():
                sources[role] = Source(role, Listing(path, is_assumed=True))
            else:
                target = sources["target"].opened if role == "draft" else None
                sources[role] = self.look_at(role, path, target)
        return sources

    def look_at(self, role: str, path: str, target: Opened | None) -> Source:
        """One checkpoint that is there; `target` is what a draft is for, None where that is not there yet."""
        opened = Opened.of(path)
        conversion = self.conversion(role, opened, target)
        return Source(role, self.listing(role, path, opened), opened, target, conversion)

    def refuse_misfits(self, sources: Sources) -> None:
        """Refuses checkpoints that are sound and something else than the config takes them for.

        Raises:
            CheckpointError: the target is no whole model, or has no MTP layers.
            PairError: the draft is of another method.
            ConfigError: drafts longer than the checkpoint has layers.
        """
        target, draft = inspections(sources)
        if target.role != "target":
            raise CheckpointError(
                "the target checkpoint is no whole model",
                where=target.path,
                got=f"{target.role}, method {target.method}",
                remedy="give the large model as target, and this one as the draft",
            )
        self.refuse_other_method(sources)
        levels = max_draft_levels(self.config.speculation.method, target, draft)
        refuse_deep_drafts(self.config.speculation, levels)

    def known_files(self, source: Source, old: Manifest | None) -> Mapping[str, FileRecord]:
        """Digests of an earlier time, of this very checkpoint."""
        before = None if old is None else old.inputs.get(source.role)
        return before.files if before is not None and before.path == source.listing.path else {}

    def part_of(self, label: str) -> Callable[[float], None]:
        """What is called with the part done of what `label` says."""
        return lambda part: self.advance(part, label)

    def planned(
        self, sources: Sources, steps: Sequence[Step], checks: Sequence[Step] = (), notes: Sequence[str] = (), **of: Any
    ) -> BuildPlan:
        """A plan of these steps between the first and last of every build; `of` has further fields of `BuildPlan`."""
        assumed = [source.listing.path for source in sources.values() if source.listing.is_assumed]
        ends = [
            Step("write the resolved config", (PlannedFile("resolved.yaml", "the run config, defaults included"),)),
            *checks,
            Step("write the manifest", (PlannedFile("manifest.json", "digests, versions, checks"),)),
            Step(f"move everything to {self.engine_dir} in one rename" + self.last_words),
        ]
        return BuildPlan(
            run=self.config.name,
            build_target=self.config.build.target,
            engine_dir=str(self.engine_dir),
            steps=(Step(self.first_words(sources)), *steps, *ends),
            commands=commands(self.run or self.config.name, self.config.build.target),
            notes=(*(f"{path} is not there yet; its files are assumed" for path in assumed), *notes),
            **of,
        )

    # --- what each target says for itself ---

    @abstractmethod
    def listing(self, role: str, path: str, opened: Opened) -> Listing:
        """The files of a checkpoint that the engine needs."""

    @abstractmethod
    def plan_of(self, sources: Sources) -> BuildPlan:
        """The steps, files and commands of a build."""

    @abstractmethod
    def write(self, sources: Sources, staging: Path) -> None:
        """Writes the engine; its resolved config and manifest are written by `build`."""

    @abstractmethod
    def limits(self, sources: Sources, staging: Path) -> Limits:
        """What a server's configuration has to agree with."""

    @abstractmethod
    def checks(self, sources: Sources, staging: Path) -> tuple[Check, ...]:
        """What was verified of the checkpoints, and of the engine where it lies."""

    def first_words(self, sources: Sources) -> str:
        """The first step of a plan."""
        return "inspect the target" + (" and the draft, and check that they fit" if "draft" in sources else "")

    def check_config(self) -> None:
        """Raises CapabilityError for what cannot be, before a checkpoint is looked for."""

    def conversion(self, role: str, opened: Opened, target: Opened | None) -> Conversion | None:
        """How a checkpoint is laid out anew; None where it is read as it is."""
        return None

    def refuse_other_method(self, sources: Sources) -> None:
        """Raises where the checkpoints are of another method than the run's."""
        _, draft = inspections(sources)
        if self.config.speculation.method == "mtp":
            self.refuse_without_mtp(sources["target"])
        elif draft is not None:
            refuse_other_draft(self.config.speculation.method, draft)

    def refuse_without_mtp(self, target: Source) -> None:
        """Raises where the run's method is mtp and its target does not draft so."""
        refuse_layout(target.inspection.details.mtp_layout, target.inspection.path)

    def check_tokenizer(self, target: Source) -> None:
        """Raises CheckpointError for a target whose text cannot be read and written."""
        _ = target.checkpoint.tokenizer

    def check_machine(self, sources: Sources) -> None:
        """Raises MachineError where this machine lacks what the build needs."""

    @contextmanager
    def prepared(self, sources: Sources, inputs: Mapping[str, dict[str, FileRecord]]) -> Iterator[None]:
        """What is done before anything is put together, and kept until the engine is in place."""
        yield

    def remove_parts(self) -> None:
        """Removes what a stopped build kept; the engine is in place."""

    def what_is_kept(self) -> str | None:
        """What an interruption leaves for the next build, in words."""
        return None


def existing_engine(engine_dir: Path) -> Manifest | None:
    """What is there, None where that is nothing usable; raises BuildError where it was never an engine."""
    if engine_dir.is_dir() and any(engine_dir.iterdir()) and not (engine_dir / manifest.FILE_NAME).exists():
        raise BuildError(
            "there is something else at the engine's place",
            where=str(engine_dir),
            expected=f"nothing, or an engine with its {manifest.FILE_NAME}",
            remedy="move it away, or give the run another name (--set name=...)",
        )
    try:
        return manifest.read(engine_dir)
    except CheckpointError:
        return None


def what_is_left(engine_dir: Path, old: Manifest | None) -> str:
    """What an interruption left at the engine's place; it may have come after the rename."""
    if not engine_dir.exists():
        return "nothing is left behind"
    is_old = existing_engine(engine_dir) == old
    return "the engine that was there is untouched" if is_old else "the new engine is in place"


def _outputs(staging: Path, inputs: Mapping[str, Mapping[str, FileRecord]]) -> dict[str, FileRecord]:
    """A record of every file but the manifest; linked inputs are not hashed a second time."""
    paths = [path for path in staging.rglob("*") if path.is_file() and path != staging / manifest.FILE_NAME]
    known = {f"{role}/{name}": record for role, files in inputs.items() for name, record in files.items()}
    return manifest.digest_files(staging, [str(path.relative_to(staging)) for path in paths], known)
