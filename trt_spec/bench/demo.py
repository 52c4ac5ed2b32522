"""`trt-spec demo`: from nothing to served models, and ways to draft beside plain decoding, over a handful of prompts.

Every run has a tritonserver of its own; all of them are up at once, and one request at a time is under way. Plain
decoding is the first run's server with speculation off. The arms take turns on each prompt, once there and once back
(off, a, b, b, a, off), after a warm-up, so that a drift of the machine falls on all of them. The numbers are one
machine's in one run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trt_spec.atomic import terminate_as_interrupt
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.clients.triton import TritonClient
from trt_spec.engines.torch import build as torch_engine
from trt_spec.engines.torch.self_check import explain_divergence
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import REPOSITORIES_DIR, Run, ensure_checkpoints
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.request import Chunk
from trt_spec.serve.run import running_server, usable_ports
from trt_spec.triton import codec
from trt_spec.triton.repository import emit
from trt_spec.triton.server.installation import free_ports


@dataclass(frozen=True)
class DemoPrompt:
    """One prompt of the demo: its name in the table, and the user's message."""

    name: str
    message: str


_NOTICE = (
    "The laboratory on the second floor is open from nine in the morning until six in the evening. Visitors sign in at "
    "the front desk and wear a badge at all times. Food and drinks stay outside. Please report broken equipment to the "
    "technician on duty."
)
_CODE = """def total_price(items, tax_rate):
    subtotal = 0.0
    for item in items:
        subtotal += item.price * item.quantity
    return subtotal * (1.0 + tax_rate)
"""
PROMPTS = (
    DemoPrompt("chat: explain", "Explain in a few sentences why the sky is blue."),
    DemoPrompt("chat: story", "Write the beginning of a short story about a lighthouse keeper."),
    DemoPrompt("copy: notice", f"Repeat the following text word for word:\n\n{_NOTICE}"),
    DemoPrompt("copy: code", f"Repeat this Python code exactly:\n\n```python\n{_CODE}```"),
    DemoPrompt("edit: notice", f"Copy this text, but replace 'second floor' by 'third floor':\n\n{_NOTICE}"),
    DemoPrompt("edit: code", f"Rename `item` to `product` in this Python code:\n\n```python\n{_CODE}```"),
)


@dataclass(frozen=True)
class Answer:
    """One answer and when it came, by the client's clock.

    Attributes:
        ttft_ms: from sending the request to the first token.
        latency_ms: from sending the request to the last token.
    """

    chunk: Chunk
    ttft_ms: float
    latency_ms: float

    @property
    def num_tokens(self) -> int:
        return len(self.chunk.token_ids)


@dataclass(frozen=True)
class Arm:
    """The answers of one prompt with speculation on, or off; times are sums over equal requests.

    Attributes:
        num_tokens: output tokens of all answers.
        latency_ms, ttft_ms: of all answers, added up.
        num_answers: how many there were.
        num_drafts, num_accepted_tokens: drafted steps, and draft tokens accepted in them.
    """

    num_tokens: int
    latency_ms: float
    ttft_ms: float
    num_answers: int
    num_drafts: int
    num_accepted_tokens: int

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Arm:
        done = [answer.chunk.completion for answer in answers]
        return cls(
            num_tokens=sum(answer.num_tokens for answer in answers),
            latency_ms=sum(answer.latency_ms for answer in answers),
            ttft_ms=sum(answer.ttft_ms for answer in answers),
            num_answers=len(answers),
            num_drafts=sum(completion.num_drafts for completion in done),
            num_accepted_tokens=sum(completion.total_accepted_draft_tokens for completion in done),
        )

    @classmethod
    def total(cls, arms: Sequence[Arm]) -> Arm:
        return cls(*(sum(column) for column in zip(*(asdict(arm).values() for arm in arms), strict=True)))

    def as_dict(self) -> dict[str, float | None]:
        """Output tokens per second of latency, mean TTFT and TPOT, tokens of a decoding step, drafted or not, and of a
        drafted one. The prompt's own step, which gives the first token, counts for neither.
        """
        decoded = self.num_tokens - self.num_answers
        return {
            "tokens_per_s": 1e3 * self.num_tokens / self.latency_ms,
            "ttft_ms": self.ttft_ms / self.num_answers,
            "tpot_ms": (self.latency_ms - self.ttft_ms) / decoded if decoded else None,
            "tokens_per_step": decoded / max(decoded - self.num_accepted_tokens, 1),
            "mean_acceptance_length": 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None,
        }


