"""The pages about methods name only what exists: config keys, methods, rules, links, and examples that load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trt_spec import methods
from trt_spec.config import capabilities, loader
from trt_spec.config.explain import known_keys
from trt_spec.config.schema import RunConfig
from trt_spec.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs" / "methods"
PAGES = sorted(DOCS.glob("*.md"))
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
SECTIONS = "|".join(RunConfig.model_fields)
KEYS = {known.key for known in known_keys() if not known.is_section}


def test_every_method_has_a_page_and_the_index_lists_them():
    others = {"README.md", "trees.md", "acceptance.md", "combination.md"}
    assert {f"{method}.md" for method in METHODS} | others == set(TEXTS)
    assert set(re.findall(r"\]\((\w+\.md)\)", TEXTS["README.md"])) == set(TEXTS) - {"README.md"}


@pytest.mark.parametrize("name", TEXTS)
def test_config_keys_exist(name):
    """A dotted name in backticks that begins with a section of the run config is a key of it, or a section."""
    named = re.findall(rf"`((?:{SECTIONS})\.[\w.]+)`", TEXTS[name])
    sections = {key.rsplit(".", depth)[0] for key in KEYS for depth in (1, 2)}
    assert [key for key in named if key not in KEYS | sections] == []


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name):
    assert [link for link in re.findall(r"\]\(([^)#:]+)\)", TEXTS[name]) if not (DOCS / link).exists()] == []


@pytest.mark.parametrize("name", TEXTS)
def test_examples_load(name):
    for text in re.findall(r"```yaml\n(.*?)```", TEXTS[name], flags=re.DOTALL):
        config = loader.loads(text)
        capabilities.check(config)
        assert name.removesuffix(".md") in (config.speculation.method, "trees", "combination")


@pytest.mark.parametrize("method", METHODS)
def test_the_command_is_that_of_the_page(method):
    commands = re.findall(r"^    make engine (.+)$", TEXTS[f"{method}.md"], flags=re.MULTILINE)
    assert [re.search(r"SPEC=(\w+)", command).group(1) for command in commands] == [method]


def test_the_rules_are_those_of_the_table():
    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| ([^|]+) \|", TEXTS["acceptance.md"], flags=re.MULTILINE)
    found = {name: (lossless == "yes", requests.startswith("all")) for name, lossless, requests in rows}
    facts = methods.ACCEPTANCE
    assert found == {name: (rule.is_lossless, rule.serves_sampling) for name, rule in facts.items()}


def test_typical_is_the_only_lossy_rule_that_the_pages_name():
    lossy = {name for name, facts in methods.ACCEPTANCE.items() if not facts.is_lossless}
    assert lossy == {"typical"}
    own = {cell.method for cell in capabilities.TABLE if cell.build_target == "torch" and cell.is_supported} - {"none"}
    assert all("every rule but `typical`" in TEXTS[f"{method}.md"] for method in own)
