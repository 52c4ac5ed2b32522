"""Tables for the terminal: what every view is made of. Pure: data in, renderables out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, numeric: Sequence[int] = ()) -> Table:
    """A table; columns in `numeric` are right-aligned. Cells are markup."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, name in enumerate(header):
        made.add_column(name, justify="right" if index in numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(str(cell) for cell in row))
    return made


def cells(record: object, **specs: str) -> list[str]:
    """Attributes of a record in the format of each; "-" for None."""
    values = ((getattr(record, name), spec) for name, spec in specs.items())
    return ["-" if value is None else format(value, spec) for value, spec in values]


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Two columns: a name and what it is; pairs without a value are left out."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None and value != "":
            made.add_row(name, escape(str(value)))
    return made


def titled(title: str, *parts: RenderableType) -> RenderableType:
    """Parts below a title, which is never broken to the width of a table."""
    return Group(Text(title, style="bold"), *parts)
