"""Each metric against numbers worked out by hand, and records that survive a file."""

from __future__ import annotations

import json

import pytest

from tests.gate.fakes import record
from trt_spec.errors import MachineError, UsageError
from trt_spec.gate import metrics, records
from trt_spec.gate.metrics import Slo


def test_formulas():
    one = record((110, 130, 180), (1, 4, 3), due_ms=100)
    assert metrics.ttft_ms(one) == 10
    assert metrics.latency_ms(one) == 80
    assert metrics.tpot_ms(one) == 70 / 7  # 8 tokens in 3 chunks: not a gap
    assert metrics.inter_chunk_gaps_ms(one) == [20, 50]


def test_latency_counts_from_when_a_request_was_due():
    late = records.RequestRecord((50_000_000,), (1,), 1, 5, due_ns=10_000_000, sent_ns=45_000_000)
    assert metrics.ttft_ms(late) == 40


def test_a_summary():
    blocks = [
        [record((10, 20), (1, 4)), record((15, 40), (1, 4), due_ms=5)],
        [record((1000 + 10, 1000 + 30), (1, 4), due_ms=1000)],
    ]
    found = metrics.summary(blocks, Slo(ttft_ms=10, tpot_ms=5.5))
    assert found["num_requests"] == 3
    assert found["seconds"] == pytest.approx(0.040 + 0.030)  # the second between the blocks does not count
    assert found["output_token_throughput_per_s"] == pytest.approx(15 / 0.07)
    assert found["tokens_per_chunk"] == 2.5
    assert found["ttft_p50_ms"] == 10
    assert found["tpot_p50_ms"] == 5
    assert found["tpot_p99_ms"] == pytest.approx(5 + 0.98 * 1.25)
    assert found["inter_chunk_gap_p50_ms"] == 20
    assert found["goodput_per_s"] == pytest.approx(2 / 0.07)  # the one of 6.25 ms a token is not good
    assert "goodput_per_s" not in metrics.summary(blocks, Slo())


def test_acceptance():
    fields = {"num_drafts": 2, "num_draft_tokens": 8, "num_accepted_tokens": 5}
    both = [
        record(**fields, num_accepted_tokens_per_pos=(2, 2, 1)),
        record(num_drafts=2, num_draft_tokens=4, num_accepted_tokens=1, num_accepted_tokens_per_pos=(1,)),
    ]
    found = metrics.acceptance(both)
    assert found["acceptance_rate"] == 6 / 12
    assert found["mean_acceptance_length"] == 1 + 6 / 4
    assert found["rate_per_pos"] == [3 / 4, 2 / 4, 1 / 4]
    assert metrics.acceptance([record()])["acceptance_rate"] is None
    untold = metrics.acceptance([record(**fields)])  # as TensorRT-LLM: totals, no positions
    assert (untold["acceptance_rate"], untold["rate_per_pos"]) == (5 / 8, None)


def test_an_answer_of_one_token_has_no_tpot():
    with pytest.raises(MachineError, match="too short"):
        metrics.tpot_ms(record((10,), (1,)))


def test_records_survive_a_file(tmp_path):
    rows = [
        record(
            load="concurrency 2", arm="speculation", block=3, pair=1, prompt="é", num_accepted_tokens_per_pos=(2, 1)
        ),
        record(num_accepted_tokens_per_pos=(2, 1)),
        record(tokens=None, num_output_tokens=9),
    ]
    path = tmp_path / "records.jsonl"
    path.write_text(records.dump({"run": "r"}, rows), encoding="utf-8")
    assert records.load(path) == ({"run": "r"}, rows)
    assert len(path.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("[]\n", 1),
        ('{"format": "other"}\n', 1),
        (json.dumps({"format": records.FORMAT}) + '\n{"chunk_ns": [1]}\n', 2),
        (json.dumps({"format": records.FORMAT}) + "\n" + record().as_json()[:-9] + "\n", 2),
        (json.dumps({"format": records.FORMAT}) + "\n" + record(arm="third").as_json() + "\n", 2),
    ],
)
def test_a_damaged_file_is_refused_with_the_line(tmp_path, text, line):
    path = tmp_path / "records.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        records.load(path)
    assert caught.value.where == f"{path}:{line}"
