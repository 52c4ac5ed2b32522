"""The engine behind its thread: submissions, cancellation, drain and failure."""

from __future__ import annotations

import threading

import pytest

from tests.runtime.models import prompts, tiny_engine
from tests.waiting import WAIT_S
from trt_spec.errors import MachineError, OverloadedError, RequestError
from trt_spec.runtime.request import Request, SamplingParams, join
from trt_spec.runtime.worker import EngineWorker


class Collector:
    """Collects the chunks of one request and says when the last one is there."""

    def __init__(self):
        self.chunks, self.done, self.first = [], threading.Event(), threading.Event()

    def __call__(self, chunk):
        self.chunks.append(chunk)
        self.first.set()
        if chunk.is_last:
            self.done.set()

    def result(self):
        assert self.done.wait(WAIT_S)
        return join(self.chunks)


@pytest.fixture
def worker():
    worker = EngineWorker(tiny_engine("ngram", max_queue_size=8)).start()
    yield worker
    worker.close()


def test_many_threads_get_what_the_engine_gives_alone(worker):
    ids = prompts(12, 32)
    want = [g.token_ids for g in tiny_engine().generate([Request(str(i), p) for i, p in enumerate(ids)])]
    collectors = [Collector() for _ in ids]
    threads = [
        threading.Thread(target=worker.submit, args=(Request(str(i), p), collectors[i])) for i, p in enumerate(ids)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert [collector.result().token_ids for collector in collectors] == want
    assert worker.num_in_flight == 0


def test_bad_requests_and_overload_are_refused_at_once(worker):
    with pytest.raises(RequestError):
        worker.submit(Request("bad", ()), Collector())
    collectors = [Collector() for _ in range(12)]
    for index, collector in enumerate(collectors):
        worker.submit(Request(str(index), (1, 2), SamplingParams(max_tokens=90)), collector)
    with pytest.raises(OverloadedError):
        worker.submit(Request("one too many", (1, 2)), Collector())
    assert worker.drain(WAIT_S)
    assert all(collector.result().completion.finish_reason == "length" for collector in collectors)
    with pytest.raises(OverloadedError, match="draining"):
        worker.submit(Request("late", (1,)), Collector())


def test_cancel_and_duplicate_id(worker):
    first, second = Collector(), Collector()
    worker.submit(Request("same", (1, 2), SamplingParams(max_tokens=90)), first)
    worker.submit(Request("same", (1, 2), SamplingParams(max_tokens=90)), second)
    with pytest.raises((OverloadedError, RequestError)):
        second.result()
    worker.submit(Request("other", (3,), SamplingParams(max_tokens=90)), other := Collector())
    assert other.first.wait(WAIT_S)
    worker.cancel("other")
    assert other.result().completion.finish_reason in ("cancelled", "length")
    first.result()


def test_close_cancels_what_is_in_flight():
    worker = EngineWorker(tiny_engine(max_seq_len=96)).start()
    collectors = [Collector() for _ in range(6)]
    for index, collector in enumerate(collectors):
        worker.submit(Request(str(index), (1,), SamplingParams(max_tokens=95)), collector)
    worker.close()
    assert all(c.result().completion.finish_reason in ("cancelled", "length") for c in collectors)


def test_what_is_accepted_is_queued_before_anybody_can_close(worker):
    """Otherwise a request between the check and the queue would never be answered."""
    commands, seen = worker._commands, []

    class Watched:
        def put(self, command):
            seen.append(worker._admission.locked())
            commands.put(command)

        def __getattr__(self, name):
            return getattr(commands, name)

    worker._commands = Watched()
    collector = Collector()
    worker.submit(Request("r", (1,), SamplingParams(max_tokens=2)), collector)
    assert seen == [True]
    commands.put(lambda: None)
    assert collector.result().completion.finish_reason == "length"


def test_a_failing_engine_tells_everyone(worker):
    def broken():
        raise RuntimeError("out of luck")

    worker.engine.step = broken
    collectors = [Collector() for _ in range(3)]
    for index, collector in enumerate(collectors):
        worker.submit(Request(str(index), (1,)), collector)
    for collector in collectors:
        with pytest.raises(MachineError, match="the engine has failed"):
            collector.result()
    with pytest.raises(MachineError):
        worker.submit(Request("after", (1,)), Collector())
    assert worker.drain(WAIT_S)


def test_a_raising_callback_loses_only_its_own_request(worker):
    def bad(chunk):
        raise ValueError("client gone")

    worker.submit(Request("bad", (1, 2), SamplingParams(max_tokens=90)), bad)
    worker.submit(Request("good", (1, 2)), good := Collector())
    assert len(good.result().token_ids) == 64
    assert worker.drain(WAIT_S)


def test_the_engine_is_loaded_on_the_thread_that_runs_it():
    """Two threads that both compute would make OpenMP's helpers sleep between operations."""
    names = []

    def load():
        names.append(threading.current_thread().name)
        return tiny_engine()

    worker = EngineWorker(load).start()
    worker.submit(Request("a", (1, 2)), collector := Collector())
    assert len(collector.result().token_ids) == 64
    worker.close()
    assert names == ["engine"]


def test_an_engine_that_cannot_be_loaded_is_told_to_who_starts_it():
    def load():
        raise RequestError("no such engine")

    with pytest.raises(RequestError, match="no such engine"):
        EngineWorker(load).start()


def test_requests_that_belong_together_are_all_admitted_or_none():
    engine, gate = tiny_engine(max_batch_size=2, max_queue_size=2), threading.Event()
    step = engine.step
    engine.step = lambda: step() if gate.wait(WAIT_S) else []
    worker = EngineWorker(engine).start()
    first, second = Collector(), Collector()
    together = [Request(f"a{number}", (1, 2), SamplingParams(max_tokens=90)) for number in range(3)]
    worker.submit_all(together, first)
    assert worker.num_in_flight == 3
    with pytest.raises(OverloadedError, match="queue is full"):
        worker.submit_all([Request(f"b{number}", (1,)) for number in range(2)], second)
    assert worker.num_in_flight == 3
    with pytest.raises(RequestError, match="parameter n"):
        worker.submit_all([Request(f"b{number}", (1,)) for number in range(5)], second)
    worker.submit(Request("c", (3,), SamplingParams(max_tokens=90)), second)
    for request in together:
        worker.cancel(request.request_id)
    gate.set()
    assert worker.drain(WAIT_S)
    assert worker.num_in_flight == 0
    worker.close()
    ended = [chunk.request_id for chunk in first.chunks if chunk.is_last]
    assert sorted(ended) == ["a0", "a1", "a2"]
    assert [chunk.request_id for chunk in second.chunks if chunk.is_last] == ["c"]
