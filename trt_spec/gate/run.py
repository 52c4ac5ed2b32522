"""One run of the latency gate: measure, or read records; then the verdict, with where it comes from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trt_spec import provenance
from trt_spec.clients import prompts as workload
from trt_spec.config.schema import RunConfig
from trt_spec.errors import MachineError, UsageError
from trt_spec.gate import records
from trt_spec.gate import verdict as gate
from trt_spec.gate.arrivals import Arrivals, ClosedLoop, Poisson
from trt_spec.gate.measure import Plan, Subject, SystemClock, measure
from trt_spec.gate.metrics import Slo
from trt_spec.gate.options import Options
from trt_spec.gate.records import RequestRecord
from trt_spec.gate.verdict import Demands
from trt_spec.report.console import Reporter
from trt_spec.run import Run, load_engine

if TYPE_CHECKING:
    from trt_spec.checkpoints.tokenizer import Tokenizer

# What the first line of the records says, beside their format.
_HEADER = (
    "run",
    "words",
    "server",
    "plain_server",
    "workload",
    "max_tokens",
    "num_pairs",
    "seconds",
    "notes",
    "provenance",
)


def run_gate(
    run: Run, options: Options, find_tokenizer: Callable[[Run], Tokenizer], reporter: Reporter
) -> tuple[dict[str, Any], str]:
    """Measures and judges.

    Args:
        find_tokenizer: for subjects that take token ids.

    Returns:
        The result, and the text of the raw records.

    Raises:
        TrtSpecError: a subject that cannot be measured; names what is wrong with it.
    """
    plan = plan_of(run.config, options)
    subject = _subject(run, options, find_tokenizer, reporter)
    notes: list[str] = _limits(run.config, options, plan)
    started = time.monotonic()
    try:
        with reporter.progress(f"measuring {run.config.name}, plain and speculative by turns") as advance:
            rows = measure(
                subject,
                plan,
                advance=lambda part: advance(part, None),
                on_warm_up=lambda warm: _look_at(warm, options, notes),
            )
        notes += [f"the server refused {name}, which was left out" for name in getattr(subject, "dropped", ())]
    finally:
        subject.close()
    header = {
        "run": run.config.name,
        "words": run.words,
        "server": options.server,
        "plain_server": options.plain_url or options.server,
        "workload": str(options.prompts_path) if options.prompts_path else run.config.latency.workload,
        "max_tokens": plan.max_tokens,
        "num_pairs": plan.num_pairs,
        "seconds": time.monotonic() - started,
        "notes": list(dict.fromkeys(notes)),
        "provenance": provenance.collect(run.config),
    }
    assert set(header) == set(_HEADER)
    with reporter.progress("bootstrap"):
        return _judged(header, rows, run.config), records.dump(header, rows)


def judge_again(run: Run, options: Options) -> tuple[dict[str, Any], str]:
    """The verdict on records of an earlier run, against the demands of this one; as `run_gate` returns it.

    Raises:
        UsageError: damaged records, or floors for loads that they do not have.
    """
    assert options.records_path is not None
    header, rows = records.load(options.records_path)
    missing = [name for name in _HEADER if name not in header]
    if missing:
        raise UsageError("the records do not say where they come from", where=f"{options.records_path}:1", got=missing)
    return _judged(header, rows, run.config), records.dump(header, rows)


def plan_of(config: RunConfig, options: Options) -> Plan:
    """What is to be sent."""
    latency = config.latency
    loads: Sequence[Arrivals] = [ClosedLoop(concurrency) for concurrency in latency.concurrencies]
    if options.rate_per_s is not None:
        loads = [Poisson(options.rate_per_s)]
    path = options.prompts_path
    prompts = workload.read(path) if path else workload.load(latency.workload)
    return Plan(loads, prompts, options.num_pairs, latency.max_tokens)


def demands_of(config: RunConfig, measured: set[str]) -> Demands:
    """What the run config demands; floors are for concurrencies, and fall away where arrivals are by rate."""
    latency = config.latency
    floors = {ClosedLoop(concurrency).name: floor for concurrency, floor in latency.min_speedup.items()}
    if not any(name.startswith("concurrency") for name in measured):
        floors = {}
    return Demands(floors, latency.max_ttft_p99_ratio, Slo(latency.slo_ttft_ms, latency.slo_tpot_ms))


def _judged(header: Mapping[str, Any], rows: Sequence[RequestRecord], config: RunConfig) -> dict[str, Any]:
    found = gate.evaluate(rows, demands_of(config, {row.load for row in rows}))
    return {**header, **found, "reason": _reason(found)}


def _reason(found: Mapping[str, Any]) -> str:
    """The verdict in a sentence."""
    checks = found["checks"]
    worst = [check for check in checks if check["verdict"] == found["verdict"]]
    if found["verdict"] != "pass":
        return "; ".join(f"{check['name']}: {check['words']}" for check in worst)
    num_floors = sum(load["floor"] is not None for load in found["loads"])
    floors = f"{num_floors} floors reached" if num_floors else "no floor to judge speed-ups by"
    return f"{floors}; TTFT p99 within its limit at {len(found['loads'])} loads"


def _subject(run: Run, options: Options, find_tokenizer: Callable[[Run], Tokenizer], reporter: Reporter) -> Subject:
    clock, model_name = SystemClock(), run.config.serve.model_name
    if options.openai_url:
        from trt_spec.gate.openai import OpenAISubject

        urls = {"speculation": options.openai_url, "plain": options.plain_url or options.openai_url}
        return OpenAISubject(urls, model_name, clock, options.api_key)
    from trt_spec.gate.subjects import EngineSubject, TritonSubject, encoder

    if options.url:
        urls = {"speculation": options.url, "plain": options.plain_url or options.url}
        return TritonSubject(urls, model_name, encoder(find_tokenizer(run)), clock)
    return EngineSubject(lambda: load_engine(run, reporter), encoder(find_tokenizer(run)), clock)


def _limits(config: RunConfig, options: Options, plan: Plan) -> list[str]:
    """What the reader of the figures should know of this run beforehand."""
    notes, batch = [], config.build.max_batch_size
    if options.rate_per_s is not None and config.latency.min_speedup:
        notes.append("latency.min_speedup is for concurrencies, and was not judged on arrivals by rate")
    beyond = [load.concurrency for load in plan.loads if isinstance(load, ClosedLoop) and load.concurrency > batch]
    if beyond and options.server == "in process":
        words = ", ".join(map(str, beyond))
        notes.append(f"concurrency {words}: more than build.max_batch_size {batch}, so requests wait for a place")
    return notes


def _look_at(warm: Sequence[RequestRecord], options: Options, notes: list[str]) -> None:
    """Refuses a subject whose arms are not what they are called.

    Raises:
        MachineError: the plain arm drafts, or a single server does not say whether it does.
    """
    plain = [row.num_draft_tokens for row in warm if row.arm == "plain"]
    other = [row.num_draft_tokens for row in warm if row.arm == "speculation"]
    if any(plain):
        raise MachineError(
            "the plain arm drafts: speculation is not switched off",
            where=options.plain_url or options.server,
            got=f"{sum(filter(None, plain))} draft tokens",
            remedy="give --plain-url with a server that does not speculate",
        )
    if None in plain and options.server != "in process" and not options.plain_url:
        raise MachineError(
            "the server does not say whether it switched speculation off, so both arms may be the same",
            where=options.server,
            remedy="give --plain-url with a server that does not speculate",
        )
    if None not in other and not any(other):
        notes.append(f"{warm[0].load}: nothing was drafted while warming up")
