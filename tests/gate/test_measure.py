"""The driver: order of blocks, concurrency, arrivals, warm-up, errors; on a fake clock and a fake server."""

from __future__ import annotations

import threading
import time

import pytest

from tests.gate.fakes import FakeClock, FakeServer
from trt_spec.clients.prompts import Prompt
from trt_spec.errors import MachineError
from trt_spec.gate import verdict as gate
from trt_spec.gate.arrivals import ClosedLoop, Poisson
from trt_spec.gate.measure import MIN_REQUESTS, Plan, abba, measure
from trt_spec.gate.records import ARMS, WARM_UP
from trt_spec.gate.verdict import Demands

PROMPTS = [Prompt(name, name) for name in "abcde"]


def both(server):
    """One server for both arms."""
    return dict.fromkeys(ARMS, server)


def test_abba():
    order = list(abba(4))
    letters = "".join("A" if arm == "plain" else "B" for _, arm in order)
    assert letters == "ABBABAAB"
    assert [pair for pair, _ in order] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_run():
    clock = FakeClock()
    server, parts, warm = FakeServer(clock), [], []
    plan = Plan([ClosedLoop(1)], PROMPTS, 20, 9)
    found = measure(both(server), plan, clock=clock, advance=parts.append, on_warm_up=warm.extend)
    assert len(found) == MIN_REQUESTS * 42 == len(server.asked)
    assert [record.trace.prompt for record in found[:4]] == list("abcd")
    assert {record.pair for record in warm} == {WARM_UP}
    assert len(warm) == 2 * MIN_REQUESTS
    assert parts[-1] == 1
    assert {asked[2] for asked in server.asked} == {9}
    assert [asked[1] for asked in server.asked] == [record.arm for record in found]
    plain = next(record for record in found if record.arm == "plain" and record.pair == 3)
    assert plain.trace.ttft_ms == 20
    assert plain.trace.tpot_ms == 10
    judged = gate.evaluate(found, Demands({"concurrency 1": 1.2}))
    # 20 + 8 · 10 ms against 20 + 4 · 12 ms, without any noise
    assert judged.loads[0].ratios["speedup"].estimate == pytest.approx(100 / 68)
    assert judged.verdict == "pass"
    assert judged.loads[0].arms["speculation"].acceptance.acceptance_rate == 0.5


def test_both_arms_of_a_pair_send_the_same_at_the_same_times():
    clock = FakeClock()
    found = measure(both(FakeServer(clock)), Plan([Poisson(5.0)], PROMPTS, 2, 4), clock=clock)
    times = {}
    for record in found:
        times.setdefault((record.pair, record.arm), []).append((record.trace.prompt, record.trace.due_ns))
    for pair in (0, 1):
        gaps = [
            [(name, due - rows[0][1]) for name, due in rows]
            for rows in (times[pair, "plain"], times[pair, "speculation"])
        ]
        assert gaps[0] == gaps[1]
        assert len({due for _, due in gaps[0]}) == len(gaps[0]) == 2 * MIN_REQUESTS
    assert times[0, "plain"][1][1] - times[0, "plain"][0][1] != times[1, "plain"][1][1] - times[1, "plain"][0][1]
    assert all(record.trace.sent_ns >= record.trace.due_ns for record in found)


class Crowd(FakeServer):
    """Counts how many requests are there at once; each waits until it is as crowded as it should be."""

    def __init__(self, clock, size):
        super().__init__(clock)
        self.barrier, self.now, self.most, self.lock = threading.Barrier(size), 0, 0, threading.Lock()

    def ask(self, *arguments, **options):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.barrier.wait(timeout=10)
        time.sleep(0.005)  # whoever else is let in, comes in now
        with self.lock:
            self.now -= 1
        return super().ask(*arguments, **options)


@pytest.mark.parametrize("concurrency", [2, 8])
def test_a_closed_loop_keeps_its_concurrency(concurrency):
    clock = FakeClock()
    server = Crowd(clock, concurrency)
    found = measure(both(server), Plan([ClosedLoop(concurrency)], PROMPTS, 2, 4), clock=clock)
    assert server.most == concurrency
    assert len(found) == 6 * max(concurrency, MIN_REQUESTS)
    assert [record.trace.prompt for record in found[:4]] == list(
        "abcd"
    )  # in the order of the workload, whoever was first


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_failed_request_ends_the_run(concurrency):
    clock = FakeClock()

    class Failing(FakeServer):
        def ask(self, *arguments, **options):
            answer = super().ask(*arguments, **options)
            if len(self.asked) > 9:
                raise MachineError("gone")
            return answer

    server = Failing(clock)
    with pytest.raises(MachineError, match="gone"):
        measure(both(server), Plan([ClosedLoop(concurrency)], PROMPTS, 20, 4), clock=clock)
    assert len(server.asked) <= 9 + concurrency


def test_the_warm_up_may_refuse():
    clock = FakeClock()
    server = FakeServer(clock)

    def refuse(records):
        raise MachineError("not like this")

    with pytest.raises(MachineError, match="not like this"):
        measure(both(server), Plan([ClosedLoop(1)], PROMPTS, 20, 4), clock=clock, on_warm_up=refuse)
    assert len(server.asked) == 2 * MIN_REQUESTS
