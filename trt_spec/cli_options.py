"""What all commands share: their options, the run that a command line means, and errors turned into exit codes."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trt_spec.checkpoints import hub
from trt_spec.config import loader
from trt_spec.config.rates import OPTION, parse_rates
from trt_spec.config.schema import BUILD_TARGETS, METHODS, RunConfig
from trt_spec.errors import MachineError, TrtSpecError, UsageError
from trt_spec.report.console import Reporter
from trt_spec.triton import contract

if TYPE_CHECKING:
    from trt_spec.runtime.engine import Engine

ENGINES_DIR = Path("engines")
REPOSITORIES_DIR = Path("triton_repo")
DEMO_CHECKPOINT = Path("checkpoints/smollm2-135m")
EXIT_INTERRUPTED = 130  # as shells report it
EXIT_UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h

Command = Callable[..., Any]


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


def output_options(function: Command) -> Command:
    """Adds --json, -v and -q; the command gets a `Reporter` first, and its errors become exit codes.

    The command returns its exit code, or None for 0.
    """

    @click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, everything else on stderr.")
    @click.option("-v", "--verbose", is_flag=True, help="More detail, and tracebacks.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress and no notes.")
    @functools.wraps(function)
    def command(as_json: bool, verbose: bool, quiet: bool, **arguments: Any) -> int:
        reporter = Reporter(as_json=as_json, verbosity=int(verbose), is_quiet=quiet)
        return guarded(reporter, lambda: function(reporter, **arguments))

    return command


def guarded(reporter: Reporter, call: Callable[[], int | None]) -> int:
    """Calls, and turns what comes out into an exit code and one message."""
    try:
        return call() or 0
    except TrtSpecError as error:
        reporter.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        reporter.interrupted(EXIT_INTERRUPTED)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has gone; nothing can be told to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except click.ClickException:
        raise
    except OSError as error:
        reporter.error(_machine_error(error))
        return MachineError.exit_code
    except Exception as error:
        reporter.unexpected(error, EXIT_UNEXPECTED)
        return EXIT_UNEXPECTED


def _machine_error(error: OSError) -> MachineError:
    """A full disk, a missing permission and their like, in our form."""
    wrapped = MachineError(
        error.strerror or str(error),
        where=" -> ".join(str(name) for name in (error.filename, error.filename2) if name) or None,  # a copy has two
        got=type(error).__name__,
        remedy="check the disk, the permissions and the path; -v shows the traceback",
    )
    wrapped.__cause__ = error
    return wrapped


def run_options(function: Command, default: str | None = None) -> Command:
    """Adds CONFIG and the flags that stand for one, and --set; the command gets `run: Run`.

    Args:
        default: the CONFIG where nothing names a run.
    """

    @click.argument("config", required=False)
    @click.option("--model", metavar="MODEL", help="Target: a name in checkpoints/, a directory or a hub id.")
    @click.option("--method", metavar="METHOD", help=f"Speculation: {', '.join(METHODS)}.")
    @click.option("--draft", metavar="DRAFT", help="Draft checkpoint: a name, a directory or a hub id.")
    @click.option("--build-target", type=click.Choice(BUILD_TARGETS), help="Engine to build (default: torch).")
    @click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a config key; repeatable.")
    @functools.wraps(function)
    def command(
        reporter: Reporter,
        config: str | None,
        model: str | None,
        method: str | None,
        draft: str | None,
        build_target: str | None,
        overrides: tuple[str, ...],
        **arguments: Any,
    ) -> int | None:
        if model is None and method is None:
            config = config or default
        run = resolve_run(config, model, method, draft, build_target, overrides)
        reporter.detail(f"run {run.config.name} from {run.words}")
        return function(reporter, run=run, **arguments)

    return command


def acceptance_option(help_words: str) -> Callable[[Command], Command]:
    """Adds --acceptance; the command gets `acceptance`: a probability per draft position, or None."""
    words = f"Accept drafts by coin, by position, such as 0.8,0.7,0.6. {help_words}"
    return click.option(OPTION, metavar="RATES", callback=lambda ctx, param, text: parse_rates(text), help=words)


def request_options(function: Command) -> Command:
    """Adds the sampling parameters of the serving contract, `--speculation/--no-speculation` and `--max-draft-len`.

    The command gets `parameters`: those that were given, by their names without the prefix.
    """
    tensors = [tensor for tensor in contract.INPUTS if tensor.name.startswith(contract.PREFIX)]
    tensors += [contract.INPUT_BY_NAME[name] for name in ("speculation", "max_draft_len")]
    names = [tensor.short_name for tensor in tensors]

    @functools.wraps(function)
    def command(**arguments: Any) -> int | None:
        given = {name: arguments.pop(name) for name in names}
        parameters = {name: value for name, value in given.items() if value is not None and value != ()}
        return function(parameters=parameters, **arguments)

    for tensor in reversed(tensors):
        command = _request_option(tensor)(command)
    return command


def _request_option(tensor: contract.Input) -> Callable[[Command], Command]:
    flag = "--" + tensor.short_name.replace("_", "-")
    if tensor.data_type == "BOOL":
        return click.option(f"{flag}/--no-{flag[2:]}", tensor.short_name, default=None, help=tensor.doc)
    kind = {"STRING": str, "FP32": float}.get(tensor.data_type, int)
    is_hidden = bool(tensor.refused)  # known, so that it is refused with its reason; not worth a line of help
    return click.option(flag, tensor.short_name, type=kind, multiple=tensor.is_list, help=tensor.doc, hidden=is_hidden)


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


def beside_option(function: Command) -> Command:
    """Adds --beside; the command gets `beside`: CONFIGs, for `runs_beside`."""
    words = "Another run of the same target; repeatable (default: every other run of this target in configs/)."
    return click.option("--beside", "beside", multiple=True, metavar="CONFIG", help=words)(function)


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
        shipped = [name for name in loader.run_names() if _engine_kind(resolve_run(name))[0] == _engine_kind(run)[0]]
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
    from trt_spec.build import manifest as manifests
    from trt_spec.triton.repository import check_same_run

    check_same_run(run.config, manifests.read(run.engine_dir).as_dict())
    from trt_spec.runtime.engine import Engine

    with reporter.progress(f"loading {run.engine_dir}"):
        return Engine.load(run.engine_dir)
