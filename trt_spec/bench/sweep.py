"""Throughput against concurrency: plain, fixed drafts, adaptive drafts, and the peers, on the same prompts in turns.

Greedy. A call sends as many prompts at once as the concurrency says and waits for all, and then the next ones, until
each was sent; the end of text does not stop them, so that every arm gives the same number of tokens. The order of the
arms is reversed every round.

Our own arms all give the text that plain decoding gives a prompt alone, see `replay_rule`. Otherwise chance would tell
them apart: in bfloat16 two logits may tie, steps of other rows break the tie differently, and one of the texts that
follow is easier to draft for than the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trt_spec.bench.drafting import step_costs_of
from trt_spec.bench.peers import load_transformers
from trt_spec.runtime.loading import draft_lengths
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.runtime.synthetic import replay_rule

if TYPE_CHECKING:
    from trt_spec.runtime.acceptance import AcceptanceRule
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
    step_costs = step_costs_of(engine)
    kinds: dict[str, dict[int, dict[str, float]]] = {}
    total, done = len(prompts) * len(concurrencies), 0
    for kind, texts in prompts.items():
        kinds[kind] = {}
        arms = own_arms(engine, step_costs, plain_texts(engine, texts, num_tokens)) | dict(peers)
        for concurrency in concurrencies:
            batches = _batches(texts, concurrency)
            seconds: dict[str, list[float]] = {name: [] for name in arms}
            for arm in arms.values():
                arm(batches[0], min(4, num_tokens))  # the warm-up
            for index in range(num_rounds):
                for name in list(arms) if index % 2 == 0 else reversed(list(arms)):
                    seconds[name].append(sum(arms[name](batch, num_tokens) for batch in batches))
            num_output_tokens = concurrency * len(batches) * num_tokens
            kinds[kind][concurrency] = {
                name: num_output_tokens / statistics.median(times) for name, times in seconds.items()
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


def _batches(texts: Sequence[Sequence[int]], concurrency: int) -> list[list[Sequence[int]]]:
    """Every prompt at least once, `concurrency` of them at a time, from the beginning again where they end."""
    count = -(-len(texts) // concurrency)
    return [
        [texts[(first * concurrency + index) % len(texts)] for index in range(concurrency)] for first in range(count)
    ]


def plain_texts(engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int) -> dict[tuple[int, ...], list[int]]:
    """Prompt to prompt and output of plain decoding, one prompt at a time."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    found = {}
    for prompt in map(tuple, prompts):
        [answer] = engine.generate([Request("sweep", prompt, params, speculation=False)])
        found[prompt] = [*prompt, *answer.token_ids]
    return found


def own_arms(
    engine: Engine, step_costs: Mapping[int, float], texts: Mapping[tuple[int, ...], Sequence[int]]
) -> dict[str, Arm]:
    """Plain decoding, drafts of full length, and drafts as far as they pay, on one engine.

    Args:
        step_costs: what the adaptive arm weighs, unless the run gives speculation.costs.
        texts: what each prompt's request has to give, see `plain_texts`.
    """
    known = list(texts)

    def arm(speculation: bool, is_adaptive: bool) -> Arm:
        def run(prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
            requests = [
                Request(
                    f"sweep-{index}",
                    tuple(ids),
                    SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=known.index(tuple(ids))),
                    speculation=speculation,
                )
                for index, ids in enumerate(prompts)
            ]
            with _switched(engine, is_adaptive, step_costs, replay_rule(list(texts.values()))):
                started = time.perf_counter()
                engine.generate(requests)
                return time.perf_counter() - started

        return run

    return {"plain": arm(False, False), "fixed": arm(True, False), "adaptive": arm(True, True)}


@contextmanager
def _switched(engine: Engine, is_adaptive: bool, step_costs: Mapping[int, float], rule: AcceptanceRule):
    before = engine.draft_lengths, engine.rule
    changes = {"adaptive_draft_len": is_adaptive, "draft_len_schedule": None}
    engine.draft_lengths = draft_lengths(engine.config.speculation.model_copy(update=changes), step_costs)
    engine.rule = rule
    try:
        yield
    finally:
        engine.draft_lengths, engine.rule = before


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
