"""`trt-spec serve`: a tritonserver."""

from __future__ import annotations

import click

from trt_spec.cli.options import run_options
from trt_spec.errors import CheckpointError, UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import Run


@click.command()
@click.option("--openai-port", type=click.IntRange(1, 65535), help="Also serve OpenAI's API, on this port.")
@click.option("--openai-host", metavar="ADDRESS", help="Where that listens (default: 127.0.0.1).")
@run_options
def serve(reporter: Reporter, run: Run, openai_port: int | None, openai_host: str | None) -> None:
    """Serve triton_repo/<run>/ with tritonserver.

    In the foreground, on 127.0.0.1; Ctrl-C lets requests finish and stops the server."""
    from trt_spec.serve.run import check_backend, serve_until_signal

    check_backend(run.config, run.words)
    if openai_port is None:
        if openai_host is not None:
            raise UsageError("--openai-host needs --openai-port")
        serve_until_signal(run.config, run.repository_dir, reporter)
        return
    from trt_spec.run import find_tokenizer
    from trt_spec.serve.openai.server import HOST, OpenAIServer

    try:
        tokenizer = find_tokenizer(run)
    except CheckpointError:
        tokenizer = None
        reporter.note("no tokenizer here: the OpenAI front takes prompts as token ids, and no chats")
    front = OpenAIServer(openai_port, host=openai_host or HOST)
    serve_until_signal(run.config, run.repository_dir, reporter, front, tokenizer)
