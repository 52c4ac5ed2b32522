"""`trt-spec demo`: from nothing to served models, and ways to draft beside plain decoding, over a handful of prompts.

Every run has a tritonserver of its own; all of them are up at once, and one request at a time is under way. Plain
decoding is the first run's server with speculation off. The arms take turns on each prompt, once there and once back,
after a warm-up. The numbers are one machine's in one run.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from trt_spec.atomic import terminate_as_interrupt
from trt_spec.bench.kinds import Result, check_drafts, distinct
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.clients.client import Client, Params
from trt_spec.clients.prompts import DEMO_PROMPTS, Encode, Prompt, encoder
from trt_spec.clients.rounds import results, turns
from trt_spec.clients.trace import Totals, Trace
from trt_spec.clients.triton import ServedClient, TritonClient
from trt_spec.engines.builder import build
from trt_spec.engines.torch.self_check import explain_divergence
from trt_spec.errors import GateFailure
from trt_spec.report.console import Reporter
from trt_spec.report.tables import cells, table, titled
from trt_spec.run import REPOSITORIES_DIR, Run, ensure_checkpoints
from trt_spec.runtime.loading import load_engine
from trt_spec.runtime.request import SamplingParams
from trt_spec.serve.run import running_server, usable_ports
from trt_spec.triton.repository import emit
from trt_spec.triton.server.installation import free_ports

PLAIN = ""  # the arm of plain decoding; the others have the names of their runs
_FASTER, _SLOWER = 1.03, 0.97  # beyond what a run of a minute can tell from 1
_WARM_UP = Prompt("warm-up", "One two three one two three one two", is_chat=False)


@dataclass(frozen=True)
class Figures:
    """One arm, see `Totals`; None where there is nothing to divide by."""

    tokens_per_s: float
    ttft_ms: float
    tpot_ms: float | None
    tokens_per_step: float | None
    mean_acceptance_length: float | None

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Figures:
        """Of equal requests, or of many prompts."""
        found = Totals.of(traces)
        length = found.drafts and found.drafts.mean_acceptance_length
        return cls(found.tokens_per_s, found.mean_ttft_ms, found.tpot_ms, found.tokens_per_step, length)


@dataclass(frozen=True)
class Comparison:
    """A run with its drafts on, and plain decoding, over some prompts; speed-up in tokens per second of latency."""

    off: Figures
    on: Figures
    speedup: float

    @classmethod
    def of(cls, off: Sequence[Trace], on: Sequence[Trace]) -> Comparison:
        """From the traces of both arms."""
        plain, drafting = Figures.of(off), Figures.of(on)
        return cls(plain, drafting, drafting.tokens_per_s / plain.tokens_per_s)


@dataclass(frozen=True)
class Outcome:
    """Whether greedy output is that of plain decoding, in words; a tie is explained."""

    outcome: str = "equal"
    is_explained: bool = True


@dataclass(frozen=True)
class Row(Outcome, Comparison):
    """One prompt. (The fields of `Comparison` come first.)"""

    prompt: str = ""


@dataclass(frozen=True)
class DemoRun:
    """One run: its prompts, those of one kind together, and all of them; and where it lies."""

    run: str
    method: str
    engine_dir: str
    repository: str
    rows: Sequence[Row]
    kinds: Mapping[str, Comparison]
    total: Comparison


@dataclass(frozen=True)
class DemoResult(Result):
    """`is_repeatable`: the same request gave the same ids each time, streamed and through HTTP generate."""

    target: str
    dtype: str
    runs: Sequence[DemoRun]
    is_repeatable: bool

    @property
    def exit_code(self) -> int:
        return 0 if all(row.is_explained for run in self.runs for row in run.rows) else GateFailure.exit_code

    def view(self) -> RenderableType:
        """A row per prompt, a column per run."""
        first, names = self.runs[0], self._names()  # plain decoding is the same for all of them
        header = ("prompt", "plain\ntokens/s", *(f"{name}\nspeed-up" for name in names))
        rows = [
            (escape(row.prompt), *cells(row.off, tokens_per_s=".1f"), *(_gain(run.rows[index]) for run in self.runs))
            for index, row in enumerate(first.rows)
        ]
        made = table(header, rows, numeric=tuple(range(1, len(header))))
        made.add_section()
        total = first.total
        made.add_row("all", *cells(total.off, tokens_per_s=".1f"), *(_gain(run.total) for run in self.runs))
        arms = (total.off, *(run.total.on for run in self.runs))
        columns = [cells(arm, tokens_per_step=".2f", tpot_ms=".1f", ttft_ms=".0f") for arm in arms]
        for words, *found in zip(("tokens per step", "TPOT ms", "TTFT ms"), *columns, strict=True):
            made.add_row(words, *found)
        made.add_row("greedy outputs", "", *(_outcomes(run.rows) for run in self.runs))
        title = f"Drafts beside plain decoding: {Path(self.target).name}, {self.dtype}, batch 1, through tritonserver"
        return titled(title, made, Text(self._notes(), style="dim"))

    def _names(self) -> list[str]:
        return list(distinct({run.run: run.method for run in self.runs}).values())

    def _notes(self) -> str:
        repeated = "equal" if self.is_repeatable else "different"
        notes = [
            "speed-up: output tokens per second of latency over plain decoding, by the client; in brackets, tokens per",
            "decoding step. TPOT: (latency - TTFT) / (tokens - 1). Means of two requests by turns.",
        ]
        for name, run in zip(self._names(), self.runs, strict=True):
            parted = [f"{row.prompt}, {row.outcome}" for row in run.rows if row.outcome != "equal"]
            notes += [f"{name}: {'; '.join(parted)}."] if parted else []
        if len(notes) > 2:
            notes.append("tie: two tokens closer than the dtype's rounding changed places, and the texts part there.")
        told = f"Streamed over gRPC, and once by HTTP generate: equal requests had {repeated} answers."
        return "\n".join([*notes, told])


def _gain(found: Comparison) -> str:
    colour = "green" if found.speedup > _FASTER else "red" if found.speedup < _SLOWER else "default"
    return f"[{colour}]{found.speedup:.2f}[/{colour}] ({cells(found.on, tokens_per_step='.1f')[0]})"


def _outcomes(rows: Sequence[Row]) -> str:
    """Such as "4 equal, 2 ties"."""
    kinds = Counter("equal" if row.outcome == "equal" else "tie" if row.is_explained else "wrong" for row in rows)
    names = {"equal": "equal", "tie": "ties" if kinds["tie"] > 1 else "tie", "wrong": "[red]differ[/red]"}
    return ", ".join(f"{kinds[kind]} {name}" for kind, name in names.items() if kinds[kind])


@dataclass(frozen=True)
class Measured:
    """One prompt: the traces of each arm, and the ids that HTTP generate gave from the first run's server."""

    prompt: Prompt
    arms: Mapping[str, Sequence[Trace]]
    http_ids: Sequence[int]

    @property
    def is_repeatable(self) -> bool:
        """Whether the same request gave the same ids each time."""
        first = next(name for name in self.arms if name != PLAIN)
        is_streamed = all(trace.token_ids == of_arm[0].token_ids for of_arm in self.arms.values() for trace in of_arm)
        return is_streamed and tuple(self.http_ids) == self.arms[first][0].token_ids


