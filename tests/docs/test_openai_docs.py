"""docs/openai.md: its table is generated, its example and its statuses are the front's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from scripts.docs import update
from trt_spec.serve.openai import errors, fields

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "openai.md").read_text(encoding="utf-8")


def test_the_table_of_fields_is_up_to_date_and_whole():
    assert update.update(PAGE) == PAGE, "run: make docs"
    table = PAGE.split("<!-- openai-fields -->")[1].split("<!-- /openai-fields -->")[0]
    for kind in fields.HONOURED:
        assert [name for name in fields.known(kind) if f"`{name}`" not in table] == []


def test_every_status_is_explained():
    named = {int(status) for status in re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE)}
    assert {status for _, status, _, _ in errors._KINDS} | {500, 413} == named


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", PAGE) if not link.startswith("https://")]
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_the_example_sends_fields_that_are_honoured():
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    calls = [node for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Call)]
    [create] = [call for call in calls if ast.unparse(call.func).endswith("completions.create")]
    sent = {keyword.arg: keyword.value for keyword in create.keywords}
    extra = [key.value for key in sent.pop("extra_body").keys]
    assert [name for name in (*sent, *extra) if name not in fields.HONOURED["chat"]] == []
