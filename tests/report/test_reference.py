"""The generated tables hold every key, and the README holds the generated tables."""

from __future__ import annotations

import pytest

from scripts.docs import tables
from trt_spec.config.explain import known_keys
from trt_spec.report import reference


def test_config_reference_has_every_key_once():
    table = reference.config_reference(known_keys())
    keys = [line.split("`")[1] for line in table.splitlines()[2:]]
    assert keys == [known.key for known in known_keys() if not known.is_section]


def test_cells_keep_their_column():
    table = reference.markdown_table(("a",), [("x | y <name> `z`",)])
    assert table.splitlines()[2] == "| x \\| y &lt;name> `z` |"


def test_replace_block_replaces_exactly_one():
    document = "before\n<!-- t -->\nold\n<!-- /t -->\nafter\n"
    assert tables.replace_block(document, "t", "new") == "before\n<!-- t -->\n\nnew\n<!-- /t -->\nafter\n"
    with pytest.raises(ValueError, match="found 0"):
        tables.replace_block(document, "u", "new")
