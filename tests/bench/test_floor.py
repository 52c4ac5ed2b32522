"""The memory floor: every arm is timed, the engine is left idle, and an engine that is too small is refused."""

from __future__ import annotations

import pytest

from tests.engines.runs import tiny_run
from trt_spec.bench.floor import CONTEXT_LEN, VERIFIED_ROWS, measure_floor
from trt_spec.config import loader
from trt_spec.engines.builder import build
from trt_spec.errors import CapabilityError
from trt_spec.runtime.loading import load_engine
from trt_spec.runtime.request import Request, SamplingParams


def engine_of(root, max_seq_len, method="none"):
    overrides = [f"build.max_seq_len={max_seq_len}"]
    config = loader.loads(loader.dump(tiny_run(root, method)), overrides=overrides)
    return load_engine(build(config, engines_dir=root / "engines").engine_dir)


@pytest.mark.parametrize("max_seq_len", [CONTEXT_LEN + VERIFIED_ROWS, 256])
def test_every_arm_is_timed_and_the_engine_is_idle_again(tmp_path, max_seq_len):
    engine, parts = engine_of(tmp_path, max_seq_len), []
    request = Request("r", (5, 6, 7), SamplingParams(max_tokens=8))
    before = engine.generate([request])[0].token_ids
    measured = measure_floor(engine, num_rounds=2, advance=parts.append)
    times = (measured.floor_ms, measured.stock_floor_ms, measured.plain_step_ms, measured.verify8_over_one)
    assert min(times) > 0
    assert measured.plain_over_floor == measured.plain_step_ms / measured.floor_ms
    assert measured.plain_step_ms > measured.floor_ms  # the step runs these layers and more
    assert 0 < measured.host_share < 1
    assert parts == [1 / 3, 2 / 3, 1]
    assert not engine.has_work
    assert engine.generate([request])[0].token_ids == before


def test_a_context_that_is_too_short_is_refused(tmp_path):
    with pytest.raises(CapabilityError, match="too short"):
        measure_floor(engine_of(tmp_path, CONTEXT_LEN + VERIFIED_ROWS - 1))
