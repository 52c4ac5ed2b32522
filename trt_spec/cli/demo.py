"""`trt-spec demo`: all of it in one go."""

from __future__ import annotations

import functools

import click

from trt_spec.cli.options import beside_option, run_options
from trt_spec.report.console import Reporter
from trt_spec.run import Run, runs_beside


@click.command()
@click.option("--max-tokens", type=click.IntRange(2, 1024), default=64, show_default=True, help="Tokens per answer.")
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
    reporter.result(result.as_dict(), result.view())
    return result.exit_code
