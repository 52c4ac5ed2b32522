"""Errors turned into exit codes and one message each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click

from trt_spec.errors import MachineError, TrtSpecError
from trt_spec.report.console import Reporter

EXIT_INTERRUPTED = 130  # as shells report it
EXIT_UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h


def guarded(reporter: Reporter, call: Callable[[], int | None]) -> int:
    """Calls, and turns what comes out into an exit code and one message."""
    try:
        return call() or 0
    except TrtSpecError as error:
        reporter.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        reporter.interrupted(EXIT_INTERRUPTED)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has gone; nothing can be told to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except click.ClickException:
        raise
    except OSError as error:
        reporter.error(_machine_error(error))
        return MachineError.exit_code
    except Exception as error:
        reporter.unexpected(error, EXIT_UNEXPECTED)
        return EXIT_UNEXPECTED


def _machine_error(error: OSError) -> MachineError:
    """A full disk, a missing permission and their like, in our form."""
    wrapped = MachineError(
        error.strerror or str(error),
        where=" -> ".join(str(name) for name in (error.filename, error.filename2) if name) or None,  # a copy has two
        got=type(error).__name__,
        remedy="check the disk, the permissions and the path; -v shows the traceback",
    )
    wrapped.__cause__ = error
    return wrapped
