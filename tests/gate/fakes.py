"""Records, clocks and servers that are made up: no test of the gate waits for real time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from trt_spec.clients.client import Client
from trt_spec.clients.trace import Trace
from trt_spec.gate.measure import Clock
from trt_spec.gate.records import ARMS, Placed
from trt_spec.runtime.stats import DraftCounts


def trace(
    chunks_ms: Sequence[float] = (10, 20, 30), tokens: Sequence[int] | None = (1, 2, 2), due_ms: float = 0.0, **fields
) -> Trace:
    """An answer to a request that was sent when it was due."""
    total = fields.pop("num_output_tokens", sum(tokens) if tokens is not None else len(chunks_ms))
    due_ns = round(due_ms * 1e6)
    return Trace(
        chunk_ns=tuple(round(ms * 1e6) for ms in chunks_ms),
        chunk_tokens=None if tokens is None else tuple(tokens),
        num_output_tokens=total,
        num_input_tokens=5,
        due_ns=due_ns,
        sent_ns=due_ns,
        **fields,
    )


def record(*arguments, load="", arm="plain", block=0, pair=-1, **fields) -> Placed:
    """The same with its place."""
    return Placed(trace(*arguments, **fields), load, arm, block, pair)


class FakeClock(Clock):
    """Time that only moves when somebody sleeps or works; safe to share between threads."""

    def __init__(self) -> None:
        self._now_ns, self._lock = 0, threading.Lock()

    def now_ns(self) -> int:
        with self._lock:
            return self._now_ns

    def sleep_until_ns(self, time_ns: int) -> None:
        with self._lock:
            self._now_ns = max(self._now_ns, time_ns)

    def work_ns(self, duration_ns: int) -> int:
        """Passes time, and returns what time it is then."""
        with self._lock:
            self._now_ns += duration_ns
            return self._now_ns


class FakeServer(Client):
    """Answers after a prefill and then two tokens a chunk with speculation, one without.

    Args:
        clock: moved by every answer.
        step_ms: by arm, what a chunk takes.
        ttft_ms: by arm, what the prefill takes.
    """

    def __init__(self, clock: FakeClock, step_ms=None, ttft_ms=None) -> None:
        self.clock = clock
        self.step_ms = step_ms or {"plain": 10.0, "speculation": 12.0}
        self.ttft_ms = ttft_ms or {"plain": 20.0, "speculation": 20.0}
        self.asked: list[tuple[str, str, int]] = []

    def stream(self, prompt, params, *, request_id=""):
        raise NotImplementedError

    def ask(self, prompt, params, *, request_id="", due_ns=None, now=None, on_chunk=None) -> Trace:
        arm, max_tokens, sent_ns = ARMS[params.speculation], params.sampling.max_tokens, now()
        self.asked.append((prompt.name, arm, max_tokens))
        times, counts = [self.clock.work_ns(round(self.ttft_ms[arm] * 1e6))], [1]
        while sum(counts) < max_tokens:
            counts.append(min(2 if arm == "speculation" else 1, max_tokens - sum(counts)))
            times.append(self.clock.work_ns(round(self.step_ms[arm] * 1e6)))
        drafts = len(times) - 1 if arm == "speculation" else 0
        accepted = max_tokens - 1 - drafts if drafts else 0
        counters = DraftCounts(drafts, 2 * drafts, accepted, [accepted, 0] if drafts else [])
        due_ns = sent_ns if due_ns is None else due_ns
        return Trace(due_ns, sent_ns, tuple(times), tuple(counts), 5, max_tokens, prompt.name, drafts=counters)
