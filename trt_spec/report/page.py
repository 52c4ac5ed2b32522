"""Files of a report: one HTML page that loads nothing from elsewhere, from a template; JUnit; all written at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from trt_spec.atomic import write_text

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"f": lambda value, spec: "-" if value is None else format(value, spec), "repr": repr}
    return made


def render(template: str, **values: Any) -> str:
    """A whole page.

    Args:
        template: its name in templates/; it extends page.html. A value that it reads and that is not there is an error.
    """
    return _environment().get_template(template).render(**values)


def write(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes files by name, each by one rename, and returns their paths."""
    for name, text in texts.items():
        write_text(directory / name, text)
    return [directory / name for name in texts]


def junit(name: str, classname: str, cases: Sequence[tuple[str, str | None]]) -> str:
    """One test suite.

    Args:
        cases: name, and what is wrong or None: whatever is not shown is a failure.
    """
    failures = sum(wrong is not None for _, wrong in cases)
    attributes = {"name": name, "tests": str(len(cases)), "failures": str(failures)}
    suite = ElementTree.Element("testsuite", attributes)
    for case_name, wrong in cases:
        case = ElementTree.SubElement(suite, "testcase", {"classname": classname, "name": case_name})
        if wrong is not None:
            ElementTree.SubElement(case, "failure", {"message": wrong})
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"
