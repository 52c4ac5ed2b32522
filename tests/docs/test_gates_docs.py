"""docs/gates.md is true: its commands, options, keys, links and numbers exist, and its YAML is what it says."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import click
import pytest
from ruamel.yaml import YAML

from trt_spec.cli.app import cli
from trt_spec.clients import prompts as workload
from trt_spec.config import loader
from trt_spec.config.explain import known_keys
from trt_spec.config.latency_config import WORKLOADS
from trt_spec.config.schema import RunConfig
from trt_spec.gate import bootstrap, measure
from trt_spec.gate import verdict as gate
from trt_spec.gate.arrivals import ClosedLoop

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
KEYS = {known.key for known in known_keys() if not known.is_section}
SNIPPETS = [YAML(typ="safe").load(io.StringIO(text)) for text in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
FLOORS, GITHUB, GITLAB = SNIPPETS
GATES = sorted((ROOT / "configs" / "gates").glob("*.yaml"))


def scripts() -> list[str]:
    """Every command line of the page: of its prose, and of the two pipelines."""
    lines = re.findall(r"^    (trt-spec .+)$", TEXT, re.MULTILINE)
    lines += [step["run"] for step in GITHUB["jobs"]["gates"]["steps"] if "run" in step]
    for job in GITLAB.values():
        lines += [*job.get("before_script", ()), *job.get("script", ())]
    return lines


@pytest.mark.parametrize("line", scripts())
def test_commands_exist(line):
    program, *words = shlex.split(line, comments=True)
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(words) <= set(targets)
        return
    assert program in ("trt-spec", ".venv/bin/trt-spec")
    command = cli.commands[words[0]]
    values = command.make_parser(click.Context(command)).parse_args(words[1:])[0]
    loader.load(values["config"], values.get("overrides") or ())


def test_both_pipelines_run_both_gates():
    for lines in ([step.get("run", "") for step in GITHUB["jobs"]["gates"]["steps"]],
                  [*GITLAB["equivalence"]["script"], *GITLAB["latency"]["script"]]):  # fmt: skip
        assert sum(" verify " in line for line in lines) == sum(" gate " in line for line in lines) == 1


def test_junit_lies_where_the_pipelines_look():
    from trt_spec.gate.options import REPORTS_DIR

    assert str(REPORTS_DIR) == "reports"
    assert GITLAB[".gate"]["artifacts"]["reports"]["junit"] == "reports/**/junit.xml"


def test_names_exist():
    sections = "|".join(RunConfig.model_fields)
    named = set(re.findall(rf"`((?:{sections})\.\w+)`", TEXT))
    assert {"latency.min_speedup", "equivalence.tau"} <= named <= KEYS
    options = {option for param in cli.commands["gate"].params for option in param.opts}
    options |= {option for param in cli.commands["serve"].params for option in param.opts}
    assert set(re.findall(r"`(--[\w-]+)", TEXT)) <= options
    assert set(re.findall(r"`(chat|code_\w+|summarising)` \(", TEXT)) == set(WORKLOADS)
    for link in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / "docs" / link).exists()


def test_numbers_are_those_of_the_code():
    counts = {name: len(workload.load(name)) for name in WORKLOADS}
    assert dict(re.findall(r"`(\w+)` \((\d+)\s", TEXT)) == {name: str(count) for name, count in counts.items()}
    assert f"α = {gate.ALPHA}" in TEXT
    assert f"come {gate.MIN_PAIRS} of each arm" in TEXT
    assert f"at least {measure.MIN_REQUESTS}." in TEXT
    assert f"({bootstrap.NUM_RESAMPLES:,} resamples".replace(",", " ") in TEXT
    assert f"costs {2 * gate.MIN_PAIRS + 2} blocks per\nconcurrency" in TEXT
    default = next(param for param in cli.commands["gate"].params if param.name == "num_pairs")
    assert default.default == default.type.min == gate.MIN_PAIRS


def test_the_example_of_floors_loads(tmp_path):
    path = tmp_path / "floors.yaml"
    YAML().dump(FLOORS, path)
    config = loader.with_latency(loader.load("smollm2-135m-ngram"), path)
    assert config.latency.slo_ttft_ms == 500


@pytest.mark.parametrize("path", GATES, ids=lambda path: path.name)
def test_shipped_floors_are_of_a_run_that_is_shipped(path):
    run = loader.load(ROOT / "configs" / path.name)
    latency = loader.with_latency(run, path).latency
    assert set(latency.min_speedup) == set(latency.concurrencies)
    assert max(latency.concurrencies) <= run.build.max_batch_size
    assert [ClosedLoop(c).concurrency for c in latency.concurrencies] == sorted(latency.concurrencies)
