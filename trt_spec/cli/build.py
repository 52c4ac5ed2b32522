"""`trt-spec build`: an engine."""

from __future__ import annotations

import click

from trt_spec.cli.options import run_options
from trt_spec.report.console import Reporter
from trt_spec.run import Run, ensure_checkpoints


@click.command()
@run_options
def build(reporter: Reporter, run: Run) -> None:
    """Build engines/<run>/ and check it.

    Inspects the checkpoints, converts them, loads the engine, and compares a few greedy outputs with speculation on
    and off. An unchanged engine is not built again. Target tensorrt runs the converters and trtllm-build, in their
    container, and goes on after the last finished step; what it built is compared with the plan."""
    from trt_spec.cli import views
    from trt_spec.engines.builder import builder_for

    builder = builder_for(run.config, run.engine_dir.parent, run.words)  # refused before anything is fetched
    ensure_checkpoints(run, reporter)
    with reporter.progress(f"building {run.engine_dir}") as advance:
        result = builder.build(advance, reporter.tool_line)
    data = {"engine_dir": str(result.engine_dir), "is_reused": result.is_reused, "seconds": round(result.seconds, 3)}
    reporter.result({**data, "manifest": result.manifest.as_dict()}, views.engine(result))
