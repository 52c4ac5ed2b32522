"""What the command line imports before it has to: nothing that is slow."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import tiny
from trt_spec.cli.app import SHORT_HELP, cli

HEAVY = (
    "torch",
    "transformers",
    "pydantic",
    "ruamel",
    "jinja2",
    "scipy",
    "tritonclient",
    "numpy",
    "rich",
    "tokenizers",
)


def imported(*arguments: str) -> set[str]:
    """The heavy packages that a process has imported once the command line was through."""
    code = (
        "import sys\n"
        "from trt_spec.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as ended:\n    assert ended.code == 0, ended.code\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(HEAVY) & set(done.stderr.splitlines())


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("inspect", "--help"), ("fetch", "--help")])
def test_help_imports_nothing_heavy(arguments):
    assert imported(*arguments) == set()


def test_inspect_imports_what_reads_headers_and_shows_tables(tmp_path):
    tiny.llama_checkpoint(tmp_path)
    assert imported("inspect", str(tmp_path)) <= {"tokenizers", "rich"}


@pytest.mark.parametrize("name", SHORT_HELP)
def test_the_table_of_commands_says_what_the_commands_say(name):
    command = cli.commands[name]
    assert command.name == name
    assert command.get_short_help_str(100) == SHORT_HELP[name]
