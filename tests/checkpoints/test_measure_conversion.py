"""The script that measures conversion measures it: on small checkpoints, whose figures mean nothing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure_conversion.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("measure_conversion", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, size in (("HIDDEN", 64), ("INNER", 128), ("VOCAB", 320)):
        monkeypatch.setattr(module, name, size)
    return module


@pytest.mark.parametrize("kind", ["tied_model", "medusa_pickle"])
def test_it_converts_counts_and_cleans_up(script, tmp_path, capsys, kind):
    script.measure(getattr(script, kind), 1 << 18, 1, tmp_path)
    told = capsys.readouterr().out
    assert float(re.search(r"peak memory (\d+) MB", told)[1]) > 10  # a whole interpreter, so it was counted
    assert float(re.search(r"time per byte ([\d.]+) times", told)[1]) > 0
    assert list(tmp_path.iterdir()) == []


def test_its_limits_are_those_that_are_promised(script):
    assert (script.MOST_MEMORY, script.MOST_TIME) == (1.5, 1.3)
