"""One request to the served model, and what the engine is asked for it: a request for each of its n sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trt_spec.runtime.request import Request, SamplingParams


@dataclass(frozen=True)
class ServedRequest:
    """One request as the model understands it.

    Attributes:
        text: the prompt as text, or None where it came as ids.
        input_ids: the prompt as ids, or None where it came as text.
        n: sequences to generate.
        streaming: send deltas.
        is_stop: not a prompt: stop what runs under this request's id.
        exclude_input_from_output: false puts the prompt before the text.
        return_perf_metrics, return_finish_reason, return_stop_reason, return_cumulative_logprob: what to send at the
            end.
    """

    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    speculation: bool = True
    max_draft_len: int | None = None
    streaming: bool = False
    is_stop: bool = False
    exclude_input_from_output: bool = True
    return_perf_metrics: bool = True
    return_finish_reason: bool = True
    return_stop_reason: bool = True
    return_cumulative_logprob: bool = False
    wants_logprobs: bool = False


def engine_requests(served: ServedRequest, request_id: str, input_ids: Sequence[int]) -> tuple[Request, ...]:
    """What the engine is asked: one request for each sequence, with a random stream of its own.

    Without a seed every one draws its own. With one, the first sequence has it, so that it is what the same request
    gives with n = 1; the others have a 64-bit mix of it and their index, which no client arrives at by counting.
    """
    prompt, requests = tuple(input_ids), []
    for index in range(served.n):
        params = served.params
        if params.seed is not None:
            params = replace(params, seed=seed_of(params.seed, index))
        name = request_id if served.n == 1 else f"{request_id}.{index}"
        requests.append(Request(name, prompt, params, served.speculation, served.max_draft_len))
    return tuple(requests)


def seed_of(seed: int, index: int) -> int:
    """The seed of one sequence of a request with a seed, or of one round: the first has it, the others a 64-bit mix."""
    if index == 0:
        return seed
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
