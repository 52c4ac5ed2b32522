"""What a head is worth: acceptance on prompts that it was not trained on, through the engine that serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from trt_spec.runtime.engine import Engine
from trt_spec.runtime.request import Chunk, Completion, Request, SamplingParams, join

TEMPERATURES = (0.0, 0.7, 1.0)
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Acceptance:
    """Drafts of one temperature over all prompts. Only replies are drafted, so only replies are counted.

    Attributes:
        temperature: of the requests.
        num_prompts: requests.
        num_output_tokens: of all replies.
        num_drafts: steps with a draft.
        num_accepted_tokens: drafted tokens that were accepted.
        num_accepted_tokens_per_pos: the same by position in the draft.
    """

    temperature: float
    num_prompts: int
    num_output_tokens: int
    num_drafts: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: list[int]

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafts: tokens of a drafted step, with the one that ends it."""
        return 1 + self.num_accepted_tokens / max(self.num_drafts, 1)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, with the share of drafts that reached each position."""
        shares = [round(count / max(self.num_drafts, 1), 4) for count in self.num_accepted_tokens_per_pos]
        return {
            **asdict(self),
            "mean_acceptance_length": round(self.mean_acceptance_length, 4),
            "accepted_share_per_pos": shares,
        }


def measure_acceptance(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperatures: Sequence[float] = TEMPERATURES,
    seed: int = 0,
    progress: Progress = lambda part: None,
) -> list[Acceptance]:
    """Serves every prompt once at every temperature, with speculation, and counts.

    Args:
        engine: idle, with a drafter.
        prompts: token ids, chat template included.
        max_tokens: most tokens of a reply.
        seed: of the first request; the others count on from it.
        progress: called with the part done, 0 to 1.
    """
    found = []
    for index, temperature in enumerate(temperatures):
        params = [
            SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed + place)
            for place in range(len(prompts))
        ]
        requests = [
            Request(f"held-out/{place}", tuple(ids), param)
            for place, (ids, param) in enumerate(zip(prompts, params, strict=True))
        ]
        done = _completions(engine, requests, lambda part, index=index: progress((index + part) / len(temperatures)))
        found.append(
            Acceptance(
                temperature=temperature,
                num_prompts=len(prompts),
                num_output_tokens=sum(one.num_output_tokens for one in done),
                num_drafts=sum(one.num_drafts for one in done),
                num_accepted_tokens=sum(one.total_accepted_draft_tokens for one in done),
                num_accepted_tokens_per_pos=[
                    sum(counts) for counts in zip_longest(*(one.accepted_per_position for one in done), fillvalue=0)
                ],
            )
        )
    return found


def _completions(engine: Engine, requests: Sequence[Request], progress: Progress) -> list[Completion]:
    """Runs the requests as the engine has room for them."""
    chunks: dict[str, list[Chunk]] = {request.request_id: [] for request in requests}
    waiting, num_done = list(requests), 0
    while waiting or engine.has_work:
        while waiting and len(requests) - len(waiting) - num_done < engine.limits.max_batch_size:
            engine.add(waiting.pop(0))
        for chunk in engine.step():
            chunks[chunk.request_id].append(chunk)
            num_done += chunk.is_last
        progress(num_done / len(requests))
    return [join(chunks[request.request_id]).completion for request in requests]
