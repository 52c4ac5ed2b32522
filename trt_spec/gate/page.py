"""The latency gate as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from trt_spec.gate import plots as gate_plots
from trt_spec.report import plots
from trt_spec.report.page import html, origin, table, tiles

Found = Mapping[str, Any]
ARMS = ("plain", "speculation")
# Name, key of a summary, digits.
METRICS = (
    ("output tokens/s", "output_token_throughput_per_s", 1),
    ("TTFT p50, ms", "ttft_p50_ms", 1),
    ("TTFT p99, ms", "ttft_p99_ms", 1),
    ("TPOT p50, ms", "tpot_p50_ms", 2),
    ("TPOT p99, ms", "tpot_p99_ms", 2),
    ("inter-chunk gap p50, ms", "inter_chunk_gap_p50_ms", 2),
    ("inter-chunk gap p99, ms", "inter_chunk_gap_p99_ms", 2),
    ("tokens per chunk", "tokens_per_chunk", 2),
    ("goodput, requests/s", "goodput_per_s", 3),
)
RATIO_OF = {
    "output_token_throughput_per_s": "speedup",
    "ttft_p99_ms": "ttft_p99",
    "tpot_p50_ms": "tpot_p50",
    "tpot_p99_ms": "tpot_p99",
    "goodput_per_s": "goodput",
}


def page(found: Found) -> str:
    """The whole page."""
    verdict = found["verdict"]
    parts = [
        f"<h1>Latency of speculative decoding · run <code>{escape(found['run'])}</code></h1>",
        f'<div class="claim {verdict}"><p class="verdict">{escape(verdict.capitalize())}</p></div>',
        f'<p class="reason">{escape(found["reason"])}.</p>',
        _tiles(found),
        *(f'<p class="note">Note: {escape(note)}.</p>' for note in found["notes"]),
        "<h2>Speed-up</h2>",
        '<p class="note">Output token throughput with speculation over that without. Dot: all pairs together. Bar: '
        f"interval at {found['confidence']:.2%}. Orange: how far plain against plain spreads (A/A), around 1. Dashed: "
        "the committed floor.</p>",
        f'<figure class="wide">{gate_plots.speedups(found["loads"])}</figure>',
        "<h2>Checks</h2>",
        table(("", "check", "found"), [(check["verdict"], check["name"], check["words"]) for check in found["checks"]]),
    ]
    for load in found["loads"]:
        parts += _load(load)
    parts += _provenance(found)
    return html(f"{found['run']}: {verdict}", parts)


def _tiles(found: Found) -> str:
    slo = found["slo"]
    limits = [f"{key.removesuffix('_ms').upper()} {value:g} ms" for key, value in (slo or {}).items() if value]
    return tiles(
        [
            (found["workload"], "prompts"),
            (str(found["max_tokens"]), "output tokens per request"),
            (str(found["num_pairs"]), "pairs of blocks per load, ABBA"),
            (f"{found['max_ttft_p99_ratio']:g}", "most TTFT p99 over plain"),
            (f"{found['alpha']:g}", f"chance that a good run fails, over {found['num_checks']} checks"),
            (", ".join(limits) or "none", "SLO of goodput"),
        ]
    )


def _load(load: Found) -> list[str]:
    arms, ratios = load["arms"], load["ratios"]
    rows = []
    for name, key, digits in METRICS:
        if key in arms["plain"]:
            values = (_number(arms[arm][key], digits) for arm in ARMS)
            rows.append((name, *values, _interval(ratios.get(RATIO_OF.get(key, "")))))
    curves = {key: {arm: arms[arm]["curves"][key] for arm in ARMS} for key in ("ttft_ms", "tpot_ms")}
    return [
        f"<h2>{escape(load['load'].capitalize())}</h2>",
        '<p class="note key"><i class="k1"></i>speculation<i class="k2"></i>plain. Ratios are speculation over plain; '
        "a gap between chunks is not a time per token.</p>",
        table(("", "plain", "speculation", "ratio and interval"), rows, numeric=(1, 2, 3)),
        '<div class="row">',
        _figure("speed-up by pair", gate_plots.pairs(load["per_pair"], load["floor"])),
        _figure("TTFT", gate_plots.distributions(curves["ttft_ms"], "TTFT")),
        _figure("TPOT", gate_plots.distributions(curves["tpot_ms"], "TPOT")),
        _acceptance(arms["speculation"]["acceptance"]),
        "</div>",
    ]


def _acceptance(told: Found) -> str:
    rate = told["acceptance_rate"]
    if rate is None:
        return _figure("the server does not tell what was accepted")
    if told["rate_per_pos"] is None:
        return _figure(f"{rate:.0%} of draft tokens accepted")
    words = f"accepted, of all drafts; {rate:.0%} of draft tokens, {told['mean_acceptance_length']:.2f} tokens per step"
    return _figure(words, plots.profile(told["rate_per_pos"], "one"))


def _figure(caption: str, svg: str = "") -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"


def _provenance(found: Found) -> list[str]:
    pairs = [
        ("command", f"trt-spec gate {found['words']}"),
        ("speculative arm", found["server"]),
        ("plain arm", found["plain_server"]),
        ("floors", found["floors_from"]),
        ("time", f"{found['seconds']:.0f} s"),
        *origin(found["provenance"]),
    ]
    return ["<h2>Where this comes from</h2>", table((), pairs)]


def _interval(ratio: Found | None) -> str:
    return "" if ratio is None else f"{ratio['estimate']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
