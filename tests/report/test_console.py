"""stdout carries results, stderr the rest; with --json stdout is one object."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from trt_spec.errors import ConfigError, MachineError
from trt_spec.report.console import Reporter


def reporter(**options):
    out, err = io.StringIO(), io.StringIO()
    return Reporter(stdout=out, stderr=err, **options), out, err


def test_a_result_is_a_table_or_one_json_object():
    shown, out, _ = reporter()
    shown.result({"a": 1}, "the table")
    assert out.getvalue() == "the table\n"
    shown, out, _ = reporter(as_json=True)
    shown.result({"a": "ü"}, "the table")
    assert json.loads(out.getvalue()) == {"a": "ü"}


def test_everything_else_goes_to_stderr():
    shown, out, err = reporter(as_json=True, verbosity=1)
    shown.note("built")
    shown.detail("more")
    shown.warn("careful")
    shown.stream("tokens")
    with shown.progress("working"):
        pass
    assert out.getvalue() == ""
    assert err.getvalue() == "built\nmore\nwarning: careful\nworking ...\n"


def test_quiet_keeps_warnings_and_errors():
    shown, _, err = reporter(is_quiet=True, verbosity=1)
    shown.note("built")
    shown.detail("more")
    with shown.progress("working"):
        pass
    assert err.getvalue() == ""
    shown.warn("careful")
    assert "careful" in err.getvalue()


def test_text_is_never_read_as_markup():
    shown, out, err = reporter()
    shown.note("layer [0] of [/bold]")
    shown.stream("[red]x[/red]")
    assert err.getvalue() == "layer [0] of [/bold]\n"
    assert out.getvalue() == "[red]x[/red]"


def test_an_error_says_all_of_it_and_is_json_too():
    error = ConfigError("unknown key", where="run.yaml:3", got="modle", remedy="did you mean model?")
    shown, out, err = reporter(as_json=True)
    shown.error(error)
    for part in ("error: unknown key", "run.yaml:3", "modle", "did you mean model?"):
        assert part in err.getvalue()
    assert json.loads(out.getvalue())["exit_code"] == 2


@pytest.mark.parametrize("verbosity", [0, 1])
def test_an_unexpected_error_is_one_line_without_v(verbosity):
    shown, _, err = reporter(verbosity=verbosity)
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        shown.unexpected(error, 70)
    lines = err.getvalue().splitlines()
    assert lines[0].startswith("error: unexpected ZeroDivisionError: division by zero")
    assert ("Traceback" in err.getvalue()) == bool(verbosity)
    assert ("-v" in lines[0]) == (not verbosity)
    assert (len(lines) == 1) == (not verbosity)


def test_a_slow_step_says_how_long_it_took(monkeypatch):
    times = iter([0.0, 2.5])
    monkeypatch.setattr("trt_spec.report.console.time.monotonic", lambda: next(times))
    shown, _, err = reporter()
    with shown.progress("hashing"):
        pass
    assert err.getvalue() == "hashing ...\nhashing: 2.5 s\n"


def test_a_passing_step_leaves_no_time(monkeypatch):
    times = iter([0.0, 2.5])
    monkeypatch.setattr("trt_spec.report.console.time.monotonic", lambda: next(times))
    shown, _, err = reporter()
    with shown.progress("hashing", is_lasting=False):
        pass
    assert err.getvalue() == "hashing ...\n"


def test_on_a_terminal_progress_is_live_and_leaves_one_line_where_it_was_slow(monkeypatch):
    monkeypatch.setattr("trt_spec.report.console.SLOW_S", -1.0)
    shown, _, err = reporter()
    shown._err = Console(file=err, force_terminal=True, width=100, color_system=None)
    with shown.progress("building") as advance:
        advance(0.5, "writing [weights]")
        with shown.progress("inside"):  # no second live line, which rich refuses
            pass
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err.getvalue())
    assert "writing [weights]" in text
    assert re.search(r"building: 0\.\d s", text)


@pytest.mark.parametrize("failure", ["error", "unexpected", "interrupted"])
def test_json_is_one_object_whatever_ends_the_command(failure):
    def fail(shown):
        if failure == "error":
            shown.error(ConfigError("wrong"))
        elif failure == "unexpected":
            shown.unexpected(ZeroDivisionError("by accident"), 70)
        else:
            shown.interrupted(130)

    shown, out, _ = reporter(as_json=True)
    fail(shown)
    assert json.loads(out.getvalue())["exit_code"] == {"error": 2, "unexpected": 70, "interrupted": 130}[failure]
    shown, out, err = reporter(as_json=True)
    shown.result({"pid": 1})  # as `serve` does before it serves
    fail(shown)
    assert json.loads(out.getvalue()) == {"pid": 1}
    assert err.getvalue()


def test_commands_in_messages_can_be_copied():
    command = "docker run \\\n    -v [a]:/b \\\n    image"
    stderr = io.StringIO()
    reporter = Reporter(stdout=io.StringIO(), stderr=stderr)
    reporter.error(MachineError("no tools", remedy=f"run:\n{command}"))
    reporter.note(command)
    reporter.tool_line(command)
    assert stderr.getvalue().count(f"{command}\n") == 3
