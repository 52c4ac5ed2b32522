"""Overhead and load, on arms whose times are known."""

from __future__ import annotations

import threading
import time

import pytest

from tests.bench.keys import paths, under
from tests.cli.test_views import shown
from tests.serve.openai.conftest import built, client, front, installation, served, server
from trt_spec.bench import serving
from trt_spec.bench.serving import Percentiles, ServingResult
from trt_spec.clients.client import Client, Params
from trt_spec.clients.engine import SteppedClient
from trt_spec.clients.openai import OpenAIClient
from trt_spec.clients.prompts import Prompt
from trt_spec.clients.trace import Trace
from trt_spec.clients.triton import ServedClient
from trt_spec.errors import OverloadedError, UsageError
from trt_spec.runtime.loading import load_engine
from trt_spec.runtime.request import Chunk, Completion, SamplingParams

__all__ = ["built", "client", "front", "installation", "served", "server"]  # fixtures
A, B = Prompt("a"), Prompt("b")


class Timed(Client):
    """Answers in a known time, `steps` seconds a chunk."""

    def __init__(self, first_s, steps, per_chunk=1, *, log=None, num_missing=0):
        self.first_s, self.steps, self.per_chunk = first_s, steps, per_chunk
        self.log, self.num_missing = [] if log is None else log, num_missing

    def stream(self, prompt, params, *, request_id=""):
        raise NotImplementedError

    def ask(self, prompt, params, **kwargs):
        assert params.sampling.ignore_eos
        step_s = self.steps if isinstance(self.steps, float) else next(self.steps)
        self.log.append((step_s, prompt.name))
        left, now_s = params.sampling.max_tokens - self.num_missing - 1, self.first_s
        times, counts = [now_s], [1]
        while left:
            counts.append(min(self.per_chunk, left))
            times.append(times[-1] + step_s)
            left -= counts[-1]
        return Trace(0, 0, tuple(round(1e9 * time) for time in times), tuple(counts), 1, sum(counts))


def test_an_answer_of_another_length_is_no_measurement():
    with pytest.raises(UsageError, match="shorter"):
        serving.whole_answers(Timed(1.0, 1.0, num_missing=1), 5)(A)


def test_arms_are_compared_on_the_same_prompt_and_take_turns():
    log, parts = [], []
    clients = {"engine": Timed(0.1, 0.010, log=log), "server": Timed(0.2, 0.011, log=log)}
    found = serving.measure_overhead(
        clients, [A, B], speculation=True, num_tokens=5, num_rounds=2, advance=parts.append
    )
    assert found["engine"].tpot_ratio == 1.0
    assert found["server"].tpot_ratio == pytest.approx(1.1)
    assert (found["server"].ttft_ms, found["server"].tpot_ms) == (pytest.approx(200), pytest.approx(11))
    round_of = [(0.010, "a"), (0.011, "a"), (0.010, "b"), (0.011, "b")]
    backwards = [(0.011, "a"), (0.010, "a"), (0.011, "b"), (0.010, "b")]
    assert log == round_of + backwards + backwards
    assert parts == [1 / 3, 2 / 3, 1]


def test_time_per_token_counts_tokens_and_not_chunks():
    clients = {"one": Timed(0.5, 0.4), "four": Timed(0.5, 0.4, per_chunk=4)}
    found = serving.measure_overhead(clients, [A], speculation=False, num_tokens=9, num_rounds=1)
    assert found["four"].ttft_ms == pytest.approx(500)
    assert found["four"].tpot_ms == pytest.approx(1e3 * 2 * 0.4 / 8)


def test_a_slow_round_is_seen_in_the_range():
    clients = {"engine": Timed(0.0, 0.01), "x": Timed(0.1, iter([0.01, 0.01, 0.03, 0.01]))}
    found = serving.measure_overhead(clients, [A], speculation=False, num_tokens=3, num_rounds=3)
    assert (found["x"].lowest, found["x"].highest) == (pytest.approx(1), pytest.approx(3))
    assert found["x"].tpot_ratio == pytest.approx(1)


