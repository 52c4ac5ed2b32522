"""What `trt-spec tune` found, for terminals and as one HTML page with the plot of speed-up over concurrency."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from trt_spec.report import page as files
from trt_spec.report.plots import Frame
from trt_spec.report.tables import facts, table, titled

Found = Mapping[str, Any]
_MOST_ROWS = 12


def write(found: Found, directory: Path) -> list[Path]:
    """Writes tuning.json and tuning.html into a directory, and returns their paths."""
    texts = {
        "tuning.json": json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "tuning.html": page(found),
    }
    return files.write(directory, texts)


# ---- terminal ----


def view(found: Found) -> RenderableType:
    """Acceptance, costs, the plan, the check, and the forms."""
    parts: list[RenderableType] = [titled(_title(found), facts(_facts(found))), Text(), _plan(found)]
    if found.get("check"):
        parts += [Text(), _check(found)]
    if "open_loop" in found:
        parts += [Text(), _open_loop(found["open_loop"])]
    if found["forms"]:
        rows = [(form["engine"], form.get("plan", "-"), escape(_form(form))) for form in found["forms"]]
        parts += [Text(), titled("The plan in each engine's form", table(("engine", "what it can do", "form"), rows))]
    if found["snippet"] and not found["written"]:
        parts += [Text(), titled("For the run config", Text(found["snippet"]))]
    return Group(*parts)


def _title(found: Found) -> str:
    where = "this machine" if found["mode"] == "measured" else f"{found['machine']['num_gpus']} × {_gpu(found)}"
    return f"Draft lengths of {found['run']} ({found['method']}) on {where}"


def _gpu(found: Found) -> str:
    return found["machine"]["gpu"].upper()


def _facts(found: Found) -> list[tuple[str, object]]:
    accepted, costs = found["acceptance"], found["costs"]
    if accepted["num_prompts"]:
        survival = ", ".join(
            f"{one['estimate']:.2f} ({one['low']:.2f} to {one['high']:.2f})" for one in _survival(found)
        )
        basis = f"{accepted['num_steps']} steps of {accepted['num_prompts']} prompts"
        pairs: list[tuple[str, object]] = [
            ("survival by position", f"{survival}; 95 % intervals, prompts as clusters"),
            ("from", f"{basis}, {found['workload']}, temperature {found['temperature']:g}, rule {found['rule']}"),
        ]
    else:
        pairs = [("acceptance by position", ", ".join(f"{rate:g}" for rate in accepted["rates"]) + " (given)")]
    if found["mode"] == "measured":
        stairs = costs["staircase_ms"]["1"]
        steps = ", ".join(f"{rows}: {cost / stairs[0][1]:.2f}" for rows, cost in stairs)
        breaks = ", ".join(map(str, costs["break_points"]["1"])) or "none"
        pairs += [
            ("verifying, rows to cost", f"{steps} times one row ({stairs[0][1]:.2f} ms); levels begin at {breaks}"),
            ("context", f"{costs['context']} cached tokens"),
        ]
    else:
        pairs += [
            ("plain at batch 1", f"{costs['plain_tokens_per_s']:.1f} tokens/s by the roofline"),
            ("target", f"{costs['target_params'] / 1e9:.3g} billion parameters in {found['machine']['weights']}"),
            ("context", f"{found['machine']['context']} cached tokens, {costs['max_batch_by_memory']} sequences fit"),
        ]
    schedule = ", ".join(f"{start}: {length}" for start, length in found["draft_len_schedule"].items())
    return [*pairs, ("schedule", f"{{{schedule}}}" if schedule else "no drafts at all")]


def _survival(found: Found) -> Sequence[Mapping[str, float]]:
    return found["acceptance"]["survival"]


def _plan(found: Found) -> RenderableType:
    rows = [
        (
            one["batch"],
            one["draft_len"] or "off",
            f"{one['speedup']:.2f}",
            f"{one['speedup_low']:.2f}",
            f"{one['step_ms']:.2f}",
            f"{one['tokens_per_s']:.0f}",
        )
        for one in shown_rows(found["plan"])
    ]
    header = ("concurrency", "draft length", "speed-up", "lower bound", "step ms", "tokens/s")
    note = f"Where the lower bound is under {found['min_gain']:g}, nothing is drafted."
    return titled("The plan", table(header, rows, numeric=(0, 1, 2, 3, 4, 5)), Text(note, style="dim"))


def shown_rows(plan: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Powers of two, the last batch size, and the first of each draft length; at most a dozen."""
    changes = [one for before, one in zip([None, *plan], plan, strict=False) if _differs(before, one)]
    powers = [one for one in plan if one["batch"] & (one["batch"] - 1) == 0 or one is plan[-1]]
    kept = powers if len(plan) > _MOST_ROWS else list(plan)
    return sorted({one["batch"]: one for one in [*kept, *changes]}.values(), key=lambda one: one["batch"])


def _differs(before: Mapping[str, Any] | None, one: Mapping[str, Any]) -> bool:
    return before is None or before["draft_len"] != one["draft_len"]


def _check(found: Found) -> RenderableType:
    rows = [
        (
            one["batch"],
            one["draft_len"],
            f"{one['predicted']:.2f}",
            f"{one['measured']:.2f}",
            f"{one['error']:+.1%}",
            f"{one['predicted_plain_tokens_per_s']:.0f}",
            f"{one['plain_tokens_per_s']:.0f}",
        )
        for one in found["check"]
    ]
    header = ("concurrency", "draft length", "predicted", "measured", "error", "plain tokens/s\npredicted", "measured")
    note = f"Mean absolute error of the speed-up: {found['mean_absolute_error']:.1%}"
    title = "Predicted and measured speed-up at concurrencies that were not fitted"
    return titled(title, table(header, rows, numeric=(0, 1, 2, 3, 4, 5, 6)), Text(note))


def _open_loop(loop: Mapping[str, Any]) -> RenderableType:
    rows = []
    for arm, found in loop["arms"].items():
        for point in found["points"]:
            kind = "settles" if point["is_stable"] else "edge: runs away above"
            length = point["draft_len"] or "off"
            rows.append((arm, f"{point['batch']:.2f}", length, f"{point['tpot_ms']:.2f}", kind))
        if found["is_overloaded"]:
            rows.append((arm, "full", "-", "-", "the queue grows without end"))
    title = f"At {loop['requests_per_s']:g} requests/s of {loop['output_tokens']} tokens"
    return titled(title, table(("arm", "running", "draft length", "TPOT ms", ""), rows, numeric=(1, 2, 3)))


def _form(form: Mapping[str, Any]) -> str:
    if "refused" in form:
        return f"not offered: {form['refused']}"
    return ", ".join(f"{name}: {value}" for name, value in form["form"].items()) or "no drafts"


# ---- page ----


def page(found: Found) -> str:
    """The whole page: no script, no font, no image from elsewhere."""
    plan = found["plan"]
    return files.render("tuning.html", found=found, title=_title(found), plan=shown_rows(plan), speedups=speedups(plan))


def speedups(plan: Sequence[Mapping[str, Any]]) -> str:
    """Speed-up over concurrency: a line per draft length, and the schedule on top."""
    batches = [one["batch"] for one in plan]
    by_length = list(zip(*(one["by_draft_len"] for one in plan), strict=True))
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
    frame.line([(one["batch"], one["by_draft_len"][one["draft_len"]]) for one in plan], "chosen")
    return frame.svg("speed-up over concurrency by draft length")
