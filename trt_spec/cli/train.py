"""`trt-spec train`, mounted by cli.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from trt_spec.cli.options import run_options
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import Run, ensure_demo_checkpoint

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)
COUNT = click.IntRange(min=1)


@click.command()
@click.option(
    "--prompts", "prompts_path", type=FILE, help="Your own prompts, JSONL (default: seeds, and the target's)."
)
@click.option("--tokens", "num_tokens", type=COUNT, default=1_000_000, show_default=True, help="Reply tokens of text.")
@click.option("--reply-tokens", type=COUNT, default=160, show_default=True, help="Most tokens of one reply.")
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True), default=4.0, show_default=True, help="Passes.")
@click.option("--steps", "num_steps", type=COUNT, help="Optimiser steps, in place of --epochs.")
@click.option("--batch-tokens", type=COUNT, default=4096, show_default=True, help="Tokens of one step.")
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), help="At its peak (default: by method).")
@click.option("--positions", "num_positions", type=COUNT, help="Draft positions to train for (eagle3, mtp).")
@click.option("--draft-vocab-size", type=COUNT, default=8192, show_default=True, help="Tokens eagle3 drafts.")
@click.option("--heads", "num_heads", type=COUNT, help="Heads of medusa (default: max_draft_len, at least 4).")
@click.option("--blocks", "num_blocks", type=COUNT, default=1, show_default=True, help="Residual blocks of a head.")
@click.option("--layers", "num_layers", type=COUNT, default=4, show_default=True, help="Layers of a draft_model.")
@click.option("--held-out-tokens", type=click.IntRange(0), default=128, show_default=True, help="0: measure nothing.")
@click.option("--from", "start_dir", type=DIRECTORY, help="A checkpoint of an earlier run to go on from.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of text, weights and order.")
@click.option("--threads", type=COUNT, help="CPU threads (default: what torch takes).")
@click.option("--licence", help="Of the checkpoint, for its card (default: what the target's files state).")
@click.option("--output", type=DIRECTORY, help="Where it goes (default: speculation.checkpoint; mtp has to be told).")
@click.option(
    "--cache",
    "cache_dir",
    type=DIRECTORY,
    default=Path("training_data"),
    show_default=True,
    help="Text, features, state.",
)
@run_options
def train(reporter: Reporter, run: Run, output: Path | None, threads: int | None, **options: Any) -> None:
    """Make a draft for a target.

    An EAGLE-3 head, Medusa heads, an MTP layer or a small draft model, by the run's method, from text that the target
    writes itself or replies that it gives to your prompts. Text, features and the state of the training are kept: the
    same command goes on after a kill, and does not make again what is there. The checkpoint gets a card that says what
    it was trained on and what is accepted of its drafts on held-out prompts."""
    named = run.config.speculation.checkpoint
    if output is None and named is None:
        raise UsageError("where should the result go?", remedy="give --output DIR")
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    ensure_demo_checkpoint(run.config.target.checkpoint, reporter)
    import torch

    from trt_spec.cli import views
    from trt_spec.training.options import TrainOptions
    from trt_spec.training.session import Session

    if threads is not None:
        torch.set_num_threads(threads)
    chosen = TrainOptions(output=output or Path(named), **options)
    written = Session(run.config, chosen, reporter.progress, reporter.note).run()
    reporter.result({"output": str(chosen.output), **written}, views.trained(str(chosen.output), written))
