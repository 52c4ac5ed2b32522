"""What every page of a report is: one HTML file that loads nothing from elsewhere; tables; JUnit; files written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from trt_spec.atomic import write_text

STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--line:#e3e7ec;--paper:#fff;--wash:#f6f7f9;--good:#1a7f4b;--bad:#c0392b;
  --warn:#b7791f;--one:#2563b0;--two:#e08a1e}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa5b3;--line:#2c333d;--paper:#14181d;
  --wash:#1c2128;--good:#4cc38a;--bad:#ff7b6b;--warn:#e7b04b;--one:#6ea8f0;--two:#f0a94a}}
*{box-sizing:border-box}
body{margin:0 auto;padding:28px 20px 60px;max-width:1060px;background:var(--paper);color:var(--ink);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:15px;font-weight:600;color:var(--soft);margin:0 0 4px}
h2{font-size:17px;margin:34px 0 8px}
.verdict{font-size:34px;font-weight:700;line-height:1.15;margin:0}
.equivalent,.pass{color:var(--good)}
.different,.lossy,.fail{color:var(--bad)}
.inconclusive{color:var(--warn)}
.reason{font-size:17px;margin:8px 0 18px;max-width:60em}
.claim{border-left:4px solid currentColor;padding-left:16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:18px 0}
.tile{background:var(--wash);border-radius:8px;padding:10px 12px}
.tile b{display:block;font-size:20px;font-weight:650}
.tile span{color:var(--soft);font-size:13px}
.row{display:flex;flex-wrap:wrap;gap:18px}
.row figure{flex:1 1 280px;margin:0;min-width:0}
.wide{margin:0;overflow-x:auto}
figcaption{color:var(--soft);font-size:13px;margin-bottom:4px}
svg{width:100%;height:auto;display:block}
.wide svg{max-width:820px}
.row svg{max-width:380px}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th{text-align:left;color:var(--soft);font-weight:600}
td,th{padding:4px 10px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right}
td.wrong,td.fail{color:var(--bad);font-weight:600}
td.ok,td.pass{color:var(--good)}
td.inconclusive{color:var(--warn)}
code{font-size:12.5px;overflow-wrap:anywhere}
.note{color:var(--soft);font-size:13.5px;max-width:62em}
.scroll{overflow-x:auto}
.label{font-size:11px;fill:var(--soft)}
.grid{stroke:var(--line);stroke-width:1}
.grid.strong{stroke:var(--soft);fill:none}
.limit{stroke:var(--bad);stroke-width:1.3;stroke-dasharray:5 4;fill:none}
.one{stroke:var(--one);fill:none;stroke-width:2}
.two{stroke:var(--two);fill:none;stroke-width:2}
rect.one,rect.two{stroke:none;opacity:.8}
rect.one{fill:var(--one)}
rect.two{fill:var(--two)}
.range{fill:var(--soft);opacity:.3}
.range.good{fill:var(--good);opacity:.35}
.range.bad{fill:var(--bad);opacity:.35}
.dot{fill:var(--one)}
.key i{display:inline-block;width:18px;height:3px;vertical-align:middle;margin:0 5px 0 14px}
.key .k1{background:var(--one)}
.key .k2{background:var(--two)}
@media print{body{max-width:none}}
"""

_STATES = ("ok", "wrong", "pass", "fail", "inconclusive")


def html(title: str, parts: Iterable[str]) -> str:
    """A whole page.

    Args:
        title: plain text.
        parts: markup of the body.
    """
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    head = f"<head>{meta}<title>{escape(title)}</title><style>{STYLE}</style></head>"
    return f'<!doctype html>\n<html lang="en">{head}<body>{"".join(parts)}</body></html>\n'


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """Large numbers, each with what it is."""
    body = "".join(f'<div class="tile"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in pairs)
    return f'<div class="tiles">{body}</div>'


def origin(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of where a result comes from, from `provenance.collect`."""
    git, hardware = provenance.get("git"), provenance["hardware"]
    return [
        ("commit", f"{git['commit'][:12]}{', with changes' if git['is_dirty'] else ''}" if git else "-"),
        ("config digest", provenance.get("config_digest", "-")),
        ("versions", ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())),
        ("machine", f"{hardware['processor']}, {hardware['num_cores']} cores"),
    ]


def table(header: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[int] = ()) -> str:
    """A table of plain text; columns in `numeric` are right-aligned."""

    def cell(tag: str, index: int, value: object) -> str:
        style = "n" if index in numeric else value if value in _STATES else ""
        return f"<{tag}{f' class={style}' if style else ''}>{escape(str(value))}</{tag}>"

    head = "".join(cell("th", index, name) for index, name in enumerate(header))
    body = "".join(f"<tr>{''.join(cell('td', i, value) for i, value in enumerate(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table>{f"<tr>{head}</tr>" if header else ""}{body}</table></div>'


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
