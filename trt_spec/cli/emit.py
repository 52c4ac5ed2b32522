"""`trt-spec emit`: a model repository."""

from __future__ import annotations

from pathlib import Path

import click

from trt_spec.cli.options import run_options
from trt_spec.report.console import Reporter
from trt_spec.run import REPOSITORIES_DIR, Run


@click.command()
@run_options
def emit(reporter: Reporter, run: Run) -> None:
    """Write triton_repo/<run>/ for the built engine."""
    from trt_spec.report import tables
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
