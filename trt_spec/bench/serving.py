"""What serving costs: the same stream from the engine itself and through servers, and what many clients get.

Greedy; the end of text does not stop an answer, so that all have the same number of tokens. Times are the client's.

    ttft = first chunk − sent              tpot = (last chunk − first chunk) / (output tokens − 1)
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trt_spec.errors import TrtSpecError, UsageError

DEFAULT_NUM_TOKENS = 64
DEFAULT_NUM_ROUNDS = 5
DEFAULT_CONCURRENCIES = (1, 2, 4, 8, 16)
REQUESTS_PER_CLIENT = 4
Ask = Callable[[Sequence[int], int], Iterator[int]]  # prompt ids, output tokens -> how many tokens each chunk holds
Advance = Callable[[float], None]


@dataclass(frozen=True)
class Timed:
    """One answer: milliseconds to its first chunk, and per token from there on."""

    ttft_ms: float
    tpot_ms: float
    num_tokens: int


def timed(ask: Ask, prompt: Sequence[int], num_tokens: int) -> Timed:
    """Times one answer.

    Raises:
        UsageError: it does not have the tokens that were asked for, so its time is that of other work.
    """
    sent, times, num_found = time.perf_counter(), [], 0
    for num_new in ask(prompt, num_tokens):
        if num_new:
            times.append(time.perf_counter())
            num_found += num_new
    if num_found != num_tokens:
        raise UsageError(
            "an answer is shorter than asked for",
            got=f"{num_found} tokens",
            expected=f"{num_tokens}",
            remedy="take prompts that leave room in build.max_seq_len",
        )
    return Timed(1e3 * (times[0] - sent), 1e3 * (times[-1] - times[0]) / (num_tokens - 1), num_tokens)


def measure_overhead(
    arms: Mapping[str, Ask],
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int = DEFAULT_NUM_TOKENS,
    num_rounds: int = DEFAULT_NUM_ROUNDS,
    advance: Advance = lambda part: None,
) -> dict[str, dict[str, Any]]:
    """Times every arm on every prompt, one stream at a time; the first arm is what the others are compared with.

    The arms take turns on each prompt, in an order that is reversed every round, so that a drift of the machine falls
    on all of them; the first round warms up and is not counted.

    Returns:
        By arm: `tpot_ms`, `ttft_ms` (medians over answers); `tpot_ratio` (median over answers of its TPOT over that of
            the first arm on the same prompt in the same round, with `lowest` and `highest`).
    """
    found: dict[str, list[Timed]] = {name: [] for name in arms}
    for index in range(num_rounds + 1):
        for prompt in prompts:
            for name in list(arms) if index % 2 == 0 else reversed(list(arms)):
                one = timed(arms[name], prompt, num_tokens)
                if index:
                    found[name].append(one)
        advance(index / num_rounds)
    base = next(iter(found.values()))
    return {name: _overhead(times, base) for name, times in found.items()}


def _overhead(times: Sequence[Timed], base: Sequence[Timed]) -> dict[str, Any]:
    ratios = [one.tpot_ms / other.tpot_ms for one, other in zip(times, base, strict=True)]
    return {
        "tpot_ms": statistics.median(one.tpot_ms for one in times),
        "ttft_ms": statistics.median(one.ttft_ms for one in times),
        "tpot_ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


@dataclass
class _Load:
    """What the clients of one concurrency got."""

    answers: list[Timed] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def measure_load(
    ask: Ask,
    prompts: Sequence[Sequence[int]],
    *,
    concurrencies: Sequence[int] = DEFAULT_CONCURRENCIES,
    num_tokens: int = DEFAULT_NUM_TOKENS,
    advance: Advance = lambda part: None,
) -> list[dict[str, Any]]:
    """Closed loops: so many clients at once, each sending its next request when the last one is answered.

    Args:
        ask: called from many threads at once.
        prompts: sent in order, over and over.

    Returns:
        Per concurrency: `num_requests`, `requests_per_s`, `tokens_per_s` (answered ones over the time of the whole
            load); `ttft_ms` and `tpot_ms` as {"p50", "p95"}, None where nothing was answered; `errors` by code.
    """
    rows = []
    timed(ask, prompts[0], num_tokens)  # the warm-up
    for index, concurrency in enumerate(concurrencies):
        rows.append(_row(concurrency, _run_load(ask, prompts, concurrency, num_tokens)))
        advance((index + 1) / len(concurrencies))
    return rows


def _run_load(ask: Ask, prompts: Sequence[Sequence[int]], concurrency: int, num_tokens: int) -> _Load:
    load, lock = _Load(), threading.Lock()
    queue = iter(list(itertools.islice(itertools.cycle(prompts), REQUESTS_PER_CLIENT * concurrency)))

    def client(_: int) -> None:
        while True:
            with lock:
                prompt = next(queue, None)
            if prompt is None:
                return
            try:
                one = timed(ask, prompt, num_tokens)
            except TrtSpecError as error:
                with lock:
                    load.errors[error.code] += 1
            else:
                with lock:
                    load.answers.append(one)

    started = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(client, range(concurrency)))
    load.seconds = time.perf_counter() - started
    return load


def _row(concurrency: int, load: _Load) -> dict[str, Any]:
    return {
        "concurrency": concurrency,
        "num_requests": len(load.answers) + load.errors.total(),
        "requests_per_s": len(load.answers) / load.seconds,
        "tokens_per_s": sum(one.num_tokens for one in load.answers) / load.seconds,
        "ttft_ms": _percentiles([one.ttft_ms for one in load.answers]),
        "tpot_ms": _percentiles([one.tpot_ms for one in load.answers]),
        "errors": dict(load.errors),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    return {f"p{q}": float(np.percentile(values, q)) for q in (50, 95)} if values else None
