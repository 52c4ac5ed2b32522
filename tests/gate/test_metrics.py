"""Each metric against numbers worked out by hand, and records that survive a file."""

from __future__ import annotations

import json

import pytest

from tests.gate.fakes import record, trace
from trt_spec.clients.trace import Trace
from trt_spec.errors import MachineError, UsageError
from trt_spec.gate import metrics, records
from trt_spec.gate.metrics import Slo
from trt_spec.runtime.stats import DraftCounts


def test_formulas():
    one = trace((110, 130, 180), (1, 4, 3), due_ms=100)
    assert one.ttft_ms == 10
    assert one.latency_ms == 80
    assert metrics.tpot_ms(one) == 70 / 7  # 8 tokens in 3 chunks: not a gap
    assert one.inter_chunk_gaps_ms == [20, 50]


def test_latency_counts_from_when_a_request_was_due():
    late = Trace(10_000_000, 45_000_000, (50_000_000,), (1,), 5, 1)
    assert late.ttft_ms == 40


def test_a_summary():
    blocks = [
        [trace((10, 20), (1, 4)), trace((15, 40), (1, 4), due_ms=5)],
        [trace((1000 + 10, 1000 + 30), (1, 4), due_ms=1000)],
    ]
    found = metrics.summary(blocks, Slo(ttft_ms=10, tpot_ms=5.5))
    assert found.num_requests == 3
    assert found.seconds == pytest.approx(0.040 + 0.030)  # the second between the blocks does not count
    assert found.output_token_throughput_per_s == pytest.approx(15 / 0.07)
    assert found.tokens_per_chunk == 2.5
    assert found.ttft_p50_ms == 10
    assert found.tpot_p50_ms == 5
    assert found.tpot_p99_ms == pytest.approx(5 + 0.98 * 1.25)
    assert found.inter_chunk_gap_p50_ms == 20
    assert found.goodput_per_s == pytest.approx(2 / 0.07)  # the one of 6.25 ms a token is not good
    assert metrics.summary(blocks, metrics.NO_SLO).goodput_per_s is None


def test_acceptance():
    both = [trace(drafts=DraftCounts(2, 8, 5, [2, 2, 1])), trace(drafts=DraftCounts(2, 4, 1, [1]))]
    found = metrics.acceptance(both)
    assert found.acceptance_rate == 6 / 12
    assert found.mean_acceptance_length == 1 + 6 / 4
    assert found.rate_per_pos == [3 / 4, 2 / 4, 1 / 4]
    assert metrics.acceptance([trace()]).acceptance_rate is None
    assert metrics.acceptance([*both, trace()]).num_draft_tokens is None
    untold = metrics.acceptance([trace(drafts=DraftCounts(2, 8, 5, None)), *both])  # as TensorRT-LLM: no positions
    assert (untold.acceptance_rate, untold.rate_per_pos) == (11 / 20, None)
    untold = metrics.acceptance([trace(drafts=DraftCounts(None, 8, 5, None))])
    assert (untold.num_drafts, untold.acceptance_rate, untold.mean_acceptance_length) == (None, 5 / 8, None)


def test_an_answer_of_one_token_has_no_tpot():
    with pytest.raises(MachineError, match="too short"):
        metrics.tpot_ms(trace((10,), (1,)))


def test_records_survive_a_file(tmp_path):
    rows = [
        record(
            load="concurrency 2", arm="speculation", block=3, pair=1, prompt="é", drafts=DraftCounts(2, 4, 3, [2, 1])
        ),
        record(token_ids=(1, 2, 3, 4, 5), text="a b", finish_reason="length", drafts=DraftCounts(None, 4, 3, None)),
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
        (json.dumps({"format": records.FORMAT_1}) + '\n{"chunk_ns": [1]}\n', 2),
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
