"""`trt-spec schema`: the JSON Schema of the run config."""

from __future__ import annotations

import click

from trt_spec.cli.options import output_options
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter


@click.command()
@click.option("--markdown", "form", flag_value="markdown", help="The config reference of the README.")
@click.option("--methods", "form", flag_value="methods", help="The table of methods of the README.")
@output_options
def schema(reporter: Reporter, form: str | None) -> None:
    """Print the JSON Schema of the run config."""
    from trt_spec.config import capabilities
    from trt_spec.config.explain import known_keys
    from trt_spec.config.schema import json_schema
    from trt_spec.methods import ACCEPTANCE
    from trt_spec.report import reference

    if form is None:
        reporter.json(json_schema())
    elif reporter.as_json:
        raise UsageError(f"--{form} is Markdown, not JSON", remedy="leave --json out")
    elif form == "markdown":
        reporter.text(reference.config_reference(known_keys()))
    else:
        reporter.text(reference.methods_table(capabilities.TABLE, ACCEPTANCE))
