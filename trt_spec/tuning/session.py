"""Measures the built engine of a run, plans its draft lengths, and checks the plan."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from trt_spec.clients import prompts as workload
from trt_spec.errors import CapabilityError, UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import Run, load_engine
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.step import synchronized_clock
from trt_spec.runtime.synthetic import synthetic_acceptance
from trt_spec.tuning import calibration
from trt_spec.tuning.planner import Planner
from trt_spec.tuning.result import Measurement, Options, Tuning, planned_batches, refuse_tree, tuning
from trt_spec.tuning.survival import AcceptanceProfile

SURVIVAL_BATCH = 4


def measured(run: Run, options: Options, reporter: Reporter) -> Tuning:
    """Tunes the built engine of a run.

    Raises:
        UsageError: the run drafts nothing and no acceptance is given, or no prompt fits.
        CapabilityError: it is no engine of this process, or drafts trees.
    """
    _refuse(run, options)
    engine = load_engine(run, reporter)
    engine.now = synchronized_clock(engine.target.device)
    prompts = _prompts(run, engine, options, reporter)
    prompt_tokens = statistics.fmean(map(len, prompts))
    shared = {"num_tokens": options.num_tokens, "temperature": options.temperature}
    most = engine.limits.max_batch_size
    if options.acceptance is None:
        batch = min(SURVIVAL_BATCH, most)
        with reporter.progress("counting how far drafts survive") as advance:
            counts = calibration.measure_survival(engine, prompts, batch=batch, advance=advance, **shared)
        acceptance = AcceptanceProfile.measured(counts, engine.limits.max_draft_len)
    else:
        acceptance = AcceptanceProfile.given(options.acceptance)
    asked = run.config.latency.concurrencies
    fitted, held_out = split(sorted({1, most, *(count for count in asked if count <= most)}))
    with reporter.progress("timing steps of each batch size and draft length") as advance:
        costs = calibration.measure_costs(
            engine,
            [token for ids in prompts for token in ids],
            acceptance.rates,
            batches=fitted,
            draft_lens=timed_lengths(acceptance.max_draft_len),
            context=round(prompt_tokens + options.num_tokens / 2),
            advance=advance,
        )
    planner = Planner(costs, acceptance)
    plan = planner.plan(planned_batches(most))
    wanted = sorted({(one.batch, one.draft_len or acceptance.max_draft_len) for one in plan if one.batch in held_out})
    label = "checking at batch sizes that were not fitted"
    with reporter.progress(label) as advance, synthetic_acceptance(engine, options.acceptance):
        checked = calibration.check_prediction(engine, prompts, planner, wanted, advance=advance, **shared)
    basis = Measurement(
        is_synthetic=options.acceptance is not None,
        workload=str(options.prompts_path or run.config.latency.workload),
        temperature=options.temperature,
        num_tokens=options.num_tokens,
        costs=costs,
        check=checked,
    )
    return tuning(run, options, planner, basis, max_batch=most, prompt_tokens=prompt_tokens)


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


def _prompts(run: Run, engine: Engine, options: Options, reporter: Reporter) -> list[tuple[int, ...]]:
    """Token ids of the prompts that fit."""
    path = options.prompts_path
    prompts = workload.read(path) if path is not None else workload.load(run.config.latency.workload)
    room = engine.limits.max_seq_len - options.num_tokens
    encoded = [ids for ids in map(workload.encoder(engine.tokenizer), prompts) if ids]
    found = [ids for ids in encoded if len(ids) <= room]
    if not found:
        raise UsageError(
            "no prompt fits into the engine's context",
            where="build.max_seq_len",
            got=f"{engine.limits.max_seq_len} tokens, of which {options.num_tokens} are for the output",
            remedy="give shorter --prompts or fewer --tokens, or build the engine with a larger build.max_seq_len",
        )
    if len(found) < len(encoded):
        too_long = len(encoded) - len(found)
        reporter.note(f"{too_long} prompts are longer than the engine's context and were left out")
    return found[: options.num_prompts]


def split(batches: Sequence[int]) -> tuple[list[int], list[int]]:
    """Batch sizes to measure costs at, first and last included, and those between them that are only predicted."""
    held_out = list(batches[1:-1:2])
    return [batch for batch in batches if batch not in held_out], held_out


def timed_lengths(longest: int) -> list[int]:
    """0, the powers of two below the longest draft, and the longest."""
    powers = [2**power for power in range(longest.bit_length()) if 2**power < longest]
    return [0, *powers, longest]