def run_demo(runs: Sequence[Run], max_tokens: int, reporter: Reporter) -> DemoResult:
    """Builds, emits, serves and measures; the servers are stopped whatever happens.

    Args:
        runs: of one target, each with a drafter; texts are shown as the first one streams them.

    Raises:
        UsageError: there is no run.
    """
    check_drafts(runs)
    repositories = []
    for run in runs:
        repositories.append(emit(run.config, build_engine(run, reporter), REPOSITORIES_DIR))
        reporter.note(f"model repository: {repositories[-1]}")
    tokenizer = Tokenizer.load(runs[0].engine_dir / "target")
    with terminate_as_interrupt(), ExitStack() as stack:
        clients, https = {}, []
        for index, (run, repository) in enumerate(zip(runs, repositories, strict=True)):
            ports = free_ports(3) if index else usable_ports(run.config, reporter)
            server = stack.enter_context(running_server(repository, ports, reporter))
            where = f"HTTP {server.http_url}, gRPC {server.grpc_url}, log {server.log_path}"
            reporter.note(f"tritonserver: {where}, of {run.config.name}")
            model_name = run.config.serve.model_name
            client = ServedClient(f"grpc://{server.grpc_url}", model_name, tokenizer)
            clients[run.config.name] = stack.enter_context(client)
            https.append(TritonClient(server.http_url, model_name=model_name))
        measured = list(measure(clients, https[0], encoder(tokenizer), max_tokens, reporter))
    return summary(runs, measured, compare_outputs(runs, measured, reporter))


