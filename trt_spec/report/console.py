"""The one place that writes to the terminal. Results go to stdout; progress, notes and errors go to stderr.

With `--json` stdout carries exactly one JSON object; with `-q` stderr carries only warnings and errors. rich is
imported where something is shown with it, so that nothing else has to wait for it.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

from trt_spec.errors import TrtSpecError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

SLOW_S = 2.0  # anything longer shows that it is at work, and says afterwards how long it took
_WIDTH_WITHOUT_TERMINAL = 120  # files and pipes have no width of their own
_REFRESH_PER_S = 8

Advance = Callable[[float | None, str | None], None]


class Reporter:
    """Renders what commands return.

    Args:
        as_json: one JSON object on stdout instead of tables and text.
        verbosity: 0, or 1 for details and tracebacks.
        is_quiet: no progress, no notes.
        stdout, stderr: for tests; the process's own by default.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        verbosity: int = 0,
        is_quiet: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.as_json = as_json
        self.verbosity = verbosity
        self.is_quiet = is_quiet
        self._stdout, self._stderr = stdout or sys.stdout, stderr or sys.stderr
        self._is_live = False
        self._has_json = False

    @cached_property
    def _out(self) -> Console:
        return _console(self._stdout)

    @cached_property
    def _err(self) -> Console:
        return _console(self._stderr)

    # --- results ---------------------------------------------------------------------------------------------

    def result(self, data: Mapping[str, Any], view: RenderableType | None = None) -> None:
        """Shows the result of a command: `data` as JSON where that was asked for, else `view`."""
        if self.as_json:
            self.json(data)
        elif view is not None:
            self._out.print(view, crop=False)  # commands to be copied may be longer than a terminal is wide

    def json(self, data: Mapping[str, Any]) -> None:
        """Writes one JSON object, for results that are JSON in any case."""
        self._has_json = True
        self.text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def text(self, text: str) -> None:
        """Writes text that is itself the result, unwrapped and without markup (a schema, a document)."""
        self._stdout.write(text)
        self._stdout.flush()

    def stream(self, delta: str) -> None:
        """Writes generated text as it arrives; nothing with `--json`, where the whole text comes at the end."""
        if not self.as_json:
            self.text(delta)

    def text_line(self, line: str) -> None:
        """Writes one line between streamed texts; nothing with `--json`."""
        self.stream(line + "\n")

    # --- on the way ------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """One line on what was done or found."""
        if not self.is_quiet:
            self._err.print(text, markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        """One line that only `-v` shows."""
        if self.verbosity and not self.is_quiet:
            self._err.print(f"[dim]{_escape(text)}[/dim]", soft_wrap=True)

    def tool_line(self, text: str) -> None:
        """One line of what another's tool prints: all of them where there is no progress line to show the last one."""
        if not self.is_quiet and (self.verbosity or not self._is_live):
            self._err.print(text, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """One line that `-q` does not hide."""
        self._err.print(f"[yellow]warning:[/yellow] {_escape(text)}", soft_wrap=True)

    @contextmanager
    def progress(self, label: str, *, is_lasting: bool = True) -> Iterator[Advance]:
        """Shows that something is at work: a line with a spinner and the time on a terminal, plain lines elsewhere.

        Args:
            label: what is at work.
            is_lasting: leave a line with the time taken, where that was long.

        Yields:
            advance(fraction, label): the part done, 0 to 1 or None where unknown, and a new label or None.
        """
        started = time.monotonic()
        if self.is_quiet or self._is_live:  # a step inside a step: the outer line stays
            yield lambda fraction, text=None: None
            return
        if self._err.is_terminal:
            from rich.live import Live

            from trt_spec.report.progress import ProgressLine

            line = ProgressLine(label, started)
            self._is_live = True
            try:
                with Live(line, console=self._err, refresh_per_second=_REFRESH_PER_S, transient=True):
                    yield line.advance
            finally:
                self._is_live = False
        else:
            self.note(f"{label} ...")
            yield lambda fraction, text=None: None
        elapsed = time.monotonic() - started
        if elapsed > SLOW_S and is_lasting:
            self.note(f"{label}: {elapsed:.1f} s")

    # --- errors ----------------------------------------------------------------------------------------------

    def error(self, error: TrtSpecError) -> None:
        """Shows one of our errors; with `--json` it is the one object on stdout too, unless that is there already."""
        first, *rest = str(error).splitlines()
        self._err.print(f"[bold red]error:[/bold red] {_escape(first)}", soft_wrap=True)
        for line in rest:  # not as escaped markup, which would double a backslash at the end of a command's line
            self._err.print(line, markup=False, soft_wrap=True)
        if self.verbosity:
            self._traceback(error)
        self._failure(error.as_dict())

    def interrupted(self, exit_code: int) -> None:
        """Says that Ctrl-C or SIGTERM ended the command."""
        self.warn("interrupted")
        message = {"code": "interrupted", "exit_code": exit_code, "message": "interrupted"}
        self._failure({"error": "KeyboardInterrupt", **message})

    def unexpected(self, error: BaseException, exit_code: int) -> None:
        """Shows an error that is none of ours, in one line, and how to see where it came from."""
        told = "" if self.verbosity else " (run again with -v for the traceback)"
        words = f"unexpected {type(error).__name__}: {error}{told}"
        self._err.print(f"[bold red]error:[/bold red] {_escape(words)}", soft_wrap=True)
        if self.verbosity:
            self._traceback(error)
        message = {"code": "unexpected", "exit_code": exit_code, "message": str(error)}
        self._failure({"error": type(error).__name__, **message})

    def _failure(self, data: Mapping[str, Any]) -> None:
        """The one JSON object; a server that dies after its addresses were printed adds no second one."""
        if self.as_json and not self._has_json:
            self.json(data)

    def _traceback(self, error: BaseException) -> None:
        self._stderr.write("".join(traceback.format_exception(error)))
        self._stderr.flush()


def _console(file: TextIO) -> Console:
    from rich.console import Console

    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    return console


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
