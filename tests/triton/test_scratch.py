"""Directories that go with the server that uses them."""

from __future__ import annotations

import subprocess
import sys

from trt_spec.triton.server.scratch import make_scratch


def test_what_is_in_use_stays_and_what_is_abandoned_goes(tmp_path):
    first, second = make_scratch(tmp_path), make_scratch(tmp_path)
    assert first.path.is_dir()
    assert second.path.is_dir()
    first.release()
    third = make_scratch(tmp_path)
    assert not first.path.exists()
    assert second.path.is_dir()
    assert third.path.is_dir()
    second.release()
    third.release()


def test_a_child_that_inherits_it_keeps_it(tmp_path):
    scratch = make_scratch(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(scratch.lock,))
    scratch.release()
    make_scratch(tmp_path).release()
    assert scratch.path.is_dir()
    child.communicate(b"\n")
    make_scratch(tmp_path).release()
    assert not scratch.path.exists()


def test_other_things_of_that_name_are_left_alone(tmp_path):
    (tmp_path / "trt_spec_server_file").write_text("")
    (tmp_path / "target").mkdir()
    (tmp_path / "trt_spec_server_link").symlink_to(tmp_path / "target")
    make_scratch(tmp_path).release()
    assert (tmp_path / "trt_spec_server_file").exists()
    assert (tmp_path / "target").is_dir()