def build_engine(run: Run, reporter: Reporter) -> Path:
    """The engine of the run, built where it is not there yet; says which of the two."""
    ensure_checkpoints(run, reporter)
    reporter.note(f"target checkpoint: {run.config.target.checkpoint}")
    with reporter.progress(f"building {run.engine_dir}") as advance:
        result = build(run.config, engines_dir=run.engine_dir.parent, run=run.words, advance=advance)
    reporter.note(f"engine: {result.engine_dir} ({'up to date' if result.is_reused else 'built'})")
    return result.engine_dir


def measure(
    clients: Mapping[str, Client], http: TritonClient, encode: Encode, max_tokens: int, reporter: Reporter
) -> Iterator[Measured]:
    """Sends every prompt: streamed over gRPC twice to every arm, of which one is shown, and once by HTTP generate."""
    first, sampling, echoes = next(iter(clients)), SamplingParams(max_tokens=max_tokens), []

    def ask(prompt: Prompt, name: str) -> Trace:
        echo = echoes.pop() if name == first and echoes else None
        params = Params(sampling, speculation=name != PLAIN)
        return clients[name or first].ask(prompt, params, on_chunk=lambda chunk: echo and echo(chunk.text))

    arms = {name: partial(ask, name=name) for name in (PLAIN, *clients)}
    with reporter.progress("warming up"):
        for arm in arms.values():
            arm(_WARM_UP)
    for prompt in DEMO_PROMPTS:
        reporter.text_line(f"\n[{prompt.name}] {prompt.text.splitlines()[0]}")
        echoes.append(reporter.stream)
        found = turns(arms, [prompt], num_rounds=2, num_warm_up=0)
        with reporter.progress("first without speculation", is_lasting=False):
            seen = [next(found)]
        seen.append(next(found))
        reporter.text_line("")
        with reporter.progress("all arms by turns, and HTTP generate", is_lasting=False):
            traces = results(itertools.chain(seen, found))
            http_ids = http.generate(encode(prompt), max_tokens=max_tokens).token_ids
        yield Measured(prompt, traces, http_ids)


def summary(runs: Sequence[Run], measured: Sequence[Measured], outcomes: Mapping[str, Sequence[Outcome]]) -> DemoResult:
    """What was measured, and what became of the greedy outputs."""
    kinds: dict[str, list[Measured]] = {}
    for item in measured:
        kinds.setdefault(item.prompt.name.split(":")[0], []).append(item)

    def of_run(run: Run) -> DemoRun:
        name = run.config.name

        def over(items: Sequence[Measured]) -> Comparison:
            return Comparison.of(*([trace for item in items for trace in item.arms[arm]] for arm in (PLAIN, name)))

        rows = [
            Row(**vars(over([item])), **vars(outcome), prompt=item.prompt.name)
            for item, outcome in zip(measured, outcomes[name], strict=True)
        ]
        where = (str(run.engine_dir), str(run.repository_dir))
        of_kinds = {kind: over(items) for kind, items in kinds.items()}
        return DemoRun(name, run.config.speculation.method, *where, rows, of_kinds, over(measured))

    target = runs[0].config.target
    is_repeatable = all(item.is_repeatable for item in measured)
    return DemoResult(target.checkpoint, target.dtype, [of_run(run) for run in runs], is_repeatable)


def compare_outputs(runs: Sequence[Run], measured: Sequence[Measured], reporter: Reporter) -> dict[str, list[Outcome]]:
    """By run, by prompt. Where outputs differ, an engine is loaded and asked for the two likeliest tokens there."""
    loaded = cache(partial(load_engine, runs[0].engine_dir))

    def outcome(item: Measured, name: str) -> Outcome:
        plain, speculative = (item.arms[arm][0].token_ids for arm in (PLAIN, name))
        if plain == speculative:
            return Outcome()
        with reporter.progress(f"looking into the first difference of '{item.prompt.name}'"):
            ids = encoder(loaded().tokenizer)(item.prompt)
            divergence = explain_divergence(loaded(), ids, plain, speculative)
        return Outcome(divergence.words(), divergence.is_tie)

    return {run.config.name: [outcome(item, run.config.name) for item in measured] for run in runs}
