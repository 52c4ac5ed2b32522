"""What is said of a plan."""

from __future__ import annotations

import pytest

from tests.engines.runs import tiny_run
from trt_spec.run import Run
from trt_spec.tuning.calibration import Checked
from trt_spec.tuning.proposal import conclude
from trt_spec.tuning.result import Measurement, Tuning, planned_batches
from trt_spec.tuning.session import split, timed_lengths
from trt_spec.tuning.survival import AcceptanceProfile


def found(plain, predicted):
    checked = Checked(4, 2, 1.0, 1.0, plain_tokens_per_s=plain, predicted_plain_tokens_per_s=predicted)
    basis = Measurement(False, "chat", 0.0, 48, None, [checked])
    return Tuning("tiny", "ngram", "rejection", AcceptanceProfile.given([]), 1.03, [], {"schedule": {}}, basis)


@pytest.mark.parametrize(("plain", "is_busy"), [(100, False), (112, False), (80, True), (130, True)])
def test_a_busy_machine_is_told(tmp_path, plain, is_busy):
    said = conclude(Run(tiny_run(tmp_path), "run.yaml"), found(plain, 100), is_writing=True)
    assert any("busy" in note for note in said.notes) == is_busy
    assert said.written is None
    assert "method none" in said.notes[-1]


def test_every_other_batch_size_is_held_out():
    assert split([1, 2, 4, 8, 16]) == ([1, 4, 16], [2, 8])
    assert split([1, 4]) == ([1, 4], [])
    assert split([1]) == ([1], [])


def test_lengths_that_are_timed():
    assert timed_lengths(1) == [0, 1]
    assert timed_lengths(5) == [0, 1, 2, 4, 5]
    assert timed_lengths(8) == [0, 1, 2, 4, 8]


def test_batches_that_get_a_length():
    assert planned_batches(3) == [1, 2, 3]
    many = planned_batches(512)
    assert many[:64] == list(range(1, 65))
    assert many[-1] == 512
    assert len(many) < 110