@dataclass
class Measured:
    """One prompt's streamed answers, plain and by run, and the one of HTTP generate from the first run's server."""

    prompt: DemoPrompt
    text: str
    off: list[Answer]
    on: dict[str, list[Answer]]
    http: Chunk


def run_demo(runs: Sequence[Run], max_tokens: int, reporter: Reporter) -> dict[str, Any]:
    """Builds, emits, serves and measures; the servers are stopped whatever happens.

    Args:
        runs: of one target, each with a drafter; texts are shown as the first one streams them.

    Returns:
        `runs`: for each, `rows` (one per prompt), `kinds` (prompts of one kind together), `total`, and where everything
            is, ready for JSON and for the table.

    Raises:
        UsageError: there is no run.
    """
    if not runs:
        raise UsageError("no run drafts anything", where="speculation.method", remedy="name a run with a drafter")
    repositories = [_prepare(run, reporter) for run in runs]
    with terminate_as_interrupt(), ExitStack() as stack:
        clients = {}
        for index, (run, repository) in enumerate(zip(runs, repositories, strict=True)):
            ports = free_ports(3) if index else usable_ports(run.config, reporter)
            server = stack.enter_context(running_server(repository, ports, reporter))
            where = f"HTTP {server.http_url}, gRPC {server.grpc_url}, log {server.log_path}"
            reporter.note(f"tritonserver: {where}, of {run.config.name}")
            client = TritonClient(server.http_url, server.grpc_url, run.config.serve.model_name)
            clients[run.config.name] = stack.enter_context(client)
        tokenizer = Tokenizer.load(runs[0].engine_dir / "target")
        measured = list(measure(clients, tokenizer, max_tokens, reporter))
    return summary(runs, measured, reporter)


def _prepare(run: Run, reporter: Reporter) -> Path:
    """Engine and model repository of a run; returns the latter."""
    engine_dir = build_engine(run, reporter)
    repository = emit(run.config, engine_dir, REPOSITORIES_DIR)
    reporter.note(f"model repository: {repository}")
    return repository


def build_engine(run: Run, reporter: Reporter) -> Path:
    """The engine of the run, built where it is not there yet; says which of the two."""
    ensure_checkpoints(run, reporter)
    reporter.note(f"target checkpoint: {run.config.target.checkpoint}")
    with reporter.progress(f"building {run.engine_dir}") as advance:
        result = torch_engine.build(run.config, engines_dir=run.engine_dir.parent, run=run.words, advance=advance)
    reporter.note(f"engine: {result.engine_dir} ({'up to date' if result.is_reused else 'built'})")
    return result.engine_dir


def measure(
    clients: Mapping[str, TritonClient], tokenizer: Tokenizer, max_tokens: int, reporter: Reporter
) -> Iterator[Measured]:
    """Sends every prompt: streamed over gRPC twice to every arm, of which one is shown, and once by HTTP generate."""
    first, *others = clients
    with reporter.progress("warming up"):
        for name, client in clients.items():
            for speculation in (False, True) if name == first else (True,):
                stream(client, "One two three one two three one two", max_tokens=24, speculation=speculation)
    for prompt in PROMPTS:
        text = tokenizer.apply_chat_template([{"role": "user", "content": prompt.message}])
        reporter.text_line(f"\n[{prompt.name}] {prompt.message.splitlines()[0]}")
        with reporter.progress("first without speculation", is_lasting=False):
            off = [stream(clients[first], text, max_tokens, speculation=False)]
        on = {first: [stream(clients[first], text, max_tokens, speculation=True, on_delta=reporter.stream)]}
        reporter.text_line("")
        with reporter.progress("all arms by turns, and HTTP generate", is_lasting=False):
            for name in (*others, *reversed(others), first):
                on.setdefault(name, []).append(stream(clients[name], text, max_tokens, speculation=True))
            off.append(stream(clients[first], text, max_tokens, speculation=False))
            http = clients[first].generate(text, max_tokens=max_tokens)
        yield Measured(prompt, text, off, on, http)


