"""Ways to draft beside plain decoding, as tables: of the demo, and of `trt-spec bench --what methods`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from trt_spec.report.tables import table, titled

_FASTER, _SLOWER = 1.03, 0.97  # beyond what a run of a minute can tell from 1


def demo(result: Mapping[str, Any]) -> RenderableType:
    """The demo's table: a row per prompt, a column per run."""
    runs = result["runs"]
    shared = runs[0]  # plain decoding is the same for all of them
    header = ("prompt", "plain\ntokens/s", *(f"{name}\nspeed-up" for name in _names(runs)))
    rows = [
        (escape(row["prompt"]), _decimal(row["off"]["tokens_per_s"], 1), *(_gain(run["rows"][index]) for run in runs))
        for index, row in enumerate(shared["rows"])
    ]
    made = table(header, rows, numeric=tuple(range(1, len(header))))
    made.add_section()
    total = shared["total"]
    made.add_row("all", _decimal(total["off"]["tokens_per_s"], 1), *(_gain(run["total"]) for run in runs))
    for key, words in (("tokens_per_step", "tokens per step"), ("tpot_ms", "TPOT ms"), ("ttft_ms", "TTFT ms")):
        digits = {"tokens_per_step": 2, "tpot_ms": 1, "ttft_ms": 0}[key]
        arms = (total["off"], *(run["total"]["on"] for run in runs))
        made.add_row(words, *(_decimal(arm[key], digits) for arm in arms))
    made.add_row("greedy outputs", "", *(_outcomes(run["rows"]) for run in runs))
    target = Path(result["target"]).name
    title = f"Drafts beside plain decoding: {target}, {result['dtype']}, batch 1, through tritonserver"
    return titled(title, made, Text(_demo_notes(result), style="dim"))


def _names(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The methods, or the names of the runs where two have one method."""
    methods = [run["method"] for run in runs]
    return methods if len(set(methods)) == len(methods) else [run["run"] for run in runs]


def _demo_notes(result: Mapping[str, Any]) -> str:
    repeated = "equal requests had equal answers" if result["is_repeatable"] else "equal requests had different answers"
    notes = [
        "speed-up: output tokens per second of latency over plain decoding, by the client; in brackets, tokens per",
        "decoding step. TPOT: (latency - TTFT) / (tokens - 1). Means of two requests by turns.",
    ]
    for name, run in zip(_names(result["runs"]), result["runs"], strict=True):
        parted = [f"{row['prompt']}, {row['outcome']}" for row in run["rows"] if row["outcome"] != "equal"]
        notes += [f"{name}: {'; '.join(parted)}."] if parted else []
    if len(notes) > 2:
        notes.append("tie: two tokens closer than the dtype's rounding changed places, and the texts part there.")
    return "\n".join([*notes, f"Streamed over gRPC, and once by HTTP generate: {repeated}."])


def _gain(row: Mapping[str, Any]) -> str:
    speedup = row["speedup"]
    colour = "green" if speedup > _FASTER else "red" if speedup < _SLOWER else "default"
    return f"[{colour}]{speedup:.2f}[/{colour}] ({_decimal(row['on']['tokens_per_step'], 1)})"


def _outcomes(rows: Sequence[Mapping[str, Any]]) -> str:
    """Such as "4 equal, 2 ties"."""
    kinds = Counter("equal" if row["outcome"] == "equal" else "tie" if row["is_explained"] else "wrong" for row in rows)
    names = {"equal": "equal", "tie": "ties" if kinds["tie"] > 1 else "tie", "wrong": "[red]differ[/red]"}
    return ", ".join(f"{kinds[kind]} {name}" for kind, name in names.items() if kinds[kind])


def _decimal(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def methods(result: Mapping[str, Any]) -> RenderableType:
    """What `method_benchmark.methods` returns."""
    runs, workloads = result["runs"], result["workloads"]
    has_certificates = any("certificate" in run for run in runs.values())
    header = ["drafts"]
    for kind in workloads:
        header += [f"{_spaced(kind)}:\ntokens/step", "TPOT\nms", "speed-up", "range"]
    rows = []
    for arm in ("plain", *runs):
        row = [_arm_name(arm, runs)]
        for arms in workloads.values():
            figures = arms[arm]
            row += [
                _decimal(figures["tokens_per_step"], 2),
                _decimal(figures["tpot_ms"], 1),
                _decimal(figures["speedup"], 2),
                f"{figures['lowest']:.2f} to {figures['highest']:.2f}",
            ]
        rows.append(row)
    lines = [f"{_arm_name(name, runs)}: {_greedy_words(run)}{_verdict(run)}" for name, run in runs.items()]
    notes = [*lines, "speed-up: output tokens per second of latency over plain decoding in the same round, medians."]
    if not has_certificates:
        notes.append("Nothing was verified; --certify does it.")
    title = f"{result['target']}, {result['dtype']}, batch 1, greedy: {_settings(result)}"
    return titled(title, table(header, rows, numeric=tuple(range(1, len(header)))), Text("\n".join(notes), style="dim"))


def methods_block(result: Mapping[str, Any]) -> str:
    """The same as Markdown for the README, from what `--save` wrote."""
    runs, workloads = result["runs"], result["workloads"]
    header = ["drafts"]
    for kind in workloads:
        header += [f"{_spaced(kind)}: tokens per step", "TPOT, ms", "speed-up"]
    header += ["greedy outputs", "certificate"]
    rows = []
    for arm in ("plain", *runs):
        row = [f"`{_arm_name(arm, runs)}`"]
        for arms in workloads.values():
            figures = arms[arm]
            row += [
                _decimal(figures["tokens_per_step"], 2),
                _decimal(figures["tpot_ms"], 1),
                f"**{_decimal(figures['speedup'], 2)}**" if arm in runs else _decimal(figures["speedup"], 2),
            ]
        run = runs.get(arm)
        row += ["", ""] if run is None else [_greedy_words(run), _certificate_words(run)]
        rows.append(row)
    lines = ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]]
    machine = result["machine"]
    told = (
        f"`{result['command']}`: {result['target']} in {result['dtype']}, batch 1, greedy, {_settings(result)}. "
        f"{machine['num_cores']} cores of {machine['processor']}, torch {machine['torch']}."
    )
    return "\n".join([*lines, "", told]) + "\n"


def _arm_name(arm: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
    names = _names([{**run, "run": name} for name, run in runs.items()])
    return dict(zip(runs, names, strict=True)).get(arm, arm)


def _settings(result: Mapping[str, Any]) -> str:
    return (
        f"{result['num_prompts']} prompts of each kind, replies of at most {result['num_tokens']} tokens, "
        f"medians of {result['num_rounds']} rounds in turns"
    )


def _spaced(workload: str) -> str:
    return workload.replace("_", " ")


def _greedy_words(run: Mapping[str, Any]) -> str:
    counts = run["greedy"]
    names = {"equal": "equal", "tie": "tie" if counts["tie"] == 1 else "ties", "different": "differ"}
    return ", ".join(f"{counts[key]} {word}" for key, word in names.items() if counts[key])


def _verdict(run: Mapping[str, Any]) -> str:
    return f"; {_certificate_words(run)}" if "certificate" in run else ""


def _certificate_words(run: Mapping[str, Any]) -> str:
    """Such as "equivalent, τ = 0.05, α = 0.0001, 11,073 tokens"."""
    if "certificate" not in run:
        return "none"
    found = run["certificate"]
    return f"{found['verdict']}, τ = {found['tau']:g}, α = {found['alpha']:g}, {found['num_tokens']:,} tokens"
