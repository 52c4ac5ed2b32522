"""Pages from templates: text is escaped, what is missing is an error, and the templates go into the wheel."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from trt_spec.report import page

TEMPLATES = Path(page.__file__).parent / "templates"


def test_a_page_that_lacks_a_value_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        page.render("tuning.html", found={"run": "x"})


def test_values_are_escaped_and_no_number_is_a_dash():
    made = page._environment().from_string("{{ text }} {{ none|f('.2f') }} {{ number|f('.2f') }}")
    assert made.render(text="<b>&", none=None, number=1) == "&lt;b&gt;&amp; - 1.00"


def test_all_templates_are_package_data():
    tomllib = pytest.importorskip("tomllib")
    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns = settings["package-data"]["trt_spec"]
    packaged = {path for pattern in patterns for path in (root / "trt_spec").glob(pattern)}
    assert set(TEMPLATES.iterdir()) <= packaged
