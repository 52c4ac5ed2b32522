"""Speed-ups that others published, and what the roofline makes of them.

EAGLE-3 (Li et al. 2025, arXiv 2503.01840), throughput by batch size with Llama-3.1-8B-Instruct on MT-bench: SGLang on
one H100, chains of 3 (and 158.34 tokens/s without drafts at batch 1); vLLM on one A100, chains of 2. How often chains
are accepted is not published, so one acceptance rate per row is fitted to the smallest batch; the other sizes are
predicted. The context of 512 tokens is ours.

Medusa-2 (Cai et al. 2024, arXiv 2401.10774), batch 1 on an A100, trees of 64 nodes from 5 heads: tokens per step
("acceleration rate") and speed-up are published; tokens/s without Medusa are read off its figure.
"""

from __future__ import annotations

from dataclasses import dataclass

from trt_spec.tuning.model_shapes import find
from trt_spec.tuning.planner import Planner
from trt_spec.tuning.roofline import Roofline, find_gpu
from trt_spec.tuning.survival import AcceptanceProfile

CONTEXT = 512


@dataclass(frozen=True)
class Row:
    """One published speed-up beside ours; `is_fitted` where the acceptance rate was taken from it."""

    what: str
    published: float
    predicted: float
    is_fitted: bool = False

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


EAGLE3 = {
    ("SGLang, H100", "H100", 3): {
        2: 1.81,
        4: 1.82,
        8: 1.62,
        16: 1.48,
        24: 1.39,
        32: 1.32,
        48: 1.38,
        56: 1.34,
        64: 1.38,
    },
    ("vLLM, A100", "A100", 2): {2: 1.75, 4: 1.68, 8: 1.58, 16: 1.49, 24: 1.42, 32: 1.36, 48: 1.21, 56: 1.01},
}
# model: (tokens per step, speed-up, plain tokens/s)
MEDUSA2 = {
    "vicuna-7b": (3.47, 2.83, 45),
    "zephyr-7b": (3.14, 2.66, 41),
    "vicuna-13b": (3.51, 2.83, 35),
    "vicuna-33b": (3.01, 2.35, 18),
}


def eagle3_rows() -> list[Row]:
    """Both tables of EAGLE-3."""
    rows = []
    for (label, gpu, length), published in EAGLE3.items():
        roofline = Roofline(find_gpu(gpu), find("llama-3.1-8b"), "eagle3", context=CONTEXT)
        first = min(published)
        rate = _fit(roofline, length, first, published[first])
        planner = Planner(roofline, AcceptanceProfile.given([rate] * length))
        for batch, speedup in published.items():
            found = planner.forecast(batch, length).speedup
            rows.append(Row(f"EAGLE-3, {label}, batch {batch}", speedup, found, is_fitted=batch == first))
    return rows


def _fit(roofline: Roofline, length: int, batch: int, speedup: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        planner = Planner(roofline, AcceptanceProfile.given([middle] * length))
        low, high = (middle, high) if planner.forecast(batch, length).speedup < speedup else (low, middle)
    return low


def medusa_rows() -> list[Row]:
    """Tokens per step over what a step with 64 rows and 5 heads costs."""
    rows = []
    for model, (tokens, speedup, plain) in MEDUSA2.items():
        shape = find(model)
        roofline = Roofline(find_gpu("A100"), shape, "medusa", context=CONTEXT).calibrated(plain)
        step = roofline.draft_ms(1, 5) + roofline.verify_ms(1, 64)
        rows.append(Row(f"Medusa-2, {model}", speedup, tokens * roofline.verify_ms(1, 1) / step))
    return rows


def mean_absolute_error(rows: list[Row]) -> float:
    """Over the rows that nothing was fitted to."""
    errors = [abs(row.error) for row in rows if not row.is_fitted]
    return sum(errors) / len(errors)
