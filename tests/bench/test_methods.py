"""The comparison of methods counts what it says, on engines that stay as they were. No times are judged."""

from __future__ import annotations

import pytest

from tests.runtime.models import prompts, tiny_engine, tiny_model
from trt_spec.bench.methods import Reply, Round, measure_methods, reply
from trt_spec.errors import RequestError


def test_a_round_adds_up_its_replies():
    found = Round.of([Reply((1,) * 11, 4, 0.1, 0.6), Reply((1,) * 11, 6, 0.2, 0.7)])
    assert found.tokens_per_s == pytest.approx(22 / 1.3)
    assert found.ttft_ms == pytest.approx(150)
    assert found.tpot_ms == pytest.approx(50)
    assert found.tokens_per_step == pytest.approx(20 / 10)
    assert Round.of([Reply((1,), 0, 0.1, 0.1)]).tpot_ms == 0


def test_every_arm_answers_every_prompt_of_every_workload_and_gives_the_same_tokens():
    target = tiny_model()
    engines = {name: tiny_engine(name, target) for name in ("draft_model", "ngram")}
    workloads = {"chat": prompts(2, 32), "copy": prompts(3, 32, seed=1)}
    parts = []
    found = measure_methods(engines, workloads, num_tokens=12, num_rounds=2, advance=parts.append)
    assert list(found) == ["chat", "copy"]
    for name, arms in found.items():
        assert list(arms) == ["plain", "draft_model", "ngram"]
        assert arms["plain"]["speedup"] == arms["plain"]["tokens_per_step"] == 1
        for figures in arms.values():
            assert figures["outputs"] == arms["plain"]["outputs"]
            assert [len(ids) for ids in figures["outputs"]] == [12] * len(workloads[name])
            assert 0 < figures["lowest"] <= figures["speedup"] <= figures["highest"]
            assert figures["tpot_ms"] > 0
            assert figures["ttft_ms"] > 0
    assert found["chat"]["draft_model"]["tokens_per_step"] > 1
    assert parts == pytest.approx([index / 6 for index in range(1, 7)])


def test_the_end_of_text_stops_a_reply():
    ids = prompts(1, 32)[0]
    free = reply(tiny_engine("ngram"), True, ids, 12)
    ended = reply(tiny_engine("ngram", eos_token_ids=(free.token_ids[4],)), True, ids, 12)
    assert ended.token_ids == free.token_ids[: free.token_ids.index(free.token_ids[4]) + 1]


def test_what_does_not_fit_is_an_error():
    with pytest.raises(RequestError):
        reply(tiny_engine("ngram"), True, [1] * 500, 4)
