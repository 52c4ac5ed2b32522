"""`trt-spec inspect`: what a checkpoint is."""

from __future__ import annotations

import click

from trt_spec.cli.options import output_options
from trt_spec.config.places import checkpoint_path
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import ensure_demo_checkpoint


@click.command()
@click.argument("checkpoint")
@click.option("--target", metavar="CKPT", help="The target that a draft checkpoint has to fit.")
@output_options
def inspect(reporter: Reporter, checkpoint: str, target: str | None) -> int:
    """Tell what CHECKPOINT is, and whether it fits.

    Both are directories, single files, or names in checkpoints/. The tensors
    decide, not the names in config.json. Exit code 2 where there are problems."""
    from trt_spec.checkpoints import detect
    from trt_spec.cli import views

    checkpoint, target = checkpoint_path(checkpoint), target and checkpoint_path(target)
    for path in filter(None, (checkpoint, target)):
        ensure_demo_checkpoint(path, reporter)
    with reporter.progress(f"inspecting {checkpoint}"):
        found = detect.inspect(checkpoint, target).as_dict()
    reporter.result(found, views.inspection(found))
    return UsageError.exit_code if found["problems"] else 0
