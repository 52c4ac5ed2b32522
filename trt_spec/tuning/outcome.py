"""What becomes of a plan: the run config with it, each engine's form, and what there is to say about both."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trt_spec.config import loader
from trt_spec.errors import TrtSpecError
from trt_spec.run import Run
from trt_spec.tuning import forms, written

BUSY = 0.15  # drift of plain decoding, between two measurements of it, that is more than a quiet machine's


def conclude(run: Run, found: Mapping[str, Any], *, is_writing: bool) -> dict[str, Any]:
    """Writes the schedule into the run's file, where there is one and it can have it.

    Returns:
        `forms`; `written`, the path of the file, or None; `snippet`, the lines for a config; `notes`, in words.
    """
    schedule: dict[int, int] = found["draft_len_schedule"]
    notes = list(_remarks(found))
    if not schedule:
        remedy = "drafting does not pay at any of these batch sizes: use speculation.method none; nothing was written"
        return {"forms": [], "written": None, "snippet": None, "notes": [*notes, remedy]}
    shown: dict[str, Any] = {"forms": [], "snippet": None, "written": None}
    if run.config.speculation.method == "none":  # coins on a drafter that does not exist
        return shown | {"notes": [*notes, "the run has no drafter that could have this schedule"]}
    shown["forms"] = forms.forms(run.config, found["plans"], found["plan"][-1]["batch"])
    shown["snippet"] = written.snippet(schedule)
    path = config_path(run)
    reason = _why_not(found, path, is_writing)
    if reason is not None:
        return shown | {"notes": [*notes, reason]}
    name, refusals = _write(path, found["plans"], _costs(run, found))
    if name is None:
        return shown | {"notes": [*notes, f"nothing was written, because the run cannot have it: {refusals[0]}"]}
    said = [f"wrote into {path}: {name}"]
    if refusals:
        said.append(f"a longer schedule was refused: {refusals[0]}")
    said.append(f"an engine that was built before is of the config as it was: trt-spec build {run.words}")
    return shown | {"written": str(path), "notes": [*notes, *said]}


def _write(
    path: Path, plans: Mapping[str, Mapping[int, int]], costs: Mapping[str, Any] | None
) -> tuple[str | None, list[str]]:
    """Writes the first plan that the run can have: its name, or None; and why the others were refused."""
    refusals = []
    for name, schedule in plans.items():
        if not schedule:
            break
        try:
            written.write(path, schedule, costs)
        except TrtSpecError as error:
            refusals.append("; ".join(part for part in (error.what, *error.details, error.remedy) if part))
        else:
            return name, refusals
    return None, refusals


def _remarks(found: Mapping[str, Any]) -> Iterator[str]:
    drifts = [
        abs(one["predicted_plain_tokens_per_s"] / one["plain_tokens_per_s"] - 1) for one in found.get("check", ())
    ]
    if max(drifts, default=0.0) > BUSY:
        yield (
            f"plain decoding itself was {max(drifts):.0%} off between timing and check: the machine was busy, and the "
            "plan is as uncertain; run it again when nothing else runs"
        )
    if found["is_synthetic"]:
        yield "drafts stood by coin, at the rates that were given: the plan is only as right as they are"
    if found["mode"] == "roofline":
        yield "nothing was measured: times are those of a roofline, see docs/tuning.md for how close that comes"


def _why_not(found: Mapping[str, Any], path: Path | None, is_writing: bool) -> str | None:
    if not is_writing:
        return "nothing was written into the run config (--no-write)"
    if path is None:
        return "the run was named by flags, so there is no file to write the schedule into"
    return None


def _costs(run: Run, found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`speculation.costs`, for a run that adapts its drafts by them."""
    is_read = run.config.build.target == "torch" and run.config.speculation.adaptive_draft_len
    return found["costs"]["section"] if is_read and found["mode"] == "measured" else None


def config_path(run: Run) -> Path | None:
    """The file that a run was named by; None where flags stood for it."""
    first = shlex.split(run.words)[0]
    return None if first.startswith("--") else loader.find(first)
