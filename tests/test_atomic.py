"""A directory is replaced whole or not at all, whatever stops the writer."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from trt_spec import atomic


def write(directory, text):
    with atomic.atomic_directory(directory) as staging:
        (staging / "file").write_text(text)


def siblings(directory):
    return sorted(p.name for p in directory.parent.iterdir() if p.name != directory.name)


def test_creates_and_replaces(tmp_path):
    final = tmp_path / "deep" / "engine"
    write(final, "one")
    write(final, "two")
    assert (final / "file").read_text() == "two"
    assert siblings(final) == []


def test_an_error_leaves_the_old_one(tmp_path):
    final = tmp_path / "engine"
    write(final, "old")
    with pytest.raises(ZeroDivisionError), atomic.atomic_directory(final) as staging:
        (staging / "file").write_text(str(1 / 0))
    assert (final / "file").read_text() == "old"
    assert siblings(final) == []


def test_refuses_to_replace_a_file(tmp_path):
    (tmp_path / "engine").write_text("mine")
    with pytest.raises(NotADirectoryError), atomic.atomic_directory(tmp_path / "engine"):
        pass
    assert (tmp_path / "engine").read_text() == "mine"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path, is_there):
    final, link = tmp_path / "big disk" / "engine", tmp_path / "engine"
    if is_there:
        write(final, "old")
    link.symlink_to(final)
    write(link, "new")
    assert link.is_symlink()
    assert (final / "file").read_text() == "new"
    assert siblings(link) == ["big disk"]
    assert siblings(final) == []


def test_a_rename_that_fails_says_why(tmp_path, monkeypatch):
    def refuse(source, destination):
        raise PermissionError(errno.EACCES, "not here", str(destination))

    monkeypatch.setattr(atomic.os, "rename", refuse)
    with pytest.raises(PermissionError, match="not here"):
        write(tmp_path / "engine", "new")
    assert list(tmp_path.iterdir()) == []


def test_without_exchange_two_renames_do_it(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)
    final = tmp_path / "engine"
    write(final, "one")
    write(final, "two")
    assert (final / "file").read_text() == "two"
    assert siblings(final) == []


def test_a_death_between_the_two_renames_is_mended(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)
    final = tmp_path / "engine"
    write(final, "old")
    os.rename(final, tmp_path / ".engine.old")  # what a kill -9 between them leaves
    with pytest.raises(ZeroDivisionError), atomic.atomic_directory(final):
        _ = 1 / 0
    assert (final / "file").read_text() == "old"
    assert siblings(final) == []


WRITER = """
    import sys, time
    from pathlib import Path
    from trt_spec.atomic import atomic_directory, terminate_as_interrupt
    with terminate_as_interrupt(), atomic_directory(Path(sys.argv[1])) as staging:
        (staging / "file").write_text("half")
        print("writing", flush=True)
        time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_writer_leaves_the_old_one(tmp_path, how):
    final = tmp_path / "engine"
    write(final, "old")
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(final)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert writer.stdout.readline() == b"writing\n"
    assert atomic.remove_stale_siblings(final) == []  # its writer is alive
    writer.send_signal(how)
    assert writer.wait(20) != 0
    assert (final / "file").read_text() == "old"
    left = siblings(final)
    assert len(left) == (1 if how == signal.SIGKILL else 0)
    write(final, "new")  # the next writer cleans up
    assert (final / "file").read_text() == "new"
    assert siblings(final) == []


def test_an_interrupted_first_write_leaves_nothing(tmp_path):
    final = tmp_path / "engine"

    def interrupted():
        with atomic.terminate_as_interrupt(), atomic.atomic_directory(final) as staging:
            (staging / "file").write_text("half")
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
