"""`trt-spec convert`: a checkpoint as a version of TensorRT-LLM reads it."""

from __future__ import annotations

import click

from trt_spec.cli.options import output_options
from trt_spec.config import versions
from trt_spec.config.places import checkpoint_path
from trt_spec.report.console import Reporter


@click.command()
@click.argument("checkpoint")
@click.option("--for", "build_target", type=click.Choice(["tensorrt", "llmapi"]), required=True, help="Who reads it.")
@click.option(
    "--tensorrt-llm-version",
    "version",
    metavar="V",
    help=f"Version of TensorRT-LLM (default: {versions.DEFAULT_VERSION['llmapi']}).",
)
@click.option("--out", "out_dir", metavar="DIR", required=True, help="Where to; an earlier conversion is replaced.")
@click.option("--target", metavar="CKPT", help="The target that draft heads are for; checks that they fit.")
@output_options
def convert(
    reporter: Reporter, checkpoint: str, build_target: str, version: str | None, out_dir: str, target: str | None
) -> None:
    """Write CHECKPOINT as TensorRT-LLM reads it.

    Draft heads under the names and with the config.json that the version looks for, tied heads written out. Needs no
    TensorRT-LLM, no GPU and little memory. Writes nothing where the version reads CHECKPOINT as it is."""
    from trt_spec.checkpoints.trtllm import normalise
    from trt_spec.cli import views

    checkpoint, target = checkpoint_path(checkpoint), target and checkpoint_path(target)
    version = version or versions.DEFAULT_VERSION[build_target]
    with reporter.progress(f"converting {checkpoint}") as advance:
        done = normalise.convert(
            checkpoint, out_dir, build_target, version, target, lambda fraction: advance(fraction, None)
        )
    for note in done.notes:
        reporter.note(note)
    path = out_dir if done.is_needed else checkpoint
    reporter.result({"path": path, **done.as_dict()}, views.conversion(path, done))
