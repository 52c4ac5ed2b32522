"""docs/tensorrt_llm.md is true: its blocks are generated; its keys, links, files, commands and versions exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.docs import trtllm_tables, update
from trt_spec import methods
from trt_spec.checkpoints.trtllm import normalise
from trt_spec.cli.app import cli
from trt_spec.config import capabilities, image, loader, versions
from trt_spec.config.explain import known_keys
from trt_spec.config.schema import RunConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tensorrt_llm.md"
TEXT = PAGE.read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
KEYS = {known.key for known in known_keys() if not known.is_section}


def test_the_generated_blocks_are_up_to_date():
    assert update.update(TEXT) == TEXT, "run: make docs"


def test_every_block_is_in_one_document():
    documents = [(ROOT / name).read_text(encoding="utf-8") for name in update.DOCUMENTS]
    for name in update.blocks():
        assert [f"<!-- {name} -->" in document for document in documents].count(True) == 1, name


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", TEXT)
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
    for anchor in re.findall(r"docs/tensorrt_llm\.md#([\w-]+)", README):
        assert anchor in {re.sub(r"\W+", "-", title.lower()) for title in re.findall(r"^## (.+)$", TEXT, re.MULTILINE)}


def test_config_keys_exist():
    sections = "|".join(RunConfig.model_fields)
    named = set(re.findall(rf"`((?:{sections})\.[\w.]+)`", TEXT))
    assert named
    assert named <= KEYS


def test_commands_exist_with_their_options():
    commands = [
        shlex.split(line) for line in re.findall(r"^    (trt-spec .+?)(?:  #.*)?$", TEXT + README, re.MULTILINE)
    ]
    assert {words[1] for words in commands} >= {"plan", "convert", "deploy"}
    for words in commands:
        options = {option for parameter in cli.commands[words[1]].params for option in parameter.opts}
        assert {word.strip("[]") for word in words if word.strip("[").startswith("--")} <= options, words


def test_every_real_deployment_is_a_row_and_loads():
    rows = set(re.findall(r"\]\(\.\./configs/([\w.-]+\.yaml)\)", TEXT))
    configs = {path.name: loader.load(path) for path in (ROOT / "configs").glob("*.yaml")}
    real = {name for name, config in configs.items() if config.build.target != "torch"}
    assert rows == real
    for name in real:
        capabilities.check(configs[name])
        assert configs[name].name == Path(name).stem
        assert versions.container_of(versions.parse(configs[name].build.tensorrt_llm_version)).has_tritonserver


def test_the_deployments_that_were_asked_for_are_there():
    runs = [loader.load(path) for path in (ROOT / "configs").glob("*.yaml")]
    found = {(run.speculation.method, run.build.target) for run in runs}
    assert found >= {
        ("eagle3", "llmapi"),
        ("draft_model", "tensorrt"),
        ("draft_model", "llmapi"),
        ("medusa", "tensorrt"),
        ("mtp", "llmapi"),
        ("ngram", "llmapi"),
    }


def test_versions_are_those_of_the_code():
    assert f"| `tensorrt` | {versions.FIRST_ENGINE_VERSION} to {versions.LAST_ENGINE_VERSION} |" in TEXT
    assert f"| `llmapi` | {versions.FIRST_LLMAPI_VERSION} and later, known to {versions.NEWEST_KNOWN_VERSION} |" in TEXT
    assert set(versions.DEFAULT_VERSION.values()) == {"1.2.1"}
    assert "pins one; 1.2.1 unless it is given" in TEXT


def test_the_install_lines_are_those_of_the_image():
    [line] = re.findall(r"^    python3 -m pip install -c image\.txt (.+)$", TEXT, re.MULTILINE)
    assert tuple(shlex.split(line)) == image.REQUIREMENTS


def test_extras_take_the_versions_that_have_the_target():
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra, has_target in (("tensorrt", versions.has_engine_path), ("tensorrt-llm", versions.has_llmapi)):
        [requirement] = map(Requirement, extras[extra])
        assert requirement.name == "tensorrt-llm"
        for version in ("1.2.0", "1.2.1", "1.3.0rc20", "1.3.0rc21", "1.4.0rc4", "1.5.0", "2.0"):
            is_taken = requirement.specifier.contains(version, prereleases=True)
            assert is_taken == has_target(versions.parse(version)), (extra, version)


def test_what_is_said_of_exactness_follows_the_table():
    table = trtllm_tables.exactness_table(capabilities.TABLE)
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    for target, method, _, judged, above, _ in rows:
        rules = re.findall(r"`(\w+)`", judged)
        exact = [rule for rule in rules if methods.ACCEPTANCE[rule].serves_sampling]
        is_exact = method == "`none`" or bool(exact)
        assert above.startswith("exact") == is_exact, (target, method)
        assert (above == "refused") == (not is_exact and target == "`llmapi`")
        assert "typical" not in rules
    assert len(re.findall(r"^\|", trtllm_tables.impossible_table(), re.MULTILINE)) == 2 + len(capabilities.ABSENT)


def test_the_file_that_records_a_conversion_has_its_name():
    assert f"`{normalise.RECORD_FILE}`" in TEXT


def test_it_says_that_nothing_was_executed():
    assert "Nothing on this page was executed against TensorRT-LLM" in TEXT
