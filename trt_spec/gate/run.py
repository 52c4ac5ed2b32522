"""One run of the latency gate: measure, or read records; then the verdict, with where it comes from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial

from trt_spec import provenance
from trt_spec.clients import prompts as workload
from trt_spec.clients.client import Client
from trt_spec.config.schema import RunConfig
from trt_spec.errors import MachineError, UsageError
from trt_spec.gate import records
from trt_spec.gate.arrivals import Arrivals, ClosedLoop, Poisson
from trt_spec.gate.measure import Plan, measure
from trt_spec.gate.metrics import Slo
from trt_spec.gate.options import Options
from trt_spec.gate.records import ARMS, Arm, Placed
from trt_spec.gate.result import GateResult, Judged, Measured
from trt_spec.gate.verdict import Demands, evaluate
from trt_spec.report.console import Reporter
from trt_spec.run import Run, find_tokenizer, load_engine


def run_gate(run: Run, options: Options, floors_from: str, reporter: Reporter) -> tuple[GateResult, str]:
    """Measures and judges.

    Args:
        floors_from: the file that the demands are from.

    Returns:
        The result, and the text of the raw records.

    Raises:
        TrtSpecError: what cannot be measured; names what is wrong with it.
    """
    plan = plan_of(run.config, options)
    notes: list[str] = _limits(run.config, options, plan)
    with ExitStack() as stack:
        clients = _clients(run, options, reporter)
        for client in set(clients.values()):
            stack.enter_context(client)
        started = time.monotonic()
        with reporter.progress(f"measuring {run.config.name}, plain and speculative by turns") as advance:
            rows = measure(
                clients,
                plan,
                advance=lambda part: advance(part, None),
                on_warm_up=lambda warm: _look_at(warm, options, notes),
            )
        dropped = {name for client in clients.values() for name in client.dropped}
        notes += [f"the server refused {name}, which was left out" for name in sorted(dropped)]
    measured = Measured(
        run.config.name,
        run.words,
        options.server,
        options.plain_url or options.server,
        str(options.prompts_path) if options.prompts_path else run.config.latency.workload,
        plan.max_tokens,
        plan.num_pairs,
        time.monotonic() - started,
        list(dict.fromkeys(notes)),
        provenance.collect(run.config).as_dict(),
    )
    with reporter.progress("bootstrap"):
        return _judged(measured, rows, run.config, floors_from), records.dump(vars(measured), rows)


def judge_again(run: Run, options: Options, floors_from: str) -> tuple[GateResult, str]:
    """The verdict on records of an earlier run, against the demands of this one; as `run_gate` returns it.

    Raises:
        UsageError: damaged records, or floors for loads that they do not have.
    """
    assert options.records_path is not None
    header, rows = records.load(options.records_path)
    names = [field.name for field in fields(Measured)]
    missing = [name for name in names if name not in header]
    if missing:
        raise UsageError("the records do not say where they come from", where=f"{options.records_path}:1", got=missing)
    measured = Measured(**{name: header[name] for name in names})
    return _judged(measured, rows, run.config, floors_from), records.dump(header, rows)


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


def _judged(measured: Measured, rows: Sequence[Placed], config: RunConfig, floors_from: str) -> GateResult:
    judged = evaluate(rows, demands_of(config, {row.load for row in rows}))
    return GateResult(**vars(measured), **vars(judged), reason=_reason(judged), floors_from=floors_from)


def _reason(judged: Judged) -> str:
    """The verdict in a sentence."""
    if judged.verdict != "pass":
        worst = [check for check in judged.checks if check.verdict == judged.verdict]
        return "; ".join(f"{check.name}: {check.words}" for check in worst)
    num_floors = sum(load.floor is not None for load in judged.loads)
    floors = f"{num_floors} floors reached" if num_floors else "no floor to judge speed-ups by"
    return f"{floors}; TTFT p99 within its limit at {len(judged.loads)} loads"


def _clients(run: Run, options: Options, reporter: Reporter) -> dict[Arm, Client]:
    """One for each arm; the same for both where one server, or the engine, answers both."""
    model_name, url = run.config.serve.model_name, options.url or options.openai_url
    if url is None:
        from trt_spec.clients.engine import EngineClient

        return dict.fromkeys(ARMS, EngineClient(lambda: load_engine(run, reporter)))
    if options.openai_url:
        from trt_spec.clients.openai import OpenAIClient

        has_switch = options.plain_url in (None, url)
        connect = partial(OpenAIClient, model_name=model_name, api_key=options.api_key, has_switch=has_switch)
    else:
        from trt_spec.clients.triton import ServedClient

        connect = partial(ServedClient, model_name=model_name, tokenizer=find_tokenizer(run))
    plain_url = options.plain_url or url
    clients = {each: connect(each) for each in {url, plain_url}}
    return {"plain": clients[plain_url], "speculation": clients[url]}


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


def _look_at(warm: Sequence[Placed], options: Options, notes: list[str]) -> None:
    """Refuses a subject whose arms are not what they are called.

    Raises:
        MachineError: the plain arm drafts, or a single server does not say whether it does.
    """
    plain, other = (
        [row.trace.drafts and row.trace.drafts.num_draft_tokens for row in warm if row.arm == arm] for arm in ARMS
    )
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
