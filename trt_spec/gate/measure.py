"""The measurement: blocks of requests to the clients of two arms, plain and speculative by turns, each recorded."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trt_spec.clients.client import Client, Params
from trt_spec.clients.prompts import Prompt, take
from trt_spec.clients.rounds import Advance, in_turn
from trt_spec.gate.arrivals import Arrivals, ClosedLoop
from trt_spec.gate.records import ARMS, WARM_UP, Arm, Placed
from trt_spec.runtime.request import SamplingParams

MIN_REQUESTS = 4  # of a block, so that a block of one client lasts longer than the clock's and the system's jitter


class Clock:
    """The machine's monotonic time, in nanoseconds."""

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def sleep_until_ns(self, time_ns: int) -> None:
        time.sleep(max(0, time_ns - time.perf_counter_ns()) / 1e9)


@dataclass(frozen=True)
class Plan:
    """What is sent.

    Attributes:
        loads: each measured by itself, one after the other.
        prompts: every block of a load sends the same ones, from the first on.
        num_pairs: blocks of each arm; even.
        max_tokens: output tokens of each request.
    """

    loads: Sequence[Arrivals]
    prompts: Sequence[Prompt]
    num_pairs: int
    max_tokens: int

    def requests(self, load: Arrivals) -> list[Prompt]:
        """The prompts of one block."""
        wanted = max(load.concurrency, MIN_REQUESTS) if isinstance(load, ClosedLoop) else 2 * MIN_REQUESTS
        return take(self.prompts, wanted)


def abba(num_pairs: int) -> Iterator[tuple[int, Arm]]:
    """(pair, arm) of every block in the order of time: ABBA, BAAB, and so on, see `in_turn`."""
    return ((pair, arm) for pair in range(num_pairs) for arm in in_turn(ARMS, pair))


def measure(
    clients: Mapping[Arm, Client],
    plan: Plan,
    *,
    clock: Clock | None = None,
    advance: Advance = lambda part: None,
    on_warm_up: Callable[[Sequence[Placed]], None] = lambda records: None,
) -> list[Placed]:
    """Measures every load: one block of each arm to warm up, then the pairs. Requests are greedy and ignore EOS.

    Args:
        clients: by arm, or the same one twice; each is asked from many threads at once.
        advance: called with the part done, 0 to 1.
        on_warm_up: called with the warm-up's records of each load before its pairs; may raise.

    Raises:
        TrtSpecError: a request failed; the run ends there, for a load with holes is another load.
    """
    clock, records = clock or Clock(), []
    num_blocks, done = len(plan.loads) * (2 * plan.num_pairs + 2), 0
    for load in plan.loads:
        warm_up = [(WARM_UP, arm) for arm in ARMS]
        for block, (pair, arm) in enumerate(itertools.chain(warm_up, abba(plan.num_pairs))):
            records += _block(clients[arm], plan, load, arm, pair, block, clock)
            if block == len(warm_up) - 1:
                on_warm_up(records[-2 * len(plan.requests(load)) :])
            done += 1
            advance(done / num_blocks)
    return records


def _block(client: Client, plan: Plan, load: Arrivals, arm: Arm, pair: int, block: int, clock: Clock) -> list[Placed]:
    """One block of one arm; the two of a pair send the same at the same times."""
    prompts = plan.requests(load)
    params = Params(SamplingParams(max_tokens=plan.max_tokens, ignore_eos=True), speculation=arm == "speculation")
    due = load.due_ns(len(prompts), seed=max(pair, 0))
    start = clock.now_ns()

    def send(number: int) -> Placed:
        due_ns = None if due is None else start + due[number]
        if due_ns is not None:
            clock.sleep_until_ns(due_ns)
        request_id = f"gate-{load.name}-{block}-{number}".replace(" ", "-")
        trace = client.ask(prompts[number], params, request_id=request_id, due_ns=due_ns, now=clock.now_ns)
        return Placed(trace, load.name, arm, block, pair)

    num_clients = load.concurrency if isinstance(load, ClosedLoop) else len(prompts)
    return _on_threads(send, len(prompts), num_clients)


def _on_threads(send: Callable[[int], Placed], num_requests: int, num_clients: int) -> list[Placed]:
    """Sends all requests from `num_clients` clients; after an error no client begins another, and it is raised."""
    numbers, found = iter(range(num_requests)), {}  # each client takes the next number when its last answer is there

    def client() -> None:
        try:
            found.update((number, send(number)) for number in numbers)
        finally:
            list(numbers)  # after an error there is no next one

    with ThreadPoolExecutor(num_clients, thread_name_prefix="client") as pool:
        clients = [pool.submit(client) for _ in range(num_clients)]
    for each in clients:
        each.result()
    return [found[number] for number in range(num_requests)]
