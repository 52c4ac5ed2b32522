"""The comparison of methods counts what it says, on engines that stay as they were. No times are judged."""

from __future__ import annotations

import pytest

from tests.runtime.models import prompts, tiny_engine, tiny_model
from trt_spec.bench.methods import figures, measure_methods
from trt_spec.clients.prompts import Prompt
from trt_spec.clients.trace import Trace
from trt_spec.errors import RequestError
from trt_spec.runtime.stats import DraftCounts


def trace(num_tokens, num_accepted, ttft_ms, latency_ms):
    times = (round(ttft_ms * 1e6), round(latency_ms * 1e6))
    return Trace(0, 0, times, (1, num_tokens - 1), 3, num_tokens, drafts=DraftCounts(1, 9, num_accepted))


def asked(count, **kwargs):
    return [Prompt(f"p{index}", input_ids=tuple(ids)) for index, ids in enumerate(prompts(count, 32, **kwargs))]


def test_figures_are_medians_over_rounds_and_speedups_of_one_round():
    plain = [[trace(11, 0, 100, 1100), trace(11, 0, 200, 1200)], [trace(11, 0, 100, 1100)] * 2]
    drafted = [[trace(11, 4, 100, 600), trace(11, 6, 200, 700)], [trace(11, 5, 300, 500)] * 2]
    found = figures({"plain": plain, "a": drafted})["a"]
    assert found.tokens_per_s == pytest.approx((22 / 1.3 + 22 / 1.0) / 2)
    assert found.ttft_ms == pytest.approx((150 + 300) / 2)
    assert found.tpot_ms == pytest.approx((50 + 20) / 2)
    assert found.tokens_per_step == pytest.approx(20 / 10)
    assert (found.lowest, found.highest) == (pytest.approx(2.3 / 1.3), pytest.approx(2.2))
    assert found.speedup == pytest.approx((2.3 / 1.3 + 2.2) / 2)
    assert figures({"plain": [[trace(1, 0, 1, 1)]]})["plain"].tpot_ms is None


def test_every_arm_answers_every_prompt_of_every_workload_and_gives_the_same_tokens():
    target = tiny_model()
    engines = {name: tiny_engine(name, target) for name in ("draft_model", "ngram")}
    workloads = {"chat": asked(2), "copy": asked(3, seed=1)}
    parts = []
    traces = measure_methods(engines, workloads, num_tokens=12, num_rounds=2, advance=parts.append)
    assert list(traces) == ["chat", "copy"]
    for name, arms in traces.items():
        assert list(arms) == ["plain", "draft_model", "ngram"]
        outputs = [one.token_ids for one in arms["plain"][0]]
        assert [len(ids) for ids in outputs] == [12] * len(workloads[name])
        assert all([one.token_ids for one in of_round] == outputs for rounds in arms.values() for of_round in rounds)
        assert all(len(rounds) == 2 for rounds in arms.values())
        found = figures(arms)
        assert found["plain"].speedup == found["plain"].tokens_per_step == 1
        for one in found.values():
            assert 0 < one.lowest <= one.speedup <= one.highest
            assert one.tpot_ms > 0
            assert one.ttft_ms > 0
    assert figures(traces["chat"])["draft_model"].tokens_per_step > 1
    assert parts == pytest.approx([index / 6 for index in range(1, 7)])


def test_the_end_of_text_stops_a_reply():
    def reply(**kwargs):
        engines = {"ngram": tiny_engine("ngram", **kwargs)}
        return measure_methods(engines, {"chat": asked(1)}, num_tokens=12, num_rounds=1)["chat"]["ngram"][0][0]

    free = reply()
    ended = reply(eos_token_ids=(free.token_ids[4],))
    assert ended.token_ids == free.token_ids[: free.token_ids.index(free.token_ids[4]) + 1]


def test_what_does_not_fit_is_an_error():
    long = [Prompt("long", input_ids=(1,) * 500)]
    with pytest.raises(RequestError):
        measure_methods({"ngram": tiny_engine("ngram")}, {"chat": long}, num_tokens=2, num_rounds=1)
