"""The n sequences of one served request: one request to the engine for each, with a random stream of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trt_spec.runtime.request import Request
from trt_spec.triton.codec import ServedRequest


def engine_requests(served: ServedRequest, request_id: str, input_ids: Sequence[int]) -> tuple[Request, ...]:
    """What the engine is asked: one request for each sequence, with a random stream of its own.

    Without a seed every one draws its own. With one, the first sequence has it, so that it is what the same request
    gives with n = 1; the others have a 64-bit mix of it and their index, which no client arrives at by counting.
    """
    prompt, requests = tuple(input_ids), []
    for index in range(served.n):
        params = served.params
        if params.seed is not None:
            params = replace(params, seed=sequence_seed(params.seed, index))
        name = request_id if served.n == 1 else f"{request_id}.{index}"
        requests.append(Request(name, prompt, params, served.speculation, served.max_draft_len))
    return tuple(requests)


def sequence_seed(seed: int, index: int) -> int:
    """The seed of one sequence of a request with a seed: the first has it, the others a 64-bit mix."""
    if index == 0:
        return seed
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
