"""What serving costs: the same stream from the engine itself and through servers, and what many clients get.

Greedy; the end of text does not stop an answer, so that all have the same number of tokens. Times are the client's.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from trt_spec.atomic import terminate_as_interrupt
from trt_spec.bench.kinds import Result, span, spread
from trt_spec.clients.client import Client, Params
from trt_spec.clients.engine import SteppedClient
from trt_spec.clients.openai import OpenAIClient
from trt_spec.clients.prompts import DEMO_PROMPTS, Prompt, encoder, take
from trt_spec.clients.rounds import Advance, results, turns
from trt_spec.clients.trace import Trace
from trt_spec.clients.triton import ServedClient
from trt_spec.errors import TrtSpecError, UsageError
from trt_spec.report.console import Reporter
from trt_spec.report.tables import cells, table, titled
from trt_spec.run import REPOSITORIES_DIR, Run, load_engine
from trt_spec.runtime.request import SamplingParams
from trt_spec.serve.openai.server import OpenAIServer
from trt_spec.serve.run import running_front, running_server, usable_ports
from trt_spec.triton.repository import emit

OVERHEAD_PROMPTS = ("chat: explain", "copy: notice")
DEFAULT_NUM_TOKENS = 64
DEFAULT_NUM_ROUNDS = 5
DEFAULT_CONCURRENCIES = (1, 2, 4, 8, 16)
REQUESTS_PER_CLIENT = 4


@dataclass(frozen=True)
class Overhead:
    """One arm: medians over answers, in milliseconds; and the TPOT over that of the first arm on the same prompt in the
    same round, with its range."""

    tpot_ms: float
    ttft_ms: float
    tpot_ratio: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Percentiles:
    """The median, and what one in twenty is above."""

    p50: float
    p95: float

    def __format__(self, spec: str) -> str:
        return f"{self.p50:{spec}} / {self.p95:{spec}}"


@dataclass(frozen=True)
class Load:
    """What the clients of one concurrency got: answered requests and tokens over the time of the whole load, times
    (None where nothing was answered), and errors by code."""

    concurrency: int
    num_requests: int
    requests_per_s: float
    tokens_per_s: float
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    errors: Mapping[str, int]


@dataclass(frozen=True)
class ServingResult(Result):
    """`overhead`: by "off" and (where the run drafts) "on", by arm. `load`: by concurrency."""

    run: str
    dtype: str
    method: str
    num_tokens: int
    num_rounds: int
    num_prompts: int
    overhead: Mapping[str, Mapping[str, Overhead]]
    load: Sequence[Load]

    def view(self) -> RenderableType:
        streams = [
            (word, arm, *cells(found, tpot_ms=".2f", ttft_ms=".1f", tpot_ratio=".3f"), span(found, ".3f"))
            for word, arms in self.overhead.items()
            for arm, found in arms.items()
        ]
        one_stream = (
            f"One stream: {self.dtype}, greedy, {self.num_tokens} tokens out, "
            f"{self.num_prompts} prompts, {self.num_rounds} rounds in turns"
        )
        header = ("drafts", "stream from", "TPOT ms", "TTFT ms", "TPOT over engine", "range")
        first = titled(one_stream, table(header, streams, numeric=(2, 3, 4, 5)))
        loads = [
            (
                *cells(load, concurrency="", num_requests="", requests_per_s=".2f", tokens_per_s=".1f"),
                *cells(load, ttft_ms=".0f", tpot_ms=".1f"),
                ", ".join(f"{count} {code}" for code, count in load.errors.items()) or "0",
            )
            for load in self.load
        ]
        header = ("clients", "requests", "requests/s", "tokens/s", "TTFT ms p50 / p95", "TPOT ms p50 / p95", "errors")
        title = f"Load on Triton over gRPC, streaming: {self.method} drafts, closed loop"
        return Group(first, Text(""), titled(title, table(header, loads, numeric=(0, 1, 2, 3, 4, 5))))


def run(run: Run, reporter: Reporter) -> ServingResult:
    """Overhead of one stream, and a load test; the run's engine is built.

    To be run on a machine that does nothing else. Where cores are short, Linux shares them among sessions
    (sched_autogroup), and the server has one of its own: its arms then get more of the machine than this process's.
    """
    engine, model_name = load_engine(run, reporter), run.config.serve.model_name
    encode = encoder(engine.tokenizer)
    prompts = [Prompt(prompt.name, input_ids=encode(prompt)) for prompt in DEMO_PROMPTS]
    repository = emit(run.config, run.engine_dir, REPOSITORIES_DIR)
    front, overhead = OpenAIServer(0), {}
    with (
        terminate_as_interrupt(),
        running_server(repository, usable_ports(run.config, reporter), reporter) as server,
        running_front(front, run.config, engine.tokenizer, server),
        ServedClient(f"grpc://{server.grpc_url}", model_name) as triton,
        OpenAIClient(front.url, model_name) as openai,
    ):
        arms = {"engine": SteppedClient(engine), "Triton, gRPC": triton, "OpenAI front": openai}
        single = [prompt for prompt in prompts if prompt.name in OVERHEAD_PROMPTS]
        for word in ("off",) if run.config.speculation.method == "none" else ("off", "on"):
            with reporter.progress(f"timing one stream from each in turns, speculation {word}") as advance:
                overhead[word] = measure_overhead(arms, single, speculation=word == "on", advance=advance)
        with reporter.progress("many clients at once") as advance:
            load = measure_load(triton, prompts, advance=advance)
    what = (run.config.name, run.config.target.dtype, run.config.speculation.method)
    return ServingResult(*what, DEFAULT_NUM_TOKENS, DEFAULT_NUM_ROUNDS, len(single), overhead, load)


def whole_answers(client: Client, num_tokens: int, *, speculation: bool = True) -> Callable[[Prompt], Trace]:
    """Asks for answers of so many tokens; UsageError where one does not have them: its time is that of other work."""
    params = Params(SamplingParams(max_tokens=num_tokens, ignore_eos=True), speculation)

    def ask(prompt: Prompt) -> Trace:
        trace = client.ask(prompt, params)
        if trace.num_output_tokens != num_tokens:
            raise UsageError(
                "an answer is shorter than asked for",
                got=f"{trace.num_output_tokens} tokens",
                expected=f"{num_tokens}",
                remedy="take prompts that leave room in build.max_seq_len",
            )
        return trace

    return ask


def measure_overhead(
    clients: Mapping[str, Client],
    prompts: Sequence[Prompt],
    *,
    speculation: bool,
    num_tokens: int = DEFAULT_NUM_TOKENS,
    num_rounds: int = DEFAULT_NUM_ROUNDS,
    advance: Advance = lambda part: None,
) -> dict[str, Overhead]:
    """Times every client on every prompt, one stream at a time; the first is what the others are compared with."""
    arms = {name: whole_answers(client, num_tokens, speculation=speculation) for name, client in clients.items()}
    traces = results(turns(arms, prompts, num_rounds=num_rounds, advance=advance))
    base = next(iter(traces.values()))
    return {name: _overhead(of_arm, base) for name, of_arm in traces.items()}


def _overhead(traces: Sequence[Trace], base: Sequence[Trace]) -> Overhead:
    tpot_ms = statistics.median(one.tpot_ms for one in traces)
    ttft_ms = statistics.median(one.ttft_ms for one in traces)
    return Overhead(
        tpot_ms, ttft_ms, *spread(one.tpot_ms / other.tpot_ms for one, other in zip(traces, base, strict=True))
    )


def measure_load(
    client: Client,
    prompts: Sequence[Prompt],
    *,
    concurrencies: Sequence[int] = DEFAULT_CONCURRENCIES,
    num_tokens: int = DEFAULT_NUM_TOKENS,
    advance: Advance = lambda part: None,
) -> list[Load]:
    """Closed loops: so many clients at once, each sending its next request when the last one is answered.

    Args:
        client: asked from many threads at once.
        prompts: sent in order, over and over.
    """
    ask, rows = whole_answers(client, num_tokens), []

    def outcome(prompt: Prompt) -> Trace | TrtSpecError:
        try:
            return ask(prompt)
        except TrtSpecError as error:
            return error

    ask(prompts[0])  # the warm-up
    for index, concurrency in enumerate(concurrencies, 1):
        started = time.perf_counter()
        with ThreadPoolExecutor(concurrency) as pool:
            outcomes = list(pool.map(outcome, take(prompts, REQUESTS_PER_CLIENT * concurrency)))
        rows.append(_load(outcomes, time.perf_counter() - started, concurrency))
        advance(index / len(concurrencies))
    return rows


def _load(outcomes: Sequence[Trace | TrtSpecError], seconds: float, concurrency: int) -> Load:
    traces = [one for one in outcomes if isinstance(one, Trace)]
    return Load(
        concurrency,
        len(outcomes),
        len(traces) / seconds,
        sum(one.num_output_tokens for one in traces) / seconds,
        _percentiles([one.ttft_ms for one in traces]),
        _percentiles([one.tpot_ms for one in traces]),
        dict(Counter(one.code for one in outcomes if isinstance(one, TrtSpecError))),
    )


def _percentiles(values: Sequence[float]) -> Percentiles | None:
    return Percentiles(*map(float, np.percentile(values, (50, 95)))) if values else None
