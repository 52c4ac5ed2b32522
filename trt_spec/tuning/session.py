"""What `trt-spec tune` does: measure an engine, or take numbers, then plan, and say it in one JSON-ready result."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trt_spec.clients import prompts as workload
from trt_spec.errors import CapabilityError, UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import Run, load_engine
from trt_spec.tuning import open_loop
from trt_spec.tuning.cost_model import CostModel, MeasuredCosts, break_points
from trt_spec.tuning.options import Options
from trt_spec.tuning.planner import Forecast, Planner, as_schedule
from trt_spec.tuning.survival import AcceptanceProfile

if TYPE_CHECKING:
    from trt_spec.runtime.engine import Engine

MAX_PLANNED = 64  # batch sizes looked at one by one; beyond it in steps of a sixteenth
SURVIVAL_BATCH = 4


def measured(run: Run, options: Options, reporter: Reporter) -> dict[str, Any]:
    """Tunes the built engine of a run.

    Raises:
        UsageError: the run drafts nothing and no acceptance is given, or no prompt fits.
        CapabilityError: it is no engine of this process, or drafts trees.
    """
    _refuse(run, options)
    from trt_spec.tuning import calibration

    engine = load_engine(run, reporter)
    prompts = _prompts(run, engine, options, reporter)
    lengths = [len(ids) for ids in prompts]
    context = round(statistics.fmean(lengths) + options.num_tokens / 2)
    shared = {"num_tokens": options.num_tokens, "temperature": options.temperature}
    if options.acceptance is None:
        batch = min(SURVIVAL_BATCH, engine.limits.max_batch_size)
        with reporter.progress("counting how far drafts survive") as advance:
            counts = calibration.measure_survival(engine, prompts, batch=batch, advance=_part(advance), **shared)
        acceptance = AcceptanceProfile.measured(counts, engine.limits.max_draft_len)
    else:
        acceptance = AcceptanceProfile.given(options.acceptance)
    fitted, held_out = split(_concurrencies(run, engine))
    with reporter.progress("timing steps of each batch size and draft length") as advance:
        costs = calibration.measure_costs(
            engine,
            [token for ids in prompts for token in ids],
            acceptance.rates,
            batches=fitted,
            draft_lens=timed_lengths(acceptance.max_draft_len),
            context=context,
            advance=_part(advance),
        )
    planner = Planner(costs, acceptance)
    plan = planner.plan(planned_batches(engine.limits.max_batch_size))
    wanted = sorted({(one.batch, one.draft_len or acceptance.max_draft_len) for one in plan if one.batch in held_out})
    with reporter.progress("checking at batch sizes that were not fitted") as advance, _coins(engine, options):
        checked = calibration.check_prediction(engine, prompts, planner, wanted, advance=_part(advance), **shared)
    found = _result(run, options, planner, plan, prompt_tokens=statistics.fmean(lengths))
    return found | {
        "mode": "measured",
        "is_synthetic": options.acceptance is not None,
        "workload": str(options.prompts_path or run.config.latency.workload),
        "temperature": options.temperature,
        "num_tokens": options.num_tokens,
        "costs": _measured_costs(costs, fitted),
        "check": [asdict(one) | {"error": one.error} for one in checked],
        "mean_absolute_error": calibration.mean_absolute_error(checked) if checked else None,
    }


def _refuse(run: Run, options: Options) -> None:
    spec, target = run.config.speculation, run.config.build.target
    if target != "torch":
        raise CapabilityError(
            f"an engine for build target {target} cannot be measured in this process",
            where="build.target",
            got=target,
            remedy="plan it from numbers: --gpu NAME --acceptance 0.8,0.7,0.6",
        )
    if spec.method == "none" and options.acceptance is None:
        raise UsageError(
            "this run drafts nothing",
            where="speculation.method",
            remedy="tune a run with a drafter, or give --acceptance for drafts that cost nothing",
        )
    refuse_tree(run)


def refuse_tree(run: Run) -> None:
    """Raises CapabilityError where the run drafts trees."""
    if run.config.speculation.tree is not None:
        raise CapabilityError(
            "tune plans lengths of chains; a tree has its own shape",
            where="speculation.tree",
            remedy="tune the run without it: --set speculation.tree=null",
        )


def _prompts(run: Run, engine: Engine, options: Options, reporter: Reporter) -> list[list[int]]:
    """Token ids of the prompts that fit."""
    path = options.prompts_path
    prompts = workload.read(path) if path is not None else workload.load(run.config.latency.workload)
    room = engine.limits.max_seq_len - options.num_tokens
    found, too_long = [], 0
    for prompt in prompts:
        ids = _ids(engine, prompt)
        found += [ids] if 0 < len(ids) <= room else []
        too_long += len(ids) > room
    if not found:
        raise UsageError(
            "no prompt fits into the engine's context",
            where="build.max_seq_len",
            got=f"{engine.limits.max_seq_len} tokens, of which {options.num_tokens} are for the output",
            remedy="give shorter --prompts or fewer --tokens, or build the engine with a larger build.max_seq_len",
        )
    if too_long:
        reporter.note(f"{too_long} prompts are longer than the engine's context and were left out")
    return found[: options.num_prompts]


def _ids(engine: Engine, prompt: workload.Prompt) -> list[int]:
    tokenizer = engine.tokenizer
    if prompt.is_chat and tokenizer.chat_template is not None:
        text = tokenizer.apply_chat_template([{"role": "user", "content": prompt.text}])
        return tokenizer.encode(text, add_special_tokens=False)
    return tokenizer.encode(prompt.text)


def _concurrencies(run: Run, engine: Engine) -> list[int]:
    most = engine.limits.max_batch_size
    return sorted({1, most, *(count for count in run.config.latency.concurrencies if count <= most)})


def split(batches: Sequence[int]) -> tuple[list[int], list[int]]:
    """Batch sizes to measure costs at, first and last included, and those between them that are only predicted."""
    held_out = list(batches[1:-1:2])
    return [batch for batch in batches if batch not in held_out], held_out


def timed_lengths(longest: int) -> list[int]:
    """0, the powers of two below the longest draft, and the longest."""
    powers = [2**power for power in range(longest.bit_length()) if 2**power < longest]
    return [0, *powers, longest]


def planned_batches(most: int) -> list[int]:
    """Batch sizes that get a length of their own."""
    batches = list(range(1, min(most, MAX_PLANNED) + 1))
    while batches[-1] < most:
        batches.append(min(most, batches[-1] + max(1, batches[-1] // 16)))
    return batches


def _coins(engine: Engine, options: Options) -> AbstractContextManager[None]:
    from trt_spec.runtime.synthetic import synthetic_acceptance

    return synthetic_acceptance(engine, options.acceptance) if options.acceptance is not None else nullcontext()


def _part(advance: Callable[[float | None, str | None], None]) -> Callable[[float], None]:
    return lambda part: advance(part, None)


# ---- results ----


def _result(
    run: Run, options: Options, planner: Planner, plan: Sequence[Forecast], *, prompt_tokens: float
) -> dict[str, Any]:
    """What both ways have in common."""
    schedule, acceptance, spec = as_schedule(plan), planner.acceptance, run.config.speculation
    batches = [one.batch for one in plan]
    found: dict[str, Any] = {
        "run": run.config.name,
        "method": spec.method,
        "rule": spec.acceptance,
        "acceptance": {
            "rates": list(acceptance.rates),
            "survival": [one._asdict() for one in acceptance.survival],
            "expected_tokens": [one._asdict() for one in acceptance.expected],
            "drafted_tokens": list(acceptance.drafted),
            "num_prompts": acceptance.num_prompts,
            "num_steps": acceptance.num_steps,
        },
        "min_gain": planner.min_gain,
        "plan": [
            asdict(one) | {"by_draft_len": [other.speedup for other in planner.forecasts(one.batch)]} for one in plan
        ],
        "draft_len_schedule": schedule,
        "max_draft_len": schedule.get(1, 0),
        "plans": {
            "schedule": schedule,
            "one length, and off": as_schedule(planner.plan_one_length(batches, can_be_off=True)),
            "one length": as_schedule(planner.plan_one_length(batches, can_be_off=False)),
        },
    }
    if options.requests_per_s is not None:
        found["open_loop"] = _open_loop(options, planner, schedule, plan[-1].batch, prompt_tokens)
    return found


def _open_loop(
    options: Options, planner: Planner, schedule: dict[int, int], most: int, prompt_tokens: float
) -> dict[str, Any]:
    """Operating points with the schedule, and of plain decoding."""
    assert options.requests_per_s is not None
    prefill_ms = planner.costs.prefill_ms(prompt_tokens)
    load = open_loop.Load(options.requests_per_s, options.output_tokens, prefill_ms)
    arms = {"plain": {1: 0}, "schedule": schedule or {1: 0}}
    return asdict(load) | {
        "arms": {name: asdict(open_loop.operating_points(planner, arm, load, most)) for name, arm in arms.items()}
    }


def _measured_costs(costs: MeasuredCosts, batches: Sequence[int]) -> dict[str, Any]:
    stairs = {str(batch): costs.staircase(batch) for batch in batches}
    return {
        "context": costs.context,
        "contexts": costs.contexts,
        "batches": costs.batches,
        "draft_lens": costs.draft_lens,
        "staircase_ms": stairs,
        "break_points": {batch: break_points(points) for batch, points in stairs.items()},
        "prefill_ms_per_token": costs.prefill_ms_per_token,
        "cells": [asdict(cell) for cell in costs.cells],
        "section": costs_section(costs),
    }


def costs_section(costs: MeasuredCosts) -> dict[str, Any]:
    """`speculation.costs`: times relative to a step of one row."""
    points = costs.by_rows()
    one = points[0][1]
    longest = costs.draft_lens[-1]
    level = costs.draft_ms(1, longest) / longest / one
    return {"step": {rows: round(cost / one, 3) for rows, cost in points}, "draft_level": round(level, 4)}


def from_numbers(run: Run, options: Options, costs: CostModel, max_batch: int, prompt_tokens: float) -> dict[str, Any]:
    """Plans with a cost model and given acceptance, without an engine."""
    assert options.acceptance is not None
    planner = Planner(costs, AcceptanceProfile.given(options.acceptance))
    return _result(run, options, planner, planner.plan(planned_batches(max_batch)), prompt_tokens=prompt_tokens)
