"""Latency metrics, each with its formula, from raw records alone. Times in, milliseconds out; tokens are token ids.

    ttft = first chunk − due               tpot = (latency − ttft) / (output tokens − 1)
    latency = last chunk − due             inter-chunk gap = chunk i + 1 − chunk i
    tokens per chunk = output tokens / chunks
    output token throughput = output tokens / (last chunk of all − first due of all)
    goodput = requests that keep the SLO / the same time

A gap between chunks is not a time per token: a chunk can hold several tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_spec.errors import MachineError
from trt_spec.gate.records import RequestRecord

_CURVE_POINTS = 41


@dataclass(frozen=True)
class Slo:
    """A request is good where it keeps both limits; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def is_stated(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None

    def keeps(self, record: RequestRecord) -> bool:
        """Whether a request was good."""
        is_early = self.ttft_ms is None or ttft_ms(record) <= self.ttft_ms
        return is_early and (self.tpot_ms is None or tpot_ms(record) <= self.tpot_ms)


def ttft_ms(record: RequestRecord) -> float:
    """Time to first token, from when the request was due: a client that is late does not hide a wait."""
    return (record.chunk_ns[0] - record.due_ns) / 1e6


def latency_ms(record: RequestRecord) -> float:
    """Time to the last token."""
    return (record.chunk_ns[-1] - record.due_ns) / 1e6


def tpot_ms(record: RequestRecord) -> float:
    """Time per output token after the first.

    Raises:
        MachineError: fewer than two tokens came.
    """
    if record.num_output_tokens < 2:
        raise MachineError(
            "an answer is too short for a time per token",
            where=record.prompt,
            got=f"{record.num_output_tokens} tokens",
            expected="at least 2",
            remedy="the server may not honour ignore_eos; take other prompts",
        )
    return (latency_ms(record) - ttft_ms(record)) / (record.num_output_tokens - 1)


def inter_chunk_gaps_ms(record: RequestRecord) -> list[float]:
    """Times between neighbouring chunks."""
    return [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(record.chunk_ns)]


def elapsed_s(records: Sequence[RequestRecord]) -> float:
    """From the first request that was due to the last chunk."""
    return (max(record.chunk_ns[-1] for record in records) - min(record.due_ns for record in records)) / 1e9


def num_output_tokens(records: Iterable[RequestRecord]) -> int:
    return sum(record.num_output_tokens for record in records)


def summary(blocks: Sequence[Sequence[RequestRecord]], slo: Slo) -> dict[str, Any]:
    """Every metric of one arm at one load.

    Args:
        blocks: its records, block by block; time between blocks does not count.
    """
    records = [record for block in blocks for record in block]
    seconds = sum(map(elapsed_s, blocks))
    ttft, tpot = [ttft_ms(r) for r in records], [tpot_ms(r) for r in records]
    gaps = [gap for record in records for gap in inter_chunk_gaps_ms(record)]
    tokens = num_output_tokens(records)
    found: dict[str, Any] = {
        "num_requests": len(records),
        "num_output_tokens": tokens,
        "seconds": seconds,
        "output_token_throughput_per_s": tokens / seconds,
        "tokens_per_chunk": tokens / sum(len(record.chunk_ns) for record in records),
    }
    for name, values in (("ttft", ttft), ("tpot", tpot), ("inter_chunk_gap", gaps), ("latency", _latencies(records))):
        found |= {f"{name}_p{share}_ms": _quantile(values, share / 100) for share in (50, 99)}
    if slo.is_stated:
        found["goodput_per_s"] = sum(map(slo.keeps, records)) / seconds
    shares = np.linspace(0, 1, _CURVE_POINTS)
    curves = {"ttft_ms": ttft, "tpot_ms": tpot}
    found["curves"] = {name: np.round(np.quantile(values, shares), 4).tolist() for name, values in curves.items()}
    return {**found, "acceptance": acceptance(records)}


def acceptance(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Sums over requests; None for what the server does not tell of every one."""
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    found: dict[str, Any] = {name: _total([getattr(record, name) for record in records]) for name in names}
    drafts, drafted, accepted = found.values()
    found["acceptance_rate"] = accepted / drafted if drafted and accepted is not None else None
    found["mean_acceptance_length"] = 1 + accepted / drafts if drafts and accepted is not None else None
    per_pos = [record.num_accepted_tokens_per_pos for record in records]
    if not drafts or any(counts is None for counts in per_pos):
        return {**found, "rate_per_pos": None}
    longest = max(map(len, per_pos))
    sums = [sum(counts[i] for counts in per_pos if i < len(counts)) for i in range(longest)]
    return {**found, "rate_per_pos": [count / drafts for count in sums]}


def _latencies(records: Sequence[RequestRecord]) -> list[float]:
    return [latency_ms(record) for record in records]


def _total(values: Sequence[int | None]) -> int | None:
    return None if any(value is None for value in values) else sum(values)


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Linear between order statistics; of under 100 values p99 lies between the two largest."""
    return float(np.quantile(values, share)) if values else None
