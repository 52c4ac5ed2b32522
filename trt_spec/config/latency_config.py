"""The `latency` section: what `trt-spec gate` measures, and what it demands."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from trt_spec.config.section import Section

Workload = Literal["chat", "code_completion", "code_editing", "summarising"]
WORKLOADS: tuple[str, ...] = get_args(Workload)

Concurrency = Annotated[int, Field(ge=1, le=4096)]


class LatencyConfig(Section):
    """What the latency gate measures and demands."""

    workload: Workload = Field("chat", description="The prompts that `trt-spec gate` sends.")
    concurrencies: tuple[Concurrency, ...] = Field(
        (1, 2, 4, 8, 16),
        min_length=1,
        strict=False,
        description="Numbers of concurrent requests to measure at, rising.",
    )
    max_tokens: int = Field(
        24, ge=2, le=65536, description="Output tokens of each measured request; the end of text does not stop it."
    )
    min_speedup: dict[Annotated[int, Field(strict=False, ge=1)], Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Concurrency to least output-token throughput with speculation, as a multiple of the same engine "
        "without: the committed floors of the gate. A concurrency without one is measured, not judged.",
    )
    max_ttft_p99_ratio: float = Field(
        1.05, ge=1, description="Most that TTFT p99 with speculation may be, as a multiple of that without."
    )
    slo_ttft_ms: float | None = Field(
        None, gt=0, description="Longest TTFT of a good request, for goodput. Without both limits there is no goodput."
    )
    slo_tpot_ms: float | None = Field(None, gt=0, description="Longest TPOT of a good request, for goodput.")
