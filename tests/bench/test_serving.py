"""Overhead and load, on arms whose times are known."""

from __future__ import annotations

import threading
import time

import pytest

from tests.bench.keys import paths
from trt_spec.bench import serving
from trt_spec.errors import OverloadedError, UsageError


class Clock:
    """A clock that only the arms move."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(serving.time, "perf_counter", lambda: self.now)

    def arm(self, first_s, step_s, per_chunk=1, log=None):
        def ask(prompt, num_tokens):
            if log is not None:
                log.append((step_s, prompt))
            self.now += first_s
            yield 1
            left = num_tokens - 1
            while left:
                self.now += step_s
                yield min(per_chunk, left)
                left -= min(per_chunk, left)
            yield 0  # an empty last chunk is no token

        return ask


def test_time_per_token_counts_tokens_and_not_chunks(monkeypatch):
    clock = Clock(monkeypatch)
    one = serving.timed(clock.arm(0.5, 0.4, per_chunk=4), [1], 9)
    assert (one.ttft_ms, one.num_tokens) == (pytest.approx(500), 9)
    assert one.tpot_ms == pytest.approx(1e3 * 2 * 0.4 / 8)


def test_an_answer_of_another_length_is_no_measurement(monkeypatch):
    clock = Clock(monkeypatch)
    with pytest.raises(UsageError, match="shorter"):
        serving.timed(lambda prompt, num: clock.arm(1, 1)(prompt, num - 1), [1], 5)


def test_arms_are_compared_on_the_same_prompt_and_take_turns(monkeypatch):
    clock, log, parts = Clock(monkeypatch), [], []
    arms = {"engine": clock.arm(0.1, 0.010, log=log), "server": clock.arm(0.2, 0.011, log=log)}
    found = serving.measure_overhead(arms, ["a", "b"], num_tokens=5, num_rounds=2, advance=parts.append)
    assert paths(found, {"overhead": 1}) == {
        f"{arm}.{name}" for arm in arms for name in ("tpot_ms", "ttft_ms", "tpot_ratio", "lowest", "highest")
    }
    assert found["engine"]["tpot_ratio"] == 1.0
    assert found["server"]["tpot_ratio"] == pytest.approx(1.1)
    assert (found["server"]["ttft_ms"], found["server"]["tpot_ms"]) == (pytest.approx(200), pytest.approx(11))
    round_of = [(0.010, "a"), (0.011, "a"), (0.010, "b"), (0.011, "b")]
    backwards = [(0.011, "a"), (0.010, "a"), (0.011, "b"), (0.010, "b")]
    assert log == round_of + backwards + round_of
    assert parts == [0.0, 0.5, 1.0]


def test_a_slow_round_is_seen_in_the_range(monkeypatch):
    clock = Clock(monkeypatch)
    steps = iter([0.01, 0.01, 0.03, 0.01])

    def drifting(prompt, num_tokens):
        return clock.arm(0.1, next(steps))(prompt, num_tokens)

    found = serving.measure_overhead({"engine": clock.arm(0, 0.01), "x": drifting}, ["a"], num_tokens=3, num_rounds=3)
    assert (found["x"]["lowest"], found["x"]["highest"]) == (pytest.approx(1), pytest.approx(3))
    assert found["x"]["tpot_ratio"] == pytest.approx(1)


def test_load_has_so_many_clients_and_counts_what_fails():
    lock, inside, most = threading.Lock(), [], []

    def ask(prompt, num_tokens):
        with lock:
            inside.append(prompt)
            most.append(len(inside))
        try:
            time.sleep(0.01)
            if prompt == "bad":
                raise OverloadedError("full")
            for _ in range(num_tokens):
                yield 1
        finally:
            with lock:
                inside.pop()

    rows = serving.measure_load(ask, ["good", "bad"], concurrencies=(1, 4), num_tokens=3)
    assert paths(rows, {"errors": 1}) == (
        {"concurrency", "num_requests", "requests_per_s", "tokens_per_s", "errors.*"}
        | {f"{time}.{share}" for time in ("ttft_ms", "tpot_ms") for share in ("p50", "p95")}
    )
    assert [row["num_requests"] for row in rows] == [4, 16]
    assert [row["errors"] for row in rows] == [{"overloaded": 2}, {"overloaded": 8}]
    assert max(most) == 4
    assert rows[1]["tokens_per_s"] == pytest.approx(3 * rows[1]["requests_per_s"])
    assert rows[1]["ttft_ms"]["p95"] >= rows[1]["ttft_ms"]["p50"] >= 10


def test_a_load_that_is_never_answered_has_no_times():
    answers = iter([True])

    def ask(prompt, num_tokens):
        if next(answers, False):  # the warm-up
            yield num_tokens
        else:
            raise OverloadedError("full")

    [row] = serving.measure_load(ask, ["a"], concurrencies=(2,), num_tokens=2)
    assert (row["ttft_ms"], row["requests_per_s"], row["errors"]) == (None, 0.0, {"overloaded": 8})
