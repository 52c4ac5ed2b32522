"""Throughput against concurrency: plain, fixed drafts, adaptive drafts, and the peers, on the same prompts in turns.

Greedy. A call sends as many prompts at once as the concurrency says and waits for all; the end of text does not stop
them, so that every arm gives the same number of tokens. The order of the arms is reversed every round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trt_spec.latency.peers import load_transformers
from trt_spec.runtime.loading import draft_lengths
from trt_spec.runtime.request import Request, SamplingParams

if TYPE_CHECKING:
    from trt_spec.runtime.engine import Engine

CONCURRENCIES = (1, 2, 4, 8, 16)
DEFAULT_NUM_TOKENS = 48
DEFAULT_NUM_ROUNDS = 3
Arm = Callable[[Sequence[Sequence[int]], int], float]  # prompts, tokens of each -> seconds


def measure_sweep(
    engine: Engine,
    prompts: Mapping[str, Sequence[Sequence[int]]],
    peers: Mapping[str, Arm],
    *,
    concurrencies: Sequence[int] = CONCURRENCIES,
    num_tokens: int = DEFAULT_NUM_TOKENS,
    num_rounds: int = DEFAULT_NUM_ROUNDS,
    advance: Callable[[float], None] = lambda part: None,
) -> dict[str, Any]:
    """Times every arm on every kind of prompt at every concurrency.

    Args:
        engine: idle, with a drafter.
        prompts: kind to token ids; they are repeated in order where there are fewer than the concurrency.
        peers: further arms by name.

    Returns:
        `kinds`: kind to concurrency to arm to output tokens per second, the median over rounds; `worst_adaptive`: the
            smallest throughput of the adaptive arm over the better of plain and fixed, with its place.
    """
    arms = own_arms(engine) | dict(peers)
    kinds: dict[str, dict[int, dict[str, float]]] = {}
    total, done = len(prompts) * len(concurrencies), 0
    for kind, texts in prompts.items():
        kinds[kind] = {}
        for concurrency in concurrencies:
            batch = [texts[index % len(texts)] for index in range(concurrency)]
            seconds: dict[str, list[float]] = {name: [] for name in arms}
            for arm in arms.values():
                arm(batch, 4)  # the warm-up
            for index in range(num_rounds):
                for name in list(arms) if index % 2 == 0 else reversed(list(arms)):
                    seconds[name].append(arms[name](batch, num_tokens))
            kinds[kind][concurrency] = {
                name: concurrency * num_tokens / statistics.median(times) for name, times in seconds.items()
            }
            done += 1
            advance(done / total)
    return {
        "kinds": kinds,
        "worst_adaptive": worst_adaptive(kinds),
        "num_tokens": num_tokens,
        "num_rounds": num_rounds,
        "dtype": engine.config.target.dtype,
    }


def worst_adaptive(kinds: Mapping[str, Mapping[int, Mapping[str, float]]]) -> dict[str, Any]:
    """Where adaptive drafts are furthest below the better of plain and fixed ones."""
    places = [
        {"ratio": arms["adaptive"] / max(arms["plain"], arms["fixed"]), "kind": kind, "concurrency": concurrency}
        for kind, by_concurrency in kinds.items()
        for concurrency, arms in by_concurrency.items()
    ]
    return min(places, key=lambda place: place["ratio"])


def own_arms(engine: Engine) -> dict[str, Arm]:
    """Plain decoding, drafts of full length, and drafts as far as they pay, on one engine."""

    def arm(speculation: bool, is_adaptive: bool) -> Arm:
        def run(prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
            params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
            requests = [
                Request(f"sweep-{index}", tuple(ids), params, speculation=speculation)
                for index, ids in enumerate(prompts)
            ]
            with _policy(engine, is_adaptive):
                started = time.perf_counter()
                engine.generate(requests)
                return time.perf_counter() - started

        return run

    return {"plain": arm(False, False), "fixed": arm(True, False), "adaptive": arm(True, True)}


@contextmanager
def _policy(engine: Engine, is_adaptive: bool):
    before = engine.draft_lengths
    changes = {"adaptive_draft_len": is_adaptive, "draft_len_schedule": None}
    engine.draft_lengths = draft_lengths(engine.config.speculation.model_copy(update=changes))
    try:
        yield
    finally:
        engine.draft_lengths = before


def transformers_arm(engine: Engine, target_dir: Any) -> Arm:
    """transformers' generate on a batch with padding to the left."""
    import torch

    device, model = engine.target.device, load_transformers(engine, target_dir)

    def run(prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts], device=device)
        started = time.perf_counter()
        model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=num_tokens)
        return time.perf_counter() - started

    return run
