"""The n sequences of a request: no two share a random stream, and a seed gives the same ones again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.models import prompts, tiny_engine
from trt_spec.runtime.request import SamplingParams
from trt_spec.triton.served_request import ServedRequest, engine_requests

SEEDS = st.integers(0, 2**64 - 1)


@given(seed=SEEDS, n=st.integers(1, 20))
def test_the_first_has_the_seed_itself_and_no_two_have_one(seed, n):
    requests = engine_requests(ServedRequest(n=n, params=SamplingParams(seed=seed)), "7", [1, 2])
    seeds = [request.params.seed for request in requests]
    assert seeds[0] == seed
    assert len(set(seeds)) == n
    assert all(0 <= value < 2**64 for value in seeds)
    again = engine_requests(ServedRequest(n=n, params=SamplingParams(seed=seed)), "8", [1, 2])
    assert [request.params.seed for request in again] == seeds


@given(seed=st.integers(0, 2**64 - 20))
def test_clients_that_count_their_seeds_do_not_meet_the_samples_of_others(seed):
    others = {seed + number for number in range(1, 16)}
    mine = engine_requests(ServedRequest(n=16, params=SamplingParams(seed=seed)), "r", [1])
    assert not others & {request.params.seed for request in mine}


def test_the_engine_gives_different_samples_and_the_same_again():
    prompt = prompts(1, 32)[0]

    def samples(seed):
        engine = tiny_engine("draft_model")
        served = ServedRequest(n=4, params=SamplingParams(max_tokens=16, temperature=1.0, seed=seed))
        return [done.token_ids for done in engine.generate(engine_requests(served, "r", prompt))]

    first = samples(3)
    assert len({tuple(ids) for ids in first}) == 4
    assert samples(3) == first
    assert samples(4) != first
    unseeded = samples(None)
    assert len({tuple(ids) for ids in unseeded}) == 4
