"""The command line: each command is a file of its own, resolves its run, calls one stage, and hands on the result.

Nothing is imported before it is needed: `trt-spec --help` reads the table below and no command. This is the one place
that exits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import NoReturn

import click

from trt_spec.cli.exits import guarded
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter

EXIT_CODES = """
Exit codes: 0 ok; 1 a gate or an equivalence check failed; 2 usage, config or checkpoint; 3 this machine lacks what is
needed; 4 inconclusive; 70 unexpected error; 130 interrupted.
"""

# The command `x` is `trt_spec.cli.x.x`; what is said of it here is the first sentence of its help (a test compares).
# In the order in which they are used.
SHORT_HELP = {
    "doctor": "Show what this machine has and what works on it.",
    "fetch": "Fetch the demo target smollm2-135m.",
    "inspect": "Tell what CHECKPOINT is, and whether it fits.",
    "convert": "Write CHECKPOINT as TensorRT-LLM reads it.",
    "plan": "Show what a build would do.",
    "build": "Build engines/<run>/ and check it.",
    "emit": "Write triton_repo/<run>/ for the built engine.",
    "deploy": "Write deploy/<run>/ for NVIDIA's containers.",
    "serve": "Serve triton_repo/<run>/ with tritonserver.",
    "generate": "Stream text from the built engine, or a server.",
    "train": "Make a draft for a target.",
    "verify": "Prove that speculation keeps the distribution.",
    "tune": "Find how long drafts should be at each concurrency.",
    "gate": "Gate the speed-up and TTFT of speculation.",
    "bench": "Time the built engine.",
    "demo": "Build, serve, and compare ways to draft with plain decoding.",
    "schema": "Print the JSON Schema of the run config.",
}


class _Commands(Mapping[str, click.Command]):
    """The commands by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in SHORT_HELP:
            raise KeyError(name)
        return getattr(import_module(f"trt_spec.cli.{name}"), name)

    def __iter__(self) -> Iterator[str]:
        return iter(SHORT_HELP)

    def __len__(self) -> int:
        return len(SHORT_HELP)


class _LazyGroup(click.Group):
    """Lists commands in the order of the table, and imports none of them to do so."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SHORT_HELP.items()))


def _dashes(token: str) -> str:
    """`--max_tokens`, as the serving contract spells it, is `--max-tokens`."""
    return token.replace("_", "-")


@click.group(
    cls=_LazyGroup,
    commands=_Commands(),
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "token_normalize_func": _dashes},
)
@click.version_option(package_name="trt-spec", message="%(prog)s %(version)s")
def cli() -> None:
    """Speculative decoding from checkpoints to a served Triton model.

    CONFIG is a run config: a YAML file, the name of one in configs/, or --model and --method in its place.
    """


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    reporter = Reporter(as_json="--json" in arguments)

    def call() -> int:
        try:
            return cli.main(arguments, prog_name="trt-spec", standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return UsageError.exit_code
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx is not None else "trt-spec"
            raise UsageError(error.format_message(), remedy=f"{command} --help") from None
        except click.Abort:
            raise KeyboardInterrupt from None

    sys.exit(guarded(reporter, call))
