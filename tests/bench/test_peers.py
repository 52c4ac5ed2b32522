"""transformers beside this runtime: the same weights give the same greedy tokens, and every arm is timed."""

from __future__ import annotations

from tests.engines.runs import tiny_run
from trt_spec.bench.peers import measure_peers
from trt_spec.engines.builder import build
from trt_spec.runtime.loading import load_engine


def test_all_arms_give_the_same_tokens_in_float32(tmp_path):
    engine_dir = build(tiny_run(tmp_path), engines_dir=tmp_path / "engines").engine_dir
    parts = []
    measured = measure_peers(
        load_engine(engine_dir), engine_dir / "target", [5, 6, 7] * 4, num_tokens=40, num_rounds=2, advance=parts.append
    )
    assert list(measured.arms) == [
        "trt_spec, plain",
        "trt_spec, ngram",
        "transformers, generate",
        "transformers, prompt lookup",
    ]
    for arm in measured.arms.values():
        assert arm.num_equal_tokens == 40
        assert 0 < arm.lowest <= arm.tokens_per_s <= arm.highest
    assert parts == [1 / 3, 2 / 3, 1]
