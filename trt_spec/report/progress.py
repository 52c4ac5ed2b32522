"""The line that says what is at work, on a terminal."""

from __future__ import annotations

import time

from rich.console import RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table


class ProgressLine:
    """What `Reporter.progress` shows on a terminal; rich renders it again several times a second."""

    def __init__(self, label: str, started: float) -> None:
        self._label = label
        self._started = started
        self._fraction: float | None = None
        self._spinner = Spinner("dots")

    def advance(self, fraction: float | None, label: str | None = None) -> None:
        self._fraction = fraction
        self._label = label or self._label

    def __rich__(self) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = [self._spinner, escape(self._label)]
        if self._fraction is not None:
            cells.append(ProgressBar(total=1.0, completed=min(self._fraction, 1.0), width=30))
        cells.append(f"[dim]{time.monotonic() - self._started:.0f} s[/dim]")
        grid.add_row(*cells)
        return grid
