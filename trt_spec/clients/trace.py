"""One answer as its asker saw it: ids, text, times, origins and counters. Everything above an engine judges traces.

    ttft = first chunk - due        tpot = (latency - ttft) / (output tokens - 1)
    latency = last chunk - due      inter-chunk gap = chunk i + 1 - chunk i

A gap between chunks is not a time per token: a chunk can hold several tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trt_spec.errors import MachineError
from trt_spec.runtime.request import Chunk, join
from trt_spec.runtime.stats import DraftCounts


@dataclass(frozen=True)
class Trace:
    """One answer. Times are nanoseconds of the asker's monotonic clock; only chunks that hold tokens count.

    Attributes:
        prompt: its name.
        token_ids: of the output; None where the server tells only how many there were.
        text: of the output.
        due_ns: when the request should have been sent; latency counts from here, so a late asker hides no wait.
        sent_ns: when it was sent.
        chunk_ns: when each chunk was there.
        chunk_tokens: tokens of each; None where the server only tells their sum.
        num_input_tokens, num_output_tokens: counted from ids, by us or by the server.
        finish_reason, stop_reason: as `Completion` has them; "" and None where not told.
        token_origins, logprobs: one per output token of a right server; None where not told.
        drafts: what drafts gave; None where not told.
    """

    due_ns: int
    sent_ns: int
    chunk_ns: tuple[int, ...]
    chunk_tokens: tuple[int, ...] | None
    num_input_tokens: int
    num_output_tokens: int
    prompt: str = ""
    token_ids: tuple[int, ...] | None = None
    text: str = ""
    finish_reason: str = ""
    stop_reason: str | int | None = None
    token_origins: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    drafts: DraftCounts | None = None

    @property
    def ttft_ms(self) -> float:
        """Time to first token."""
        return (self.chunk_ns[0] - self.due_ns) / 1e6

    @property
    def latency_ms(self) -> float:
        """Time to the last token."""
        return (self.chunk_ns[-1] - self.due_ns) / 1e6

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; None below two tokens."""
        if self.num_output_tokens < 2:
            return None
        return (self.chunk_ns[-1] - self.chunk_ns[0]) / 1e6 / (self.num_output_tokens - 1)

    @property
    def inter_chunk_gaps_ms(self) -> list[float]:
        """Times between neighbouring chunks."""
        return [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(self.chunk_ns)]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trace:
        """The trace of what `asdict` gave; TypeError where a field is missing, or unknown."""
        drafts = values.get("drafts")
        read = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**{**read, "drafts": drafts and DraftCounts(**drafts)})


@dataclass(frozen=True)
class Totals:
    """Traces added up: what an arm of a measurement gave. The prompt's own step gives the first token of each."""

    num_answers: int
    num_tokens: int
    ttft_ms: float
    latency_ms: float
    drafts: DraftCounts | None

    @classmethod
    def of(cls, traces: Iterable[Trace]) -> Totals:
        """The sums; `drafts` only where every trace tells."""
        found = list(traces)
        counts = [trace.drafts for trace in found if trace.drafts is not None]
        return cls(
            len(found),
            sum(trace.num_output_tokens for trace in found),
            sum(trace.ttft_ms for trace in found),
            sum(trace.latency_ms for trace in found),
            DraftCounts.total(counts) if len(counts) == len(found) else None,
        )

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of latency, one request at a time."""
        return 1e3 * self.num_tokens / self.latency_ms

    @property
    def mean_ttft_ms(self) -> float:
        return self.ttft_ms / self.num_answers

    @property
    def tpot_ms(self) -> float | None:
        """Milliseconds per token after the first of each answer; None where there are none."""
        decoded = self.num_tokens - self.num_answers
        return (self.latency_ms - self.ttft_ms) / decoded if decoded else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens of a decoding step, drafted or not; None where drafts are not told."""
        if self.drafts is None:
            return None
        decoded = self.num_tokens - self.num_answers
        return decoded / max(decoded - self.drafts.num_accepted_tokens, 1)


@dataclass
class CountedChunk(Chunk):
    """A chunk of a server that tells how many tokens it holds, and not which.

    Attributes:
        num_tokens: None where it holds none, 0 where the server does not say how many.
    """

    num_tokens: int | None = None


def trace_of(
    chunks: Iterable[tuple[int, Chunk]],
    *,
    sent_ns: int,
    due_ns: int | None = None,
    prompt: str = "",
    may_be_empty: bool = False,
) -> Trace:
    """The trace of one answer from its chunks and when each was there.

    Raises:
        TrtSpecError: the request's own error.
        MachineError: the answer has no end, or no token where it may not be empty. An empty one has no times.
    """
    seen = list(chunks)
    whole = join([chunk for _, chunk in seen]) if seen else None
    done = whole and whole.completion
    has_ids = not any(isinstance(chunk, CountedChunk) for _, chunk in seen)  # all are, or none
    sizes = ((now_ns, len(chunk.token_ids) or None if has_ids else chunk.num_tokens) for now_ns, chunk in seen)
    timed = [(now_ns, size) for now_ns, size in sizes if size is not None]
    if done is None or not (timed or may_be_empty):
        raise MachineError("an answer without tokens", where=prompt, got=done and done.finish_reason)
    counts = tuple(size for _, size in timed)
    num_output_tokens = len(whole.token_ids) if has_ids else done.num_output_tokens
    return Trace(
        sent_ns if due_ns is None else due_ns,
        sent_ns,
        tuple(now_ns for now_ns, _ in timed),
        counts if sum(counts) == num_output_tokens else None,  # not told rather than wrong
        done.num_input_tokens,
        num_output_tokens,
        prompt=prompt,
        token_ids=tuple(whole.token_ids) if has_ids else None,
        text=whole.text,
        finish_reason=done.finish_reason,
        stop_reason=done.stop_reason,
        token_origins=tuple(whole.token_origins) or None,
        logprobs=None if whole.logprobs is None else tuple(whole.logprobs),
        drafts=done.drafts,
    )
