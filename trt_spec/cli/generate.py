"""`trt-spec generate`: one answer."""

from __future__ import annotations

from typing import Any

import click

from trt_spec.cli.options import acceptance_option, request_options, run_options
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import Run


@click.command()
@click.option("--prompt", metavar="TEXT", help="The prompt; - reads it from stdin.")
@click.option("--input-ids", metavar="IDS", help="The prompt as token ids, separated by commas or spaces.")
@click.option("--chat", "is_chat", is_flag=True, help="Wrap the prompt in the target's chat template.")
@click.option("--url", metavar="URL", help="Ask a server: host:port for HTTP, grpc://host:port for gRPC.")
@acceptance_option("The output is then not the target's, and marked so.")
@request_options
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
    from trt_spec.cli import answer, views

    text = answer.read_stdin() if prompt == "-" else prompt
    asked = answer.read_prompt(run, text, input_ids, is_chat=is_chat)
    if url is None:
        given = answer.generate_here(run, asked, parameters, reporter, acceptance)
    elif acceptance is not None:
        raise UsageError("--acceptance is for the engine in this process, not for a server", remedy="leave --url out")
    else:
        given = answer.generate_there(run, url, asked, parameters, reporter)
    found = answer.outputs(given, has_perf_metrics=parameters.get("return_perf_metrics", True))
    reporter.result({**found, "is_synthetic": True} if acceptance is not None else found)
    for line in views.completion_lines(found):
        reporter.note(line)
