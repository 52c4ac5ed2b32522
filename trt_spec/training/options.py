"""What `trt-spec train` is asked for beside the run config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trt_spec.errors import UsageError
from trt_spec.training.card import CARD_FILE
from trt_spec.training.prompts import HELD_OUT

LEARNING_RATES = {"eagle3": 1e-3, "medusa": 1e-3, "mtp": 5e-4, "draft_model": 3e-4}
TRAINABLE = tuple(LEARNING_RATES)
HELD_OUT_SHARE = 20  # of given prompts every so-manieth is held out


@dataclass(frozen=True)
class TrainOptions:
    """What the command line asks for beside the run.

    Attributes:
        output: directory of the checkpoint.
        cache_dir: where corpora, features and training states are kept.
        prompts_path: JSONL file of prompts; None takes the shipped ones and those that the target writes.
        num_tokens: reply tokens of the corpus.
        reply_tokens: most tokens of one reply.
        epochs: passes over the corpus; `num_steps` overrides it.
        num_positions: draft positions that eagle3 and mtp train for; None takes the run's draft length, at most 5.
        draft_vocab_size: tokens that eagle3 can draft, and that every step of medusa computes.
        num_heads, num_blocks: of medusa; None takes the run's draft length, at least 4.
        num_layers: of draft_model.
        row_share: share of rows that a step of medusa looks at.
        held_out_tokens: most tokens of a reply in the measurement; 0 measures nothing.
        licence: of the checkpoint, for the card.
        start_dir: a checkpoint of an earlier run to go on from, with its draft vocabulary; None starts anew.
    """

    output: Path
    cache_dir: Path
    prompts_path: Path | None = None
    num_tokens: int = 1_000_000
    reply_tokens: int = 160
    epochs: float = 4.0
    num_steps: int | None = None
    batch_tokens: int = 4096
    learning_rate: float | None = None
    num_positions: int | None = None
    draft_vocab_size: int = 8192
    num_heads: int | None = None
    num_blocks: int = 1
    num_layers: int = 4
    row_share: float = 0.25
    seed: int = 0
    held_out_tokens: int = 128
    licence: str | None = None
    start_dir: Path | None = None


def split_prompts(prompts: Sequence[str]) -> tuple[list[str], list[str]]:
    """(prompts to train on, held-out ones). The shipped held-out prompts serve where none were given."""
    if not prompts:
        return [], list(HELD_OUT)
    held_out = list(prompts[::HELD_OUT_SHARE]) if len(prompts) > 1 else list(prompts)
    return [one for one in prompts if one not in held_out] or list(prompts), held_out


def refuse_foreign(output: Path) -> None:
    """Only a checkpoint that a training run wrote is replaced."""
    if output.is_dir() and any(output.iterdir()) and not (output / CARD_FILE).is_file():
        raise UsageError(
            "the output directory holds something that no training run wrote",
            where=str(output),
            remedy="name another directory, with --output or speculation.checkpoint",
        )
    if output.exists() and not output.is_dir():
        raise UsageError("the output is in the way of a directory", where=str(output))
