"""The command line, one file per command; `main` runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits."""
    from trt_spec.cli.app import main as run

    run(argv)
