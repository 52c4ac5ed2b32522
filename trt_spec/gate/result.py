"""What the gate found, as gate.json has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trt_spec.gate.bootstrap import Interval
from trt_spec.gate.metrics import ArmSummary, Slo
from trt_spec.gate.records import Arm

Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Check:
    """One demand and what became of it."""

    name: str
    verdict: Verdict
    words: str


@dataclass(frozen=True)
class LoadResult:
    """One load.

    Attributes:
        floor: least speed-up; None where none is demanded.
        ratios: speculation over plain, by name: speedup, tpot_p50, tpot_p99, ttft_p99, and goodput where an SLO is
            stated; None where a ratio is not defined, such as goodput without one good request.
        noise: half-width of the A/A interval of the logarithm of each, for as many pairs as the ratio has.
        per_pair: speed-up of each pair of blocks, in the order of time.
    """

    load: str
    verdict: Verdict
    floor: float | None
    ratios: Mapping[str, Interval | None]
    noise: Mapping[str, float | None]
    per_pair: tuple[float, ...]
    arms: Mapping[Arm, ArmSummary]


@dataclass(frozen=True)
class Measured:
    """What was measured, with what; the first line of the records says it."""

    run: str
    words: str
    server: str
    plain_server: str
    workload: str
    max_tokens: int
    num_pairs: int
    seconds: float
    notes: list[str]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """The verdict on records.

    Attributes:
        alpha: probability that the run fails though every true ratio keeps its demand.
        confidence: of each interval.
        slo: None where none is stated.
    """

    verdict: Verdict
    alpha: float
    num_checks: int
    confidence: float
    max_ttft_p99_ratio: float
    slo: Slo | None
    checks: list[Check]
    loads: list[LoadResult]


@dataclass(frozen=True)
class GateResult(Judged, Measured):
    """All of gate.json.

    Attributes:
        reason: the verdict in a sentence.
        floors_from: the file that the demands are from.
    """

    reason: str
    floors_from: str
