"""`trt-spec plan`: what a build would do."""

from __future__ import annotations

import click

from trt_spec.cli.options import run_options
from trt_spec.report.console import Reporter
from trt_spec.run import Run


@click.command()
@run_options
def plan(reporter: Reporter, run: Run) -> None:
    """Show what a build would do.

    The commands, the steps and every file written. Runs and writes nothing."""
    from trt_spec.cli import views
    from trt_spec.engines.builder import plan_run

    planned = plan_run(run.config, run=run.words)
    for note in planned.notes:
        reporter.note(note)
    reporter.result(planned.as_dict(), views.plan(planned))
