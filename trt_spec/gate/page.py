"""The latency gate as one self-contained HTML page."""

from __future__ import annotations

from trt_spec.gate import plots as gate_plots
from trt_spec.gate.result import GateResult
from trt_spec.report import plots
from trt_spec.report.page import render

# Name, key of a summary, digits, ratio of the two arms.
METRICS = (
    ("output tokens/s", "output_token_throughput_per_s", 1, "speedup"),
    ("TTFT p50, ms", "ttft_p50_ms", 1, ""),
    ("TTFT p99, ms", "ttft_p99_ms", 1, "ttft_p99"),
    ("TPOT p50, ms", "tpot_p50_ms", 2, "tpot_p50"),
    ("TPOT p99, ms", "tpot_p99_ms", 2, "tpot_p99"),
    ("inter-chunk gap p50, ms", "inter_chunk_gap_p50_ms", 2, ""),
    ("inter-chunk gap p99, ms", "inter_chunk_gap_p99_ms", 2, ""),
    ("tokens per chunk", "tokens_per_chunk", 2, ""),
    ("goodput, requests/s", "goodput_per_s", 3, "goodput"),
)


def page(found: GateResult) -> str:
    """The whole page."""
    limits = (("TTFT", found.slo.ttft_ms), ("TPOT", found.slo.tpot_ms)) if found.slo else ()
    slo = ", ".join(f"{name} {value:g} ms" for name, value in limits if value)
    metrics = [metric for metric in METRICS if found.slo or metric[1] != "goodput_per_s"]
    return render("gate.html", found=found, metrics=metrics, slo=slo, plots=plots, gate_plots=gate_plots)