def stream(client: TritonClient, text: str, max_tokens: int, speculation: bool, on_delta=None) -> Answer:
    """One greedy answer over gRPC, timed from here."""
    chunks, times = [], []
    started = time.perf_counter()
    for chunk in client.stream(text, max_tokens=max_tokens, temperature=0.0, speculation=speculation):
        if chunk.token_ids:
            times.append(time.perf_counter() - started)
        chunks.append(chunk)
        if on_delta is not None:
            on_delta(chunk.text)
    return Answer(codec.merge(chunks), ttft_ms=1e3 * times[0], latency_ms=1e3 * times[-1])


def summary(runs: Sequence[Run], measured: Sequence[Measured], reporter: Reporter) -> dict[str, Any]:
    """What was measured, and what became of the greedy outputs."""
    outcomes = compare_outputs(runs, measured, reporter)
    return {
        "target": runs[0].config.target.checkpoint,
        "dtype": runs[0].config.target.dtype,
        "runs": [_of_run(run, measured, outcomes[run.config.name]) for run in runs],
        "is_repeatable": all(_is_repeatable(item) for item in measured),
    }


def _of_run(run: Run, measured: Sequence[Measured], outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One run's rows beside plain decoding, the kinds of prompts, and all of them together."""
    arms = {item.prompt.name: (Arm.of(item.off), Arm.of(item.on[run.config.name])) for item in measured}
    kinds: dict[str, list[tuple[Arm, Arm]]] = {}
    for name, pair in arms.items():
        kinds.setdefault(name.split(":")[0], []).append(pair)
    return {
        "run": run.config.name,
        "method": run.config.speculation.method,
        "engine_dir": str(run.engine_dir),
        "repository": str(run.repository_dir),
        "rows": [
            {"prompt": name, **_arms([pair]), **outcome}
            for (name, pair), outcome in zip(arms.items(), outcomes, strict=True)
        ],
        "kinds": {kind: _arms(pairs) for kind, pairs in kinds.items()},
        "total": _arms(list(arms.values())),
    }


def _arms(pairs: Sequence[tuple[Arm, Arm]]) -> dict[str, Any]:
    """Both arms over some prompts, off and on, and the speed-up."""
    off, on = (Arm.total(column).as_dict() for column in zip(*pairs, strict=True))
    return {"off": off, "on": on, "speedup": on["tokens_per_s"] / off["tokens_per_s"]}


def _is_repeatable(item: Measured) -> bool:
    """Whether the same request gave the same ids each time, streamed and through HTTP generate."""
    first = next(iter(item.on))
    arms = [item.off, *item.on.values()]
    is_streamed = all(answer.chunk.token_ids == arm[0].chunk.token_ids for arm in arms for answer in arm)
    return is_streamed and item.http.token_ids == item.on[first][0].chunk.token_ids


def compare_outputs(
    runs: Sequence[Run], measured: Sequence[Measured], reporter: Reporter
) -> dict[str, list[dict[str, Any]]]:
    """Whether greedy output is that of plain decoding, by run and prompt: `outcome` in words, `is_explained`.

    Where it is not, an engine is loaded here and asked what the two likeliest tokens were at the first difference.
    """
    engine = None
    outcomes: dict[str, list[dict[str, Any]]] = {run.config.name: [] for run in runs}
    for item in measured:
        plain = item.off[0].chunk.token_ids
        for name, answers in item.on.items():
            speculative = answers[0].chunk.token_ids
            if plain == speculative:
                outcomes[name].append({"outcome": "equal", "is_explained": True})
                continue
            with reporter.progress(f"looking into the first difference of '{item.prompt.name}'"):
                engine = engine or Engine.load(runs[0].engine_dir)
                divergence = explain_divergence(engine, engine.tokenizer.encode(item.text), plain, speculative)
            outcomes[name].append({"outcome": divergence.words(), "is_explained": divergence.is_tie})
    return outcomes
