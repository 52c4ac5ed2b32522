"""What a build times of its target: which steps, how they become one rising curve, and the file that keeps it."""

from __future__ import annotations

import json

import pytest

from tests.runtime.models import tiny_model
from trt_spec.errors import CheckpointError
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.step_costs import (
    FILE_NAME,
    NUM_ROUNDS,
    measure_step_costs,
    read_step_costs,
    write_step_costs,
)


class RowClock:
    """A clock that a model moves by what its rows cost, with a first call that costs a hundred times as much."""

    def __init__(self, target, cost):
        self.now, self.steps, forward = 0.0, [], target.forward

        def counted(batch, *args):
            rows = batch.offsets[-1]
            self.now += cost(rows) * (1 if rows in self.steps else 100)
            self.steps.append(rows)
            return forward(batch, *args)

        target.forward = counted

    def __call__(self):
        return self.now


def test_costs_are_relative_to_one_row_and_what_warms_up_is_left_out():
    target = tiny_model()
    clock = RowClock(target, lambda rows: 3.0 + rows)
    limits = EngineLimits(max_batch_size=3, max_seq_len=40, max_draft_len=5, max_num_tokens=12)
    found = measure_step_costs(target, limits, clock)
    # batch sizes 1, 2, 3; draft lengths 0, 1, 2, 4, 5; at most 12 rows
    assert list(found) == [1, 2, 3, 4, 5, 6, 9, 10, 12]
    assert found == pytest.approx({rows: (3 + rows) / 4 for rows in found}, abs=1e-3)
    assert len(clock.steps) == NUM_ROUNDS * 13


def test_more_rows_never_cost_less():
    target = tiny_model()
    clock = RowClock(target, lambda rows: {1: 1.0, 2: 1.4, 3: 1.2, 4: 2.0}[rows])
    found = measure_step_costs(target, EngineLimits(max_batch_size=4, max_seq_len=40), clock)
    assert list(found.values()) == sorted(found.values())
    assert found == {1: 1.0, 2: 1.4, 4: 2.0}


def test_the_file_is_read_as_it_was_written_and_refused_where_it_is_spoiled(tmp_path):
    assert read_step_costs(tmp_path) is None
    write_step_costs(tmp_path, {1: 1.0, 16: 1.75})
    assert read_step_costs(tmp_path) == {1: 1.0, 16: 1.75}
    for spoiled in ('{"2": 1.0}', '{"1": 0}', "[1]", "{", '{"a": 1}'):
        (tmp_path / FILE_NAME).write_text(spoiled)
        with pytest.raises(CheckpointError, match="step costs"):
            read_step_costs(tmp_path)
    (tmp_path / FILE_NAME).write_text(json.dumps({"1": 1.0}))
    assert read_step_costs(tmp_path) == {1: 1.0}
