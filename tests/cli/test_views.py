"""What the tables show, and that they fit 100 columns."""

from __future__ import annotations

import io

from rich.console import Console

from trt_spec.cli import views
from trt_spec.report import tables


def shown(view, width=100):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(view)
    text = console.file.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    return text


def test_inspection_tells_a_tokenizer_pair_without_what_is_empty():
    pair = {"num_shared": 1200, "tolerated_ids": [], "target_padded_ids": [100, 104], "draft_padded_ids": [100, 100]}
    text = shown(views.inspection({"tokenizer_pair": pair, "fits_target": True, "problems": []}))
    assert "num shared 1,200, target padded ids 100 to 103" in text
    assert "tolerated" not in text
    assert "draft padded" not in text


def test_inspection_shows_facts_then_problems():
    found = {
        "path": "ckpt",
        "role": "draft",
        "is_native": True,
        "num_parameters": 134515008,
        "dtypes": {"bfloat16": 272},
        "fits_target": False,
        "problems": [{"code": "E-VOCAB", "message": "id 7 differs [x]", "remedy": "take the other"}],
    }
    text = shown(views.inspection(found))
    for part in ("134,515,008", "bfloat16 272", "is native", "yes", "fits target", "no", "E-VOCAB", "id 7 differs [x]"):
        assert part in text


def test_completion_lines_leave_out_what_was_not_measured():
    full = {
        "num_output_tokens": 9,
        "finish_reason": "length",
        "ttft_ms": 41.6,
        "tpot_ms": None,
        "num_drafts": 2,
        "total_draft_tokens": 8,
        "total_accepted_draft_tokens": 5,
        "mean_acceptance_length": 3.5,
    }
    assert views.completion_lines(full) == [
        "9 tokens (length), TTFT 42 ms",
        "2 drafts, 5 of 8 draft tokens accepted, mean acceptance length 3.50",
    ]
    assert views.completion_lines({**full, "tpot_ms": 10.0, "num_drafts": 0}) == [
        "9 tokens (length), TTFT 42 ms, TPOT 10.0 ms",
        "no draft tokens",
    ]
    assert views.completion_lines({"num_output_tokens": 9, "finish_reason": "eos"}) == ["9 tokens (eos)"]
    untold = {**full, "num_drafts": None, "mean_acceptance_length": None}
    assert views.completion_lines(untold)[1] == "5 of 8 draft tokens accepted"
    untold |= {"total_draft_tokens": None, "total_accepted_draft_tokens": None}
    assert views.completion_lines(untold)[1] == "the engine does not tell what was drafted"


def test_titles_are_not_broken_to_the_width_of_a_narrow_table():
    title = "Engine engines/a-run-with-a-long-name: up to date, nothing to do"
    assert title in shown(tables.titled(title, tables.facts([("a", "b")])))
