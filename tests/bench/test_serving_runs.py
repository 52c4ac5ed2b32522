"""The arms of the serving benchmark on the tiny engine and real servers: the same tokens from each; and its tables."""

from __future__ import annotations

import pytest

from tests.serve.openai.conftest import built, client, front, installation, served, server
from trt_spec.bench import serving_runs as serving_benchmark
from trt_spec.bench import serving_tables
from trt_spec.bench.serving import measure_load, measure_overhead
from trt_spec.report.console import Reporter
from trt_spec.runtime.engine import Engine

__all__ = ["built", "client", "front", "installation", "served", "server"]  # fixtures


@pytest.mark.server
@pytest.mark.parametrize("speculation", [False, True])
def test_every_arm_gives_the_tokens_asked_for_and_can_be_shown(built, client, front, served, speculation, capsys):
    engine = Engine.load(built.engine_dir)
    arms = {
        "engine": serving_benchmark.from_engine(engine, speculation),
        "Triton, gRPC": serving_benchmark.from_triton(client, speculation),
        "OpenAI front": serving_benchmark.from_front(front, served.model_name, speculation),
    }
    prompt = engine.tokenizer.encode("the cat sat on the mat and the cat")
    assert {name: sum(ask(prompt, 20)) for name, ask in arms.items()} == dict.fromkeys(arms, 20)
    overhead = measure_overhead(arms, [prompt], num_tokens=8, num_rounds=1)
    load = measure_load(arms["Triton, gRPC"], [prompt], concurrencies=(1, 2), num_tokens=4)
    assert [row["errors"] for row in load] == [{}, {}]
    result = {"run": "tiny", "dtype": "float32", "method": "ngram", "num_tokens": 8, "num_rounds": 1, "num_prompts": 1}
    result |= {"overhead": {"on": overhead}, "load": load}
    Reporter().result(result, serving_tables.serving(result))
    shown = capsys.readouterr().out
    assert all(name in shown for name in arms)
    assert "TPOT over engine" in shown
