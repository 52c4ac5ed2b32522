"""Options that commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from trt_spec.cli.exits import guarded
from trt_spec.config.rates import OPTION, parse_rates
from trt_spec.methods import BUILD_TARGETS, METHODS
from trt_spec.report.console import Reporter
from trt_spec.run import resolve_run

if TYPE_CHECKING:
    from trt_spec.triton import contract

Command = Callable[..., Any]


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


def run_options(function: Command, default: str | None = None) -> Command:
    """Adds CONFIG and the flags that stand for one, --set, and `output_options`; the command gets `run: Run` too.

    Args:
        default: the CONFIG where nothing names a run.
    """

    @output_options
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
    from trt_spec.triton import contract

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


def beside_option(function: Command) -> Command:
    """Adds --beside; the command gets `beside`: CONFIGs, for `runs_beside`."""
    words = "Another run of the same target; repeatable (default: every other run of this target in configs/)."
    return click.option("--beside", "beside", multiple=True, metavar="CONFIG", help=words)(function)
