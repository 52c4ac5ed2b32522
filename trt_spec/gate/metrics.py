"""Latency metrics of one arm, each with its formula, from traces alone; those of one answer are `Trace`'s.

tokens per chunk = output tokens / chunks
output token throughput = output tokens / (last chunk of all − first due of all)
goodput = requests that keep the SLO / the same time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from trt_spec.clients.trace import Totals, Trace
from trt_spec.errors import MachineError

_CURVE_POINTS = 41


@dataclass(frozen=True)
class Slo:
    """A request is good where it keeps both limits; None is no limit."""

    ttft_ms: float | None
    tpot_ms: float | None

    @property
    def is_stated(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None

    def keeps(self, trace: Trace) -> bool:
        """Whether a request was good."""
        is_early = self.ttft_ms is None or trace.ttft_ms <= self.ttft_ms
        return is_early and (self.tpot_ms is None or tpot_ms(trace) <= self.tpot_ms)


NO_SLO = Slo(None, None)


@dataclass(frozen=True)
class Curves:
    """Quantiles from 0 to 1 in equal steps."""

    ttft_ms: list[float]
    tpot_ms: list[float]


@dataclass(frozen=True)
class Acceptance:
    """Sums over requests; None for what the server does not tell of every one, and for rates of nothing."""

    num_drafts: int | None
    num_draft_tokens: int | None
    num_accepted_tokens: int | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    rate_per_pos: list[float] | None


@dataclass(frozen=True)
class ArmSummary:
    """Every metric of one arm at one load.

    Attributes:
        seconds: of its blocks; time between blocks does not count.
        goodput_per_s: None where no SLO is stated.
    """

    num_requests: int
    num_output_tokens: int
    seconds: float
    output_token_throughput_per_s: float
    tokens_per_chunk: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    inter_chunk_gap_p50_ms: float | None
    inter_chunk_gap_p99_ms: float | None
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    goodput_per_s: float | None = field(default=None, kw_only=True)
    curves: Curves
    acceptance: Acceptance


def tpot_ms(trace: Trace) -> float:
    """Time per output token after the first.

    Raises:
        MachineError: fewer than two tokens came.
    """
    if trace.tpot_ms is None:
        raise MachineError(
            "an answer is too short for a time per token",
            where=trace.prompt,
            got=f"{trace.num_output_tokens} tokens",
            expected="at least 2",
            remedy="the server may not honour ignore_eos; take other prompts",
        )
    return trace.tpot_ms


def elapsed_s(traces: Sequence[Trace]) -> float:
    """From the first request that was due to the last chunk."""
    return (max(trace.chunk_ns[-1] for trace in traces) - min(trace.due_ns for trace in traces)) / 1e9


def summary(blocks: Sequence[Sequence[Trace]], slo: Slo) -> ArmSummary:
    """Every metric of one arm's blocks at one load."""
    traces = [trace for block in blocks for trace in block]
    seconds, tokens = sum(map(elapsed_s, blocks)), sum(trace.num_output_tokens for trace in traces)
    values = {
        "ttft": [trace.ttft_ms for trace in traces],
        "tpot": [tpot_ms(trace) for trace in traces],
        "inter_chunk_gap": [gap for trace in traces for gap in trace.inter_chunk_gaps_ms],
        "latency": [trace.latency_ms for trace in traces],
    }
    shares = np.linspace(0, 1, _CURVE_POINTS)
    return ArmSummary(
        num_requests=len(traces),
        num_output_tokens=tokens,
        seconds=seconds,
        output_token_throughput_per_s=tokens / seconds,
        tokens_per_chunk=tokens / sum(len(trace.chunk_ns) for trace in traces),
        **{f"{name}_p{share}_ms": _quantile(values[name], share / 100) for name in values for share in (50, 99)},
        goodput_per_s=sum(map(slo.keeps, traces)) / seconds if slo.is_stated else None,
        curves=Curves(*(np.round(np.quantile(values[name], shares), 4).tolist() for name in ("ttft", "tpot"))),
        acceptance=acceptance(traces),
    )


def acceptance(traces: Sequence[Trace]) -> Acceptance:
    """What drafts gave in all."""
    drafts = Totals.of(traces).drafts
    return Acceptance(**{each.name: getattr(drafts, each.name, None) for each in fields(Acceptance)})


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Linear between order statistics; of under 100 values p99 lies between the two largest."""
    return float(np.quantile(values, share)) if values else None
