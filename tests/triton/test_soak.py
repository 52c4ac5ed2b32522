"""What clients do to a served model, on a real tritonserver: nothing is lost and the next request is right.

Each test has a short form in `make test`; the long ones, marked soak, are `make soak`.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.triton import abuse
from tests.triton.conftest import LONG, MAX_BATCH_SIZE, MAX_DRAFT_LEN, MAX_SEQ_LEN
from tests.triton.test_serving import REPETITIVE, metrics, wait_for
from tests.waiting import WAIT_S, until
from trt_spec.errors import RequestError

pytestmark = pytest.mark.server
soak = pytest.mark.soak


@pytest.fixture(scope="module")
def expected(client):
    return abuse.alone(client)


@pytest.fixture(autouse=True)
def idle(server, client, expected):
    """Every test starts and ends with nothing running, no slot taken, and a server whose next answer is right."""
    wait_for(server, running=0)
    yield
    wait_for(server, running=0)
    abuse.assert_next_is_right(client, expected)
    until(lambda: metrics(server)["trt_spec_kv_slots_used"] == 0)
    server.check()


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=soak)])
def test_sixteen_clients(client, server, expected, seconds):
    before = abuse.outcomes(server)
    tally = abuse.hammer(client, expected, num_clients=16, seconds=seconds, num_answers=10 * seconds)
    assert tally.wrong == []
    assert tally.outcomes["answered"] > 10 * seconds
    until(lambda: (abuse.outcomes(server) - before)["length"] >= tally.outcomes["answered"])
    counted = abuse.outcomes(server) - before
    assert counted["length"] == tally.outcomes["answered"]
    assert counted["failed"] == counted["cancelled"] == 0


@pytest.mark.parametrize("number", [15, pytest.param(200, marks=soak)])
def test_random_cancels_beside_a_neighbour(client, number):
    params = {"max_tokens": 300, "ignore_eos": True, "speculation": False}
    alone = client.generate("a neighbour", **params).token_ids
    rng = random.Random(0)
    ways = {way: 0 for way in ("stream", "generate_stream", "deadline", "stop", "stop unary")}
    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(client.generate, "a neighbour", **params)
        for _ in range(number):
            ways[abuse.cancel_one(client, rng)] += 1
            if neighbour.done():
                assert neighbour.result().token_ids == alone
                neighbour = pool.submit(client.generate, "a neighbour", **params)
        assert neighbour.result(WAIT_S).token_ids == alone
    assert min(ways.values()) > 0


def test_all_slots_cancelled_at_once(client):
    streams = [client.stream(f"p{number}", **LONG) for number in range(MAX_BATCH_SIZE)]
    for stream in streams:
        next(stream)
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("distance", range(MAX_DRAFT_LEN + 3))
def test_prompts_up_to_the_context_limit(client, distance):
    ids = [100, 101, 102] * MAX_SEQ_LEN
    ids = ids[: MAX_SEQ_LEN - distance]
    if distance == 0:
        with pytest.raises(RequestError, match="longer than the context"):
            client.generate(ids, max_tokens=50, **REPETITIVE)
        return
    answer = client.generate(ids, max_tokens=50, **REPETITIVE)
    assert answer.completion.finish_reason == "length"
    assert answer.completion.num_output_tokens == len(answer.token_ids) == distance
    plain = client.generate(ids, max_tokens=50, speculation=False, **REPETITIVE)
    assert answer.token_ids == plain.token_ids


@pytest.mark.parametrize("number", [100, pytest.param(1000, marks=soak)])
def test_requests_one_after_the_other_cost_nothing_that_lasts(client, server, number):
    """The allocators of Python, gRPC and Triton settle in the first requests, hence the warm-up; see the bounds."""

    def send(count):
        for index in range(count):
            way = list(abuse.WAYS)[index % len(abuse.WAYS)]
            prompt = abuse.PROMPTS[index % len(abuse.PROMPTS)]
            assert len(abuse.WAYS[way](client, prompt, max_tokens=5, ignore_eos=True).token_ids) == 5

    send(max(50, number // 4))
    wait_for(server, running=0)
    before = abuse.Usage.of(server)
    send(number)
    wait_for(server, running=0)
    after = abuse.Usage.of(server)
    assert max(after.new_files(before).values()) <= 2, after.new_files(before)
    growth = after.growth_mib(before)
    assert max(growth.values()) < 8 + number / 250, growth  # MiB; a leak of a chunk per request would be far more
