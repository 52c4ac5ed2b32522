"""What a plan comes to: the run config with it, what each engine is told, and what there is to say about both."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from trt_spec.atomic import write_text
from trt_spec.config import capabilities, loader
from trt_spec.config.drafting import CostsConfig
from trt_spec.config.schema import RunConfig
from trt_spec.engines.llmapi import args as llmapi_args
from trt_spec.errors import TrtSpecError
from trt_spec.run import Run
from trt_spec.tuning.engine_schedules import EngineSchedule, engine_schedules
from trt_spec.tuning.result import Estimate, Measurement, Tuning

BUSY = 0.15  # drift of plain decoding, between two measurements of it, that is more than a quiet machine's


@dataclass(frozen=True)
class Proposal:
    """`forms`: what each engine is told. `written`: the file with the schedule. `snippet`: the lines for a config."""

    forms: Sequence[EngineSchedule] = ()
    written: str | None = None
    snippet: str | None = None
    notes: Sequence[str] = ()


def conclude(run: Run, found: Tuning, *, is_writing: bool) -> Proposal:
    """Writes the schedule into the run's file, where there is one and it can have it."""
    notes = list(_remarks(found))
    if not found.schedule:
        notes.append(
            "drafting does not pay at any of these batch sizes: use speculation.method none; nothing was written"
        )
        return Proposal(notes=notes)
    if found.method == "none":  # coins on a drafter that does not exist
        return Proposal(notes=[*notes, "the run has no drafter that could have this schedule"])
    forms = engine_schedules(run.config, found.plans, found.plan[-1].batch)
    named, written = shlex.split(run.words)[0], None  # a file or a name in configs/, unless flags stand for it
    if not is_writing:
        notes.append("nothing was written into the run config (--no-write)")
    elif named.startswith("--"):
        notes.append("the run was named by flags, so there is no file to write the schedule into")
    else:
        path, spec = loader.find(named), run.config.speculation
        is_read = run.config.build.target == "torch" and spec.adaptive_draft_len  # of speculation.costs
        costs = found.basis.costs.section if is_read and isinstance(found.basis, Measurement) else None
        name, refusals = _first_written(path, found, costs)
        if name is None:
            notes.append(f"nothing was written, because the run cannot have it: {refusals[0]}")
        else:
            written = str(path)
            notes.append(f"wrote into {path}: {name}")
            notes += [f"a longer schedule was refused: {refusal}" for refusal in refusals[:1]]
            notes.append(f"an engine that was built before is of the config as it was: trt-spec build {run.words}")
    return Proposal(forms, written, rewritten("", found.schedule), notes)


def _first_written(path: Path, found: Tuning, costs: CostsConfig | None) -> tuple[str | None, list[str]]:
    """Writes the first plan that the run can have: its name, or None; and why the others were refused."""
    refusals = []
    for name, schedule in found.plans.items():
        if not schedule:
            break
        try:
            write(path, schedule, costs)
        except TrtSpecError as error:
            refusals.append("; ".join(part for part in (error.what, *error.details, error.remedy) if part))
        else:
            return name, refusals
    return None, refusals


def _remarks(found: Tuning) -> Iterator[str]:
    drift = max((abs(one.predicted_plain_tokens_per_s / one.plain_tokens_per_s - 1) for one in found.check), default=0)
    if drift > BUSY:
        yield (
            f"plain decoding itself was {drift:.0%} off between timing and check: the machine was busy, and the plan "
            "is as uncertain; run it again when nothing else runs"
        )
    if found.basis.is_synthetic:
        yield "drafts stood by coin, at the rates that were given: the plan is only as right as they are"
    if isinstance(found.basis, Estimate):
        yield "nothing was measured: times are those of a roofline, see docs/tuning.md for how close that comes"


# ---- the run's own file ----


def rewritten(text: str, schedule: Mapping[int, int], costs: CostsConfig | None = None) -> str:
    """The text of a config file with the schedule in it; everything else stays as it was written.

    The first length becomes the longest one; one length alone needs no schedule.

    Args:
        text: "" gives the lines to add by hand.
        costs: speculation.costs, where the run adapts its drafts; None leaves that as it is.
    """
    yaml = YAML(typ="rt", pure=True)
    yaml.width, yaml.preserve_quotes = 4096, True
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree = yaml.load(text) or CommentedMap()
    section = tree.setdefault("speculation", CommentedMap())
    section["max_draft_len"] = schedule[1]
    if len(schedule) > 1:
        section["draft_len_schedule"] = _on_one_line(schedule)
    else:
        section.pop("draft_len_schedule", None)
    if costs is not None:
        section["costs"] = _on_one_line({"step": _on_one_line(costs.step), "draft_level": costs.draft_level})
    stream = io.StringIO()
    yaml.dump(tree, stream)
    return stream.getvalue()


def write(path: Path, schedule: Mapping[int, int], costs: CostsConfig | None = None) -> RunConfig:
    """Puts the schedule into a config file, and returns what it means now.

    Raises ConfigError or CapabilityError where the run or its build target cannot have it; the file is as it was.
    """
    text = rewritten(path.read_text(encoding="utf-8-sig"), schedule, costs)
    config = loader.loads(text, source=str(path))
    capabilities.check(config)
    if config.build.target == "llmapi":
        llmapi_args.llm_args(config)  # which knows what each version makes of a schedule
    write_text(path, text)
    return config


def _on_one_line(values: Mapping[Any, Any]) -> CommentedMap:
    made = CommentedMap(values)
    made.fa.set_flow_style()
    return made
