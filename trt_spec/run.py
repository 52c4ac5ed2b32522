"""A run: its config, and where its engine and its repository lie. What every command begins with."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trt_spec.checkpoints import hub
from trt_spec.config.places import run_names
from trt_spec.errors import CheckpointError, UsageError
from trt_spec.report.console import Reporter

if TYPE_CHECKING:
    from trt_spec.checkpoints.tokenizer import Tokenizer
    from trt_spec.config.schema import RunConfig
    from trt_spec.runtime.engine import Engine

ENGINES_DIR = Path("engines")
REPOSITORIES_DIR = Path("triton_repo")
DEMO_CHECKPOINT = Path("checkpoints/smollm2-135m")


@dataclass(frozen=True)
class Run:
    """The run that a command line means.

    Attributes:
        config: resolved, overrides included.
        words: the run as the user named it, quoted for a shell; messages and manifests repeat it.
        hub_ids: local directory -> hub id, for checkpoints that were named by one.
        overrides: what --set said, for commands that lay another file over the config.
    """

    config: RunConfig
    words: str
    hub_ids: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()

    @property
    def engine_dir(self) -> Path:
        return ENGINES_DIR / self.config.name

    @property
    def repository_dir(self) -> Path:
        return REPOSITORIES_DIR / self.config.name


def resolve_run(
    config: str | None,
    model: str | None = None,
    method: str | None = None,
    draft: str | None = None,
    build_target: str | None = None,
    overrides: tuple[str, ...] = (),
) -> Run:
    """The run that a CONFIG (a file, or a name in configs/) or the flags in its place mean.

    Raises:
        UsageError: both or neither were given, or flags that do not go together.
        ConfigError: the config is unsound.
    """
    from trt_spec.config import loader

    flags = {"--model": model, "--method": method, "--draft": draft, "--build-target": build_target}
    words = [word for override in overrides for word in ("--set", override)]
    if config is not None:
        given = [flag for flag, value in flags.items() if value is not None]
        if given:
            remedy = "give one of the two; --set changes single keys of a config"
            raise UsageError(
                "a config and flags that stand for one", got=f"{config} and {', '.join(given)}", remedy=remedy
            )
        return Run(loader.load(config, overrides), shlex.join([config, *words]), overrides=overrides)
    if model is None or method is None:
        raise UsageError(
            "no run was named",
            expected="a config file, the name of one in configs/, or --model and --method",
            remedy="for example: trt-spec build smollm2-135m-ngram",
        )
    hub_ids = {str(hub.local_dir(name)): name for name in (model, draft) if name is not None and hub.is_hub_id(name)}
    model, draft = _local(model), _local(draft)
    resolved = loader.load_or_compose(model, method, draft, build_target or "torch", overrides)
    named = [word for flag, value in flags.items() if value is not None for word in (flag, value)]
    return Run(resolved, shlex.join([*named, *words]), hub_ids, overrides)


def runs_beside(run: Run, names: tuple[str, ...]) -> list[Run]:
    """The run and others of its target that draft: those named, else all that are in configs/.

    What --set says of the target's dtype, the build and the server holds for all of them, the rest for `run` alone.
    Runs that draft nothing are left out, so `run` itself may be; plain decoding is any engine with speculation off.

    Raises:
        ConfigError: a named config is unsound.
        UsageError: a named one is of another target, of another build target, or named twice.
    """
    shared = tuple(text for text in run.overrides if text.startswith(("target.dtype=", "build.", "serve.")))
    others = [resolve_run(name, overrides=shared) for name in names]
    for other in others:
        if _engine_kind(other) != _engine_kind(run):
            raise UsageError(
                "only runs of one target can be compared",
                where=f"--beside {other.words}",
                got=" ".join(_engine_kind(other)),
                expected=" ".join(_engine_kind(run)),
            )
    if not names:
        shipped = [name for name in run_names() if _engine_kind(resolve_run(name))[0] == _engine_kind(run)[0]]
        others = [resolve_run(name, overrides=shared) for name in shipped]
        others = [
            one for one in others if _engine_kind(one) == _engine_kind(run) and one.config.name != run.config.name
        ]
    found = {one.config.name: one for one in (run, *others)}
    if len(found) < 1 + len(others):
        raise UsageError("two runs have one name, so they share an engine", where="--beside", got=", ".join(names))
    return [one for one in found.values() if one.config.speculation.method != "none"]


def _engine_kind(run: Run) -> tuple[str, str, str]:
    target = run.config.target
    return os.path.normpath(target.checkpoint), target.dtype, run.config.build.target


def _local(name: str | None) -> str | None:
    return str(hub.local_dir(name)) if name is not None and hub.is_hub_id(name) else name


def ensure_checkpoints(run: Run, reporter: Reporter) -> None:
    """Fetches what is missing and can be: the demo target, and checkpoints named by hub id. Says so."""
    config = run.config
    for path in filter(None, (config.target.checkpoint, config.speculation.checkpoint)):
        if path in run.hub_ids and not Path(path).exists():
            reporter.note(f"{path} is missing: downloading {run.hub_ids[path]} from the Hugging Face hub")
            with reporter.progress(f"downloading {run.hub_ids[path]}"):
                hub.download(run.hub_ids[path])
        else:
            ensure_demo_checkpoint(path, reporter)


def ensure_demo_checkpoint(path: str | Path, reporter: Reporter) -> None:
    """Fetches the demo target where `path` is its place and nothing is there. Says so."""
    if Path(os.path.normpath(path)) == DEMO_CHECKPOINT and not Path(path).exists():
        reporter.note(f"{path} is missing: fetching the demo target first")
        fetch_demo_checkpoint(reporter)


def fetch_demo_checkpoint(reporter: Reporter, name: str = DEMO_CHECKPOINT.name) -> Path:
    """The demo target's directory, fetched and converted where it is not there yet."""
    from trt_spec.checkpoints import demo_model

    with reporter.progress(f"fetching {name}") as advance:
        return demo_model.fetch(name, progress=lambda what: advance(None, what))


def load_engine(run: Run, reporter: Reporter) -> Engine:
    """The built engine of a run, loaded into this process.

    Raises:
        CheckpointError: no engine is built.
        ConfigError: it was built from another config.
    """
    from trt_spec.engines import manifest
    from trt_spec.triton.repository import check_same_run

    check_same_run(run.config, manifest.read(run.engine_dir).as_dict())
    from trt_spec.runtime import loading

    with reporter.progress(f"loading {run.engine_dir}"):
        return loading.load_engine(run.engine_dir)


def find_tokenizer(run: Run) -> Tokenizer:
    """The engine's tokenizer, else that of the target checkpoint (the engine may be on the server's machine only).

    Raises:
        CheckpointError: neither has one.
    """
    from trt_spec.checkpoints.tokenizer import Tokenizer

    for directory in (run.engine_dir / "target", Path(run.config.target.checkpoint)):
        if (directory / "tokenizer.json").is_file():
            return Tokenizer.load(directory)
    raise CheckpointError(
        "no tokenizer for the chat template here",
        where=f"{run.engine_dir}/target, {run.config.target.checkpoint}",
        remedy="build the engine here too, or send --input-ids",
    )