class Slow(Client):
    """Answers after a while, or not at all: `refuses(prompt)`. Counts how many ask at once."""

    def __init__(self, refuses):
        self.refuses, self.lock, self.inside, self.most = refuses, threading.Lock(), 0, 0

    def stream(self, prompt, params, *, request_id=""):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            time.sleep(0.01)
            if self.refuses(prompt):
                raise OverloadedError("full")
            num = params.sampling.max_tokens
            done = Completion("length", None, 1, num, None, 0, 0, 0, [], 0, 0, 0, 0)
            yield Chunk("a", token_ids=[0] * num, completion=done)
        finally:
            with self.lock:
                self.inside -= 1


def test_load_has_so_many_clients_and_counts_what_fails():
    client = Slow(lambda prompt: prompt.name == "bad")
    rows = serving.measure_load(client, [Prompt("good"), Prompt("bad")], concurrencies=(1, 4), num_tokens=3)
    assert [row.num_requests for row in rows] == [4, 16]
    assert [row.errors for row in rows] == [{"overloaded": 2}, {"overloaded": 8}]
    assert client.most == 4
    assert rows[1].tokens_per_s == pytest.approx(3 * rows[1].requests_per_s)
    assert rows[1].ttft_ms.p95 >= rows[1].ttft_ms.p50 >= 10


def test_a_load_that_is_never_answered_has_no_times():
    refusals = iter([False])  # the warm-up
    [row] = serving.measure_load(Slow(lambda prompt: next(refusals, True)), [A], concurrencies=(2,), num_tokens=2)
    assert (row.ttft_ms, row.requests_per_s, row.errors) == (None, 0.0, {"overloaded": 8})


def test_the_result_as_json_and_as_tables():
    found = serving.measure_overhead({"engine": Timed(0.1, 0.01)}, [A], speculation=True, num_tokens=3, num_rounds=1)
    load = serving.Load(4, 16, 2.5, 7.5, Percentiles(80.4, 90.6), None, {"overloaded": 2})
    result = ServingResult("tiny", "float32", "ngram", 3, 1, 1, {"on": found}, [load])
    assert paths(result.as_dict(), {"overhead": 2, "errors": 1}) == (
        under("", "run dtype method num_tokens num_rounds num_prompts")
        | under("overhead.*.*", "tpot_ms ttft_ms tpot_ratio lowest highest")
        | under("load", "concurrency num_requests requests_per_s tokens_per_s ttft_ms.p50 ttft_ms.p95 tpot_ms errors.*")
    )
    text = shown(result.view(), width=120)
    assert "TPOT over engine" in text
    assert "80 / 91" in text
    assert "2 overloaded" in text


@pytest.mark.server
@pytest.mark.parametrize("speculation", [False, True])
def test_every_arm_gives_the_tokens_asked_for(built, client, front, served, speculation):
    engine = load_engine(built.engine_dir)
    clients = {
        "engine": SteppedClient(engine),
        "Triton, gRPC": ServedClient(f"grpc://{client.grpc_url}", served.model_name),
        "OpenAI front": OpenAIClient(front.url, served.model_name),
    }
    prompt = Prompt("cat", input_ids=tuple(engine.tokenizer.encode("the cat sat on the mat and the cat")))
    params = Params(SamplingParams(max_tokens=20, ignore_eos=True), speculation)
    traces = {name: one.ask(prompt, params) for name, one in clients.items()}
    assert {name: trace.num_output_tokens for name, trace in traces.items()} == dict.fromkeys(clients, 20)
    assert traces["Triton, gRPC"].drafts == traces["OpenAI front"].drafts == traces["engine"].drafts
    serving.measure_overhead(clients, [prompt], speculation=speculation, num_tokens=8, num_rounds=1)
    load = serving.measure_load(clients["Triton, gRPC"], [prompt], concurrencies=(1, 2), num_tokens=4)
    assert [row.errors for row in load] == [{}, {}]
