"""One engine, several ways to draft: plain, as configured, with adaptive draft lengths, with lookup before the drafter.

Greedy, one request at a time. The arms take turns over the same prompts, in an order that is reversed every round, so
that a drift of the machine falls on all of them; the first round warms up and is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trt_spec.config.drafting import NgramFirstConfig
from trt_spec.methods import METHODS
from trt_spec.runtime.drafters.ngram import NgramDrafter
from trt_spec.runtime.drafters.ngram_first import NgramFirstDrafter
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.loading import draft_lengths
from trt_spec.runtime.request import Completion, Request, SamplingParams
from trt_spec.runtime.step_costs import measure_step_costs

DEFAULT_NUM_TOKENS = 96
DEFAULT_NUM_ROUNDS = 3
Advance = Callable[[float], None]


@dataclass
class _Arm:
    """One way to draft. `has_ngram_first` and `is_adaptive` are switched on for its requests only."""

    speculation: bool = True
    is_adaptive: bool = False
    has_ngram_first: bool = False
    seconds: float = 0.0
    num_tokens: int = 0
    completions: list[Completion] = field(default_factory=list)


def measure_drafting(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int = DEFAULT_NUM_TOKENS,
    num_rounds: int = DEFAULT_NUM_ROUNDS,
    advance: Advance = lambda part: None,
) -> dict[str, dict[str, Any]]:
    """Times every arm on every prompt.

    Args:
        engine: idle, with a drafter.
        prompts: token ids of each prompt.
        num_tokens: output tokens of each call; the end of text does not stop it.
        advance: called with the part done, 0 to 1.

    Returns:
        By arm: `tokens_per_s`; `speedup` over plain; `mean_acceptance_length`; `draft_tokens_per_draft`;
            `acceptance_rate`.
    """
    arms = {"plain": _Arm(speculation=False), "fixed": _Arm(), "adaptive": _Arm(is_adaptive=True)}
    if METHODS[engine.config.speculation.method].is_neural:
        arms["ngram_first"] = _Arm(has_ngram_first=True)
        arms["ngram_first, adaptive"] = _Arm(has_ngram_first=True, is_adaptive=True)
    params, step_costs = SamplingParams(max_tokens=num_tokens, ignore_eos=True), step_costs_of(engine)
    for index in range(num_rounds + 1):
        for prompt in prompts:
            for arm in list(arms.values()) if index % 2 else reversed(list(arms.values())):
                with _switched(engine, arm, step_costs):
                    started = time.perf_counter()
                    [answer] = engine.generate([Request("bench", tuple(prompt), params, arm.speculation)])
                    elapsed = time.perf_counter() - started
                if index:
                    arm.seconds += elapsed
                    arm.num_tokens += len(answer.token_ids)
                    arm.completions.append(answer.completion)
        advance(index / num_rounds)
    plain = arms["plain"].num_tokens / arms["plain"].seconds
    return {name: _figures(arm, plain) for name, arm in arms.items()}


def step_costs_of(engine: Engine) -> Mapping[int, float]:
    """The costs of a step by which an engine adapts its drafts, or would: timed now where its build had no need to."""
    costs = engine.draft_lengths.costs
    return measure_step_costs(engine.target, engine.limits) if costs is None else costs.step


@contextmanager
def _switched(engine: Engine, arm: _Arm, step_costs: Mapping[int, float]) -> Iterator[None]:
    """The engine as the arm wants it, and as it was before afterwards."""
    drafter, lengths = engine.drafter, engine.draft_lengths
    bare = drafter.neural if isinstance(drafter, NgramFirstDrafter) else drafter
    first = engine.config.speculation.ngram_first or NgramFirstConfig()
    lookup = NgramDrafter(first.min_ngram, first.max_ngram)
    engine.drafter = NgramFirstDrafter(lookup, bare) if arm.has_ngram_first else bare
    speculation = engine.config.speculation.model_copy(update={"adaptive_draft_len": arm.is_adaptive})
    engine.draft_lengths = draft_lengths(speculation, step_costs)
    try:
        yield
    finally:
        engine.drafter, engine.draft_lengths = drafter, lengths


def _figures(arm: _Arm, plain_tokens_per_s: float) -> dict[str, Any]:
    drafts = sum(one.num_drafts for one in arm.completions)
    drafted = sum(one.total_draft_tokens for one in arm.completions)
    accepted = sum(one.total_accepted_draft_tokens for one in arm.completions)
    return {
        "tokens_per_s": arm.num_tokens / arm.seconds,
        "speedup": arm.num_tokens / arm.seconds / plain_tokens_per_s,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
        "draft_tokens_per_draft": drafted / drafts if drafts else 0.0,
        "acceptance_rate": accepted / drafted if drafted else 0.0,
    }
