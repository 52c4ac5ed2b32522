"""`trt-spec build`: an engine."""

from __future__ import annotations

import click

from trt_spec.cli.options import output_options, run_options
from trt_spec.report.console import Reporter
from trt_spec.run import Run, ensure_checkpoints


@click.command()
@output_options
@run_options
def build(reporter: Reporter, run: Run) -> None:
    """Build engines/<run>/ and check it.

    Inspects the checkpoints, converts them, loads the engine, and compares a few greedy outputs with speculation on
    and off. An unchanged engine is not built again. Target tensorrt runs the converters and trtllm-build, in their
    container, and goes on after the last finished step; what it built is compared with the plan."""
    from trt_spec.cli import views
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
