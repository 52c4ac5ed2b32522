"""Ways to draft for one target beside each other and beside plain decoding: one request at a time, by turns.

Every way is an engine of its own; plain decoding is the first of them with speculation off. Greedy, and the end of text
stops a reply, for what a model writes after its end is easier to draft than what it is asked for. On each prompt the
arms take turns, in an order that is reversed every round, so that a drift of the machine falls on all of them; the
first round warms up and is not counted. With n output tokens of one reply:

    ttft = first token − sent       tpot = (latency − ttft) / (n − 1)       latency = last token − sent
    tokens per step = (n − 1) / (n − 1 − accepted draft tokens): the prompt's own step gives the first token
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trt_spec.runtime.engine import Engine
from trt_spec.runtime.request import Request, SamplingParams

DEFAULT_NUM_TOKENS = 48
DEFAULT_NUM_ROUNDS = 3
PLAIN = "plain"
Advance = Callable[[float], None]


@dataclass(frozen=True)
class Reply:
    """One reply and when it came."""

    token_ids: tuple[int, ...]
    num_accepted_tokens: int
    ttft_s: float
    latency_s: float


@dataclass(frozen=True)
class Round:
    """The replies of one arm to every prompt of a workload, added up."""

    num_replies: int
    num_tokens: int
    num_accepted_tokens: int
    ttft_s: float
    latency_s: float

    @classmethod
    def of(cls, replies: Sequence[Reply]) -> Round:
        return cls(
            len(replies),
            sum(len(reply.token_ids) for reply in replies),
            sum(reply.num_accepted_tokens for reply in replies),
            sum(reply.ttft_s for reply in replies),
            sum(reply.latency_s for reply in replies),
        )

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.latency_s

    @property
    def ttft_ms(self) -> float:
        return 1e3 * self.ttft_s / self.num_replies

    @property
    def tpot_ms(self) -> float:
        return 1e3 * (self.latency_s - self.ttft_s) / max(self.num_tokens - self.num_replies, 1)

    @property
    def tokens_per_step(self) -> float:
        decoded = self.num_tokens - self.num_replies
        return decoded / max(decoded - self.num_accepted_tokens, 1)


def measure_methods(
    engines: Mapping[str, Engine],
    workloads: Mapping[str, Sequence[Sequence[int]]],
    *,
    num_tokens: int = DEFAULT_NUM_TOKENS,
    num_rounds: int = DEFAULT_NUM_ROUNDS,
    advance: Advance = lambda part: None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Times every arm on every prompt of every workload.

    Args:
        engines: idle, of one target, each with a drafter; their names are those of the arms.
        workloads: token ids of each prompt, by workload.
        num_tokens: most output tokens of a reply.
        num_rounds: rounds that count.
        advance: called with the part done, 0 to 1.

    Returns:
        By workload, by arm, of which the first is "plain": medians over rounds of `tokens_per_s`, `ttft_ms`, `tpot_ms`,
            and of `speedup` (tokens per second over those of "plain" in the same round, with `lowest` and `highest`);
            `tokens_per_step`; and `outputs`, the token ids of every reply.
    """
    arms = {PLAIN: (next(iter(engines.values())), False), **{name: (engine, True) for name, engine in engines.items()}}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for place, (workload, prompts) in enumerate(workloads.items()):
        rounds: dict[str, list[list[Reply]]] = {name: [] for name in arms}
        for index in range(num_rounds + 1):
            replies: dict[str, list[Reply]] = {name: [] for name in arms}
            for prompt in prompts:
                for name in list(arms) if index % 2 else reversed(list(arms)):
                    replies[name].append(reply(*arms[name], prompt, num_tokens))
            for name in arms if index else ():
                rounds[name].append(replies[name])
            advance((place + (index + 1) / (num_rounds + 1)) / len(workloads))
        plain = [Round.of(one) for one in rounds[PLAIN]]
        found[workload] = {name: _figures(of_arm, plain) for name, of_arm in rounds.items()}
    return found


def reply(engine: Engine, speculation: bool, prompt: Sequence[int], num_tokens: int) -> Reply:
    """One greedy reply of an idle engine, timed.

    Raises:
        TrtSpecError: the request does not fit the engine, or fails.
    """
    request = Request("bench", tuple(prompt), SamplingParams(max_tokens=num_tokens), speculation)
    token_ids, times, num_accepted = [], [], 0
    started = time.perf_counter()
    engine.add(request)
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error is not None:
                raise chunk.error
            if chunk.token_ids:
                times.append(time.perf_counter() - started)
                token_ids += chunk.token_ids
            if chunk.completion is not None:
                num_accepted = chunk.completion.total_accepted_draft_tokens
    return Reply(tuple(token_ids), num_accepted, times[0], times[-1])


def _figures(replies: Sequence[Sequence[Reply]], plain: Sequence[Round]) -> dict[str, Any]:
    rounds = [Round.of(one) for one in replies]
    speedups = [one.tokens_per_s / other.tokens_per_s for one, other in zip(rounds, plain, strict=True)]
    names = ("tokens_per_s", "ttft_ms", "tpot_ms")
    return {
        **{name: statistics.median(getattr(one, name) for one in rounds) for name in names},
        "tokens_per_step": rounds[0].tokens_per_step,
        "speedup": statistics.median(speedups),
        "lowest": min(speedups),
        "highest": max(speedups),
        "outputs": [list(one.token_ids) for one in replies[0]],
    }
