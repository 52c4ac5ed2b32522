"""`trt-spec doctor`: what this machine has."""

from __future__ import annotations

from dataclasses import asdict

import click

from trt_spec.cli.options import output_options
from trt_spec.report.console import Reporter


@click.command()
@output_options
def doctor(reporter: Reporter) -> None:
    """Show what this machine has and what works on it."""
    from trt_spec import doctor as examination
    from trt_spec.cli import views

    with reporter.progress("looking at this machine"):
        report = examination.examine()
    reporter.result(asdict(report), views.doctor(report))
