"""docs/tuning.md says what the roofline says, and names only what exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tuning import published
from trt_spec.cli.app import cli
from trt_spec.config.explain import known_keys
from trt_spec.config.schema import RunConfig
from trt_spec.tuning.planner import MIN_GAIN
from trt_spec.tuning.roofline import COMPUTE_EFFICIENCY, GPUS, LAYER_OVERHEAD_US, MEMORY_EFFICIENCY

TEXT = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")


def test_published_and_predicted_are_as_computed():
    rows = [*published.eagle3_rows(), *published.medusa_rows()]
    expected = [
        (row.what, f"{row.published:.2f}", f"{row.predicted:.2f}", "fitted" if row.is_fitted else f"{row.error:+.0%}")
        for row in rows
    ]
    assert re.findall(r"^\| ((?:EAGLE|Medusa)[^|]+) \| ([\d.]+) \| ([\d.]+) \| ([^|]+) \|$", TEXT, re.M) == expected


def test_errors_are_as_computed():
    eagle3 = published.eagle3_rows()
    found = [
        published.mean_absolute_error([row for row in eagle3 if "SGLang" in row.what]),
        published.mean_absolute_error([row for row in eagle3 if "vLLM" in row.what]),
        published.mean_absolute_error(published.medusa_rows()),
    ]
    said = re.findall(r"mean absolute\s+error ([\d.]+) %(?: and ([\d.]+) %)?", TEXT)
    assert [number for pair in said for number in pair if number] == [f"{100 * error:.1f}" for error in found]


def test_constants_and_names_are_those_of_the_code():
    assert f"({MEMORY_EFFICIENCY} · bandwidth)" in TEXT
    assert f"({COMPUTE_EFFICIENCY} · peak) + layers · {LAYER_OVERHEAD_US:g} µs" in TEXT
    assert f"under {MIN_GAIN}" in TEXT
    assert all(name in TEXT for name in GPUS)


def test_options_and_keys_exist():
    options = {
        option for parameter in cli.commands["tune"].params for option in parameter.opts + parameter.secondary_opts
    }
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", TEXT)) - {"--what"}
    assert named <= options
    keys = {known.key for known in known_keys() if not known.is_section}
    sections = "|".join(RunConfig.model_fields)
    assert [
        key for key in re.findall(rf"`((?:{sections})\.[\w.]+)`", TEXT) if key not in keys | {"speculation.costs"}
    ] == []
