"""The Grafana dashboard: well formed, all series shown, and the file is the generated one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scripts.docs.dashboard import ROWS, dashboard
from trt_spec.triton import metrics

FILE = Path(__file__).parents[2] / "docs" / "grafana.json"
QUERIES = [query for _, panels in ROWS for panel in panels for query in panel.queries.values()]
NAMES = {name for query in QUERIES for name in re.findall(r"\b(?:trt_spec|nv)_\w+", query)}
LLMAPI = {metrics.PREFIX + series.name for series in (*metrics.COMMON, *metrics.LLMAPI)}


def test_the_file_is_the_generated_one():
    assert json.loads(FILE.read_text(encoding="utf-8")) == dashboard(), "run: make docs"


def test_panels_do_not_overlap_and_have_ids_of_their_own():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert all(panel.get("targets") for panel in panels if panel["type"] != "row")


@pytest.mark.parametrize("query", QUERIES)
def test_brackets_close_and_counters_are_rates(query):
    for pair in ("()", "[]", "{}"):
        assert query.count(pair[0]) == query.count(pair[1])
    for name in re.findall(r"\btrt_spec_\w+_total\b", query):
        assert f"rate({name}" in query


def test_every_series_of_the_torch_engine_is_shown():
    ours = {metrics.PREFIX + series.name for series in (*metrics.COMMON, *metrics.TORCH)}
    assert ours <= NAMES
    assert {name for name in NAMES if name.startswith(metrics.PREFIX)} - ours <= LLMAPI
