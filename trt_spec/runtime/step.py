"""What one step of the engine was: its chunks, where its time went, and what became of every draft."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from trt_spec.runtime.request import Chunk

Now = Callable[[], float]  # seconds


@dataclass(frozen=True)
class DraftRecord:
    """One draft: of which request, the length asked for, its depth, and how many of its tokens stood."""

    request_id: str
    asked: int
    drafted: int
    accepted: int


@dataclass
class StepRecord:
    """One step; iterating over it gives its chunks.

    Attributes:
        batch: sequences that decoded. has_prompt: whether prompts were read too.
        draft_s: in the drafter. target_s: in the target's forward and output layer, drafting apart. total_s: all.
    """

    chunks: list[Chunk] = field(default_factory=list)
    batch: int = 0
    has_prompt: bool = False
    draft_s: float = 0.0
    target_s: float = 0.0
    total_s: float = 0.0
    drafts: list[DraftRecord] = field(default_factory=list)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.chunks)

    @property
    def num_tokens(self) -> int:
        """Output tokens."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)

    @property
    def overhead_s(self) -> float:
        """Outside of drafter and target: scheduling, sampling, acceptance, text."""
        return self.total_s - self.draft_s - self.target_s


def synchronized_clock(device: torch.device) -> Now:
    """Seconds after what runs on a GPU is done; for measurements, since waiting for a GPU in each step costs time."""
    if device.type != "cuda":
        return time.perf_counter

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now
