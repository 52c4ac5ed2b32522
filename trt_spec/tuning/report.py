"""What `trt-spec tune` found, for terminals and as one HTML page with the plot of speed-up over concurrency."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from trt_spec.report import page as pages
from trt_spec.report.plots import Frame
from trt_spec.report.tables import cells, facts, table, titled
from trt_spec.tuning.cost_model import MeasuredCosts, break_points
from trt_spec.tuning.engine_schedules import EngineSchedule
from trt_spec.tuning.proposal import Proposal
from trt_spec.tuning.result import LoadedArms, Measurement, PlannedBatch, Tuning
from trt_spec.tuning.roofline import COMPUTE_EFFICIENCY, Roofline

_MOST_ROWS = 12


def write(found: Tuning, proposal: Proposal, directory: Path) -> list[Path]:
    """Writes tuning.json and tuning.html into a directory, and returns their paths."""
    data = as_json(found, proposal)
    rows, plot = shown_rows(found.plan), speedups(found.plan)
    values = {"found": found, "notes": proposal.notes, "title": _title(found), "plan": rows, "speedups": plot}
    texts = {
        "tuning.json": json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "tuning.html": pages.render("tuning.html", **values),
    }
    return pages.write(directory, texts)


def as_json(found: Tuning, proposal: Proposal) -> dict[str, Any]:
    """What `tune --json` prints: what was found, the fields of its basis among the rest, and what is proposed."""
    values = asdict(found)
    basis, loop = values.pop("basis"), values.pop("open_loop")
    values["acceptance"]["rates"] = found.acceptance.rates
    values |= {"draft_len_schedule": found.schedule, "max_draft_len": found.schedule.get(1, 0)}
    values |= {"mode": found.basis.mode, "is_synthetic": found.basis.is_synthetic, **basis}
    values["costs"] = _costs(found.basis.costs)
    if isinstance(found.basis, Measurement):
        values["mean_absolute_error"] = found.basis.mean_absolute_error
        values["check"] = [{**asdict(one), "error": one.error} for one in found.check]
    values |= {} if loop is None else {"open_loop": loop}
    forms = [{name: value for name, value in vars(form).items() if value is not None} for form in proposal.forms]
    return {**values, **vars(proposal), "forms": forms}


def _costs(costs: MeasuredCosts | Roofline) -> Mapping[str, object]:
    """The grid, and what is read off it; or what a roofline says, and with which numbers."""
    if isinstance(costs, Roofline):
        names = ("plain_tokens_per_s", "memory_efficiency", "layer_overhead_us")
        return {
            **{name: getattr(costs, name) for name in names},
            "target_params": costs.target.num_params,
            "draft_params": costs.draft.num_params if costs.draft else None,
            "compute_efficiency": COMPUTE_EFFICIENCY,
            "max_batch_by_memory": costs.max_batch,
        }
    stairs = {str(batch): costs.staircase(batch) for batch in costs.batches}
    names = ("context", "contexts", "batches", "draft_lens", "prefill_ms_per_token")
    return {
        **{name: getattr(costs, name) for name in names},
        "staircase_ms": stairs,
        "break_points": {batch: break_points(points) for batch, points in stairs.items()},
        "cells": [asdict(cell) for cell in costs.cells],
        "section": costs.section.model_dump(),
    }


# ---- terminal ----


def view(found: Tuning, proposal: Proposal) -> RenderableType:
    """Acceptance, costs, the plan, the check, and the forms."""
    parts: list[RenderableType] = [titled(_title(found), facts(_facts(found))), Text(), _plan(found)]
    if found.check:
        parts += [Text(), _check(found)]
    if found.open_loop is not None:
        parts += [Text(), _open_loop(found.open_loop)]
    if proposal.forms:
        rows = [(form.engine, form.plan or "-", escape(_form(form))) for form in proposal.forms]
        parts += [Text(), titled("The plan in each engine's form", table(("engine", "what it can do", "form"), rows))]
    if proposal.snippet and not proposal.written:
        parts += [Text(), titled("For the run config", Text(proposal.snippet))]
    return Group(*parts)


def _title(found: Tuning) -> str:
    basis = found.basis
    is_here = isinstance(basis, Measurement)
    where = "this machine" if is_here else f"{basis.machine.num_gpus} × {basis.machine.gpu.upper()}"
    return f"Draft lengths of {found.run} ({found.method}) on {where}"


def _facts(found: Tuning) -> list[tuple[str, object]]:
    accepted, basis = found.acceptance, found.basis
    pairs: list[tuple[str, object]] = []
    if accepted.num_prompts and isinstance(basis, Measurement):
        survival = ", ".join(f"{one.estimate:.2f} ({one.low:.2f} to {one.high:.2f})" for one in accepted.survival)
        steps = f"{accepted.num_steps} steps of {accepted.num_prompts} prompts"
        pairs += [
            ("survival by position", f"{survival}; 95 % intervals, prompts as clusters"),
            ("from", f"{steps}, {basis.workload}, temperature {basis.temperature:g}, rule {found.rule}"),
        ]
    else:
        pairs.append(("acceptance by position", ", ".join(f"{rate:g}" for rate in accepted.rates) + " (given)"))
    if isinstance(basis, Measurement):
        stairs = basis.costs.staircase(1)
        one = stairs[0][1]
        levels = ", ".join(f"{rows}: {cost / one:.2f}" for rows, cost in stairs)
        breaks = ", ".join(map(str, break_points(stairs))) or "none"
        pairs += [
            ("verifying, rows to cost", f"{levels} times one row ({one:.2f} ms); levels begin at {breaks}"),
            ("context", f"{basis.costs.context} cached tokens"),
        ]
    else:
        costs, machine = basis.costs, basis.machine
        pairs += [
            ("plain at batch 1", f"{costs.plain_tokens_per_s:.1f} tokens/s by the roofline"),
            ("target", f"{costs.target.num_params / 1e9:.3g} billion parameters in {machine.weights}"),
            ("context", f"{machine.context} cached tokens, {costs.max_batch} sequences fit"),
        ]
    schedule = ", ".join(f"{start}: {length}" for start, length in found.schedule.items())
    return [*pairs, ("schedule", f"{{{schedule}}}" if schedule else "no drafts at all")]


def _plan(found: Tuning) -> RenderableType:
    formats = {"speedup": ".2f", "speedup_low": ".2f", "step_ms": ".2f", "tokens_per_s": ".0f"}
    rows = [(one.batch, one.draft_len or "off", *cells(one, **formats)) for one in shown_rows(found.plan)]
    header = ("concurrency", "draft length", "speed-up", "lower bound", "step ms", "tokens/s")
    note = f"Where the lower bound is under {found.min_gain:g}, nothing is drafted."
    return titled("The plan", table(header, rows, numeric=range(6)), Text(note, style="dim"))


def shown_rows(plan: Sequence[PlannedBatch]) -> list[PlannedBatch]:
    """Powers of two, the last batch size, and the first of each draft length; at most a dozen."""
    changes = [one for index, one in enumerate(plan) if not index or plan[index - 1].draft_len != one.draft_len]
    powers = [one for one in plan if one.batch & (one.batch - 1) == 0 or one is plan[-1]]
    kept = powers if len(plan) > _MOST_ROWS else list(plan)
    return sorted({one.batch: one for one in [*kept, *changes]}.values(), key=lambda one: one.batch)


def _check(found: Tuning) -> RenderableType:
    formats = {"batch": "", "draft_len": "", "predicted": ".2f", "measured": ".2f", "error": "+.1%"}
    formats |= {"predicted_plain_tokens_per_s": ".0f", "plain_tokens_per_s": ".0f"}
    rows = [cells(one, **formats) for one in found.check]
    header = ("concurrency", "draft length", "predicted", "measured", "error", "plain tokens/s\npredicted", "measured")
    note = f"Mean absolute error of the speed-up: {found.basis.mean_absolute_error:.1%}"
    title = "Predicted and measured speed-up at concurrencies that were not fitted"
    return titled(title, table(header, rows, numeric=range(7)), Text(note))


def _open_loop(loop: LoadedArms) -> RenderableType:
    rows = []
    for arm, found in loop.arms.items():
        for point in found.points:
            kind = "settles" if point.is_stable else "edge: runs away above"
            rows.append((arm, f"{point.batch:.2f}", point.draft_len or "off", f"{point.tpot_ms:.2f}", kind))
        if found.is_overloaded:
            rows.append((arm, "full", "-", "-", "the queue grows without end"))
    title = f"At {loop.requests_per_s:g} requests/s of {loop.output_tokens} tokens"
    return titled(title, table(("arm", "running", "draft length", "TPOT ms", ""), rows, numeric=(1, 2, 3)))


def _form(form: EngineSchedule) -> str:
    if form.refused is not None:
        return f"not offered: {form.refused}"
    return ", ".join(f"{name}: {value}" for name, value in form.form.items()) or "no drafts"


# ---- page ----


def speedups(plan: Sequence[PlannedBatch]) -> str:
    """Speed-up over concurrency: a line per draft length, and the schedule on top."""
    batches = [one.batch for one in plan]
    by_length = list(zip(*(one.by_draft_len for one in plan), strict=True))
    values = [value for line in by_length for value in line]
    frame = Frame((batches[0], batches[-1]), (min(0.9, *values), max(1.1, *values) * 1.05), 820, 340)
    frame.axes("concurrency")
    frame.line([(batches[0], 1.0), (batches[-1], 1.0)], "limit")
    labelled: list[float] = []  # heights; a label that would lie on another is left out
    for length, line in enumerate(by_length):
        if length:
            frame.line(list(zip(batches, line, strict=True)), "length")
            height = frame.y(line[0]) - 3
            if all(abs(height - other) >= 12 for other in labelled):
                frame.text(frame.x(batches[0]) + 4, height, str(length))
                labelled.append(height)
    frame.line([(one.batch, one.by_draft_len[one.draft_len]) for one in plan], "chosen")
    return frame.svg("speed-up over concurrency by draft length")
