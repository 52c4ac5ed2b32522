"""`trt-spec demo`: from nothing to a served model, and speculation on against off on it, over a handful of prompts.

The numbers are one machine's in one run. Both arms go to the same server, interleaved (off, on, on, off) after a
warm-up, so that a drift of the machine falls on both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trt_spec.atomic import terminate_as_interrupt
from trt_spec.build import torch_engine
from trt_spec.build.self_check import explain_divergence
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.cli_options import REPOSITORIES_DIR, Run, ensure_checkpoints
from trt_spec.report.console import Reporter
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.request import Chunk
from trt_spec.serving import running_server, usable_ports
from trt_spec.triton import codec
from trt_spec.triton.client import TritonClient
from trt_spec.triton.repository import emit


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
        """What the table shows: output tokens per second of latency, mean TTFT and TPOT, mean acceptance length."""
        decoded = self.num_tokens - self.num_answers
        return {
            "tokens_per_s": 1e3 * self.num_tokens / self.latency_ms,
            "ttft_ms": self.ttft_ms / self.num_answers,
            "tpot_ms": (self.latency_ms - self.ttft_ms) / decoded if decoded else None,
            "mean_acceptance_length": 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None,
        }


@dataclass
class Measured:
    """One prompt's four streamed answers, by arm, and the one of HTTP generate."""

    prompt: DemoPrompt
    text: str
    off: list[Answer]
    on: list[Answer]
    http: Chunk


def run_demo(run: Run, max_tokens: int, reporter: Reporter) -> dict[str, Any]:
    """Builds, emits, serves and measures; the server is stopped whatever happens.

    Returns:
        `rows` (one per prompt), `total`, and where everything is, ready for JSON and for the table.
    """
    engine_dir = build_engine(run, reporter)
    repository = emit(run.config, engine_dir, REPOSITORIES_DIR)
    reporter.note(f"model repository: {repository}")
    ports = usable_ports(run.config, reporter)
    with terminate_as_interrupt(), running_server(repository, ports, reporter) as server:
        reporter.note(f"tritonserver: HTTP {server.http_url}, gRPC {server.grpc_url}, log {server.log_path}")
        with TritonClient(server.http_url, server.grpc_url, run.config.serve.model_name) as client:
            measured = list(measure(client, Tokenizer.load(engine_dir / "target"), max_tokens, reporter))
    return summary(run, measured, reporter)


def build_engine(run: Run, reporter: Reporter) -> Path:
    """The engine of the run, built where it is not there yet; says which of the two."""
    ensure_checkpoints(run, reporter)
    reporter.note(f"target checkpoint: {run.config.target.checkpoint}")
    with reporter.progress(f"building {run.engine_dir}") as advance:
        result = torch_engine.build(run.config, engines_dir=run.engine_dir.parent, run=run.words, advance=advance)
    reporter.note(f"engine: {result.engine_dir} ({'up to date' if result.is_reused else 'built'})")
    return result.engine_dir


def measure(client: TritonClient, tokenizer: Tokenizer, max_tokens: int, reporter: Reporter) -> Iterator[Measured]:
    """Sends every prompt: streamed over gRPC four times, of which one is shown, and once by HTTP generate."""
    with reporter.progress("warming up"):
        for speculation in (False, True):
            stream(client, "One two three one two three one two", max_tokens=24, speculation=speculation)
    for prompt in PROMPTS:
        text = tokenizer.apply_chat_template([{"role": "user", "content": prompt.message}])
        reporter.text_line(f"\n[{prompt.name}] {prompt.message.splitlines()[0]}")
        with reporter.progress("first without speculation", is_lasting=False):
            first_off = stream(client, text, max_tokens, speculation=False)
        first_on = stream(client, text, max_tokens, speculation=True, on_delta=reporter.stream)
        reporter.text_line("")
        with reporter.progress("both once more, and by HTTP generate", is_lasting=False):
            second_on = stream(client, text, max_tokens, speculation=True)
            second_off = stream(client, text, max_tokens, speculation=False)
            http = client.generate(text, max_tokens=max_tokens)
        yield Measured(prompt, text, [first_off, second_off], [first_on, second_on], http)


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


def summary(run: Run, measured: Sequence[Measured], reporter: Reporter) -> dict[str, Any]:
    """What was measured, and what became of the greedy outputs."""
    outcomes = compare_outputs(run, measured, reporter)
    arms = [(Arm.of(item.off), Arm.of(item.on)) for item in measured]
    rows = [
        {"prompt": item.prompt.name, **_arms(off, on), **outcome}
        for item, (off, on), outcome in zip(measured, arms, outcomes, strict=True)
    ]
    total = _arms(Arm.total([off for off, _ in arms]), Arm.total([on for _, on in arms]))
    return {
        "run": run.config.name,
        "engine_dir": str(run.engine_dir),
        "repository": str(run.repository_dir),
        "dtype": run.config.target.dtype,
        "rows": rows,
        "total": total,
        "is_repeatable": all(_is_repeatable(item) for item in measured),
    }


def _arms(off: Arm, on: Arm) -> dict[str, Any]:
    shown = {"off": off.as_dict(), "on": on.as_dict()}
    return {**shown, "speedup": shown["on"]["tokens_per_s"] / shown["off"]["tokens_per_s"]}


def _is_repeatable(item: Measured) -> bool:
    """Whether the same request gave the same ids each time, streamed and through HTTP generate."""
    off = [answer.chunk.token_ids for answer in item.off]
    on = [*(answer.chunk.token_ids for answer in item.on), item.http.token_ids]
    return all(ids == off[0] for ids in off) and all(ids == on[0] for ids in on)


def compare_outputs(run: Run, measured: Sequence[Measured], reporter: Reporter) -> list[dict[str, Any]]:
    """Whether greedy output is the same with speculation on and off, per prompt: `outcome` in words, `is_explained`.

    Where it is not, the engine is loaded here and asked what the two likeliest tokens were at the first difference.
    """
    engine = None
    outcomes = []
    for item in measured:
        plain, speculative = item.off[0].chunk.token_ids, item.on[0].chunk.token_ids
        if plain == speculative:
            outcomes.append({"outcome": "equal", "is_explained": True})
            continue
        with reporter.progress(f"looking into the first difference of '{item.prompt.name}'"):
            engine = engine or Engine.load(run.engine_dir)
            divergence = explain_divergence(engine, engine.tokenizer.encode(item.text), plain, speculative)
        outcomes.append({"outcome": divergence.words(), "is_explained": divergence.is_tie})
    return outcomes
