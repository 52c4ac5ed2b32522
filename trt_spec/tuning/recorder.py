"""An engine under observation: what each step cost, by part, and what became of every draft.

Drafters and targets are called through these wrappers while it lasts; the engine itself knows nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from trt_spec.runtime.acceptance import Draft
from trt_spec.runtime.drafters.base import Drafter
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.randomness import Randomness
from trt_spec.runtime.request import Chunk
from trt_spec.runtime.sequence import Sequence

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
    """One step.

    Attributes:
        batch: sequences that decoded. has_prompt: whether prompts were read too.
        draft_s: in the drafter. target_s: in the target's forward and output layer, drafting apart. total_s: all.
        num_tokens: output tokens.
    """

    batch: int = 0
    has_prompt: bool = False
    draft_s: float = 0.0
    target_s: float = 0.0
    total_s: float = 0.0
    num_tokens: int = 0
    drafts: list[DraftRecord] = field(default_factory=list)

    @property
    def overhead_s(self) -> float:
        return self.total_s - self.draft_s - self.target_s


class StepRecorder:
    """Runs an engine's steps and records them, within `observing()`.

    Args:
        now: the clock; by default the machine's, after what runs on a GPU is done.
    """

    def __init__(self, engine: Engine, now: Now | None = None):
        self.engine, self.now = engine, now or _clock_of(engine.target.device)
        self._current = StepRecord()
        self._is_drafting = False

    def step(self) -> tuple[StepRecord, list[Chunk]]:
        """One step of the engine."""
        scheduler = self.engine.scheduler
        decoding = [sequence for sequence in scheduler.running if sequence.is_decoding]
        has_prompt = len(decoding) < len(scheduler.running)
        has_prompt |= bool(scheduler.waiting) and len(scheduler.running) < scheduler.max_batch_size
        record = self._current = StepRecord(len(decoding), has_prompt)
        started = self.now()
        chunks = self.engine.step()
        record.total_s = self.now() - started
        record.num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        return record, chunks

    @contextmanager
    def observing(self) -> Iterator[StepRecorder]:
        """Puts the wrappers in place, and takes them away at the end."""
        engine, target, drafter = self.engine, self.engine.target, self.engine.drafter
        before = {name: vars(target).get(name) for name in ("forward", "logits")}
        for name in before:
            setattr(target, name, self._timed(getattr(target, name)))
        if drafter is not None:
            engine.drafter = _Observed(drafter, self)
        try:
            yield self
        finally:
            engine.drafter = drafter
            for name, own in before.items():
                delattr(target, name)  # the class's own method shows again
                if own is not None:
                    setattr(target, name, own)

    def _timed(self, function: Callable) -> Callable:
        def run(*args, **kwargs):
            if self._is_drafting:  # heads go through the target's output layer; that is drafting
                return function(*args, **kwargs)
            started = self.now()
            result = function(*args, **kwargs)
            self._current.target_s += self.now() - started
            return result

        return run

    @contextmanager
    def drafting(self) -> Iterator[StepRecord]:
        """What runs inside counts as drafting."""
        started, self._is_drafting = self.now(), True
        try:
            yield self._current
        finally:
            self._is_drafting = False
            self._current.draft_s += self.now() - started


class _Observed(Drafter):
    """A drafter that is watched."""

    def __init__(self, inner: Drafter, recorder: StepRecorder):
        self.inner, self.recorder = inner, recorder
        self.caches, self.capture, self.max_positions = inner.caches, inner.capture, inner.max_positions
        self._asked: dict[str, int] = {}

    def observe(self, prompts, hidden) -> None:
        with self.recorder.drafting():
            self.inner.observe(prompts, hidden)

    def within(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int]) -> list[int]:
        with self.recorder.drafting():
            return self.inner.within(sequences, max_lens)

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        with self.recorder.drafting():
            drafts = self.inner.propose(sequences, max_lens, source)
        ids = [sequence.request.request_id for sequence in sequences]
        self._asked = dict(zip(ids, max_lens, strict=True))
        return drafts

    def commit(self, sequences, drafts, verdicts, hidden) -> None:
        with self.recorder.drafting() as record:
            self.inner.commit(sequences, drafts, verdicts, hidden)
        for sequence, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
            request_id = sequence.request.request_id
            if request_id in self._asked:
                depth = 1 + max(draft.tree.depths, default=-1)
                record.drafts.append(DraftRecord(request_id, self._asked[request_id], depth, len(verdict.path)))
        self._asked = {}

    def release(self, sequence: Sequence) -> None:
        self.inner.release(sequence)

    def snapshot(self, sequence: Sequence) -> object:
        return self.inner.snapshot(sequence)

    def restore(self, sequence: Sequence, snapshot: object) -> None:
        self.inner.restore(sequence, snapshot)


def _clock_of(device: torch.device) -> Now:
    if device.type != "cuda":
        return time.perf_counter

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now
