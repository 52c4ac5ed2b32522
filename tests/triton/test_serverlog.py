"""The reason in a log of a server that did not start, and not the noise around it."""

from __future__ import annotations

import pytest

from trt_spec.errors import MachineError
from trt_spec.triton.server.serverlog import last_words, open_log, useful_lines

LOG = """\
W1129 18:53:50.1 4254 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory"
E1129 18:53:50.2 4254 server.cc:241] "CudaDriverHelper has not been initialized."
I1129 18:53:50.3 4254 model_lifecycle.cc:472] "loading: tensorrt_llm:1"
E1129 18:53:51.0 4254 backend_model.cc:692] "ERROR: Failed to create instance: ConfigError: no \\"match\\"\\n\
  - max_draft_len: the repository says 4, found 5\\n  what to do: emit it again\\n\\nAt:\\n  model.py(10): init\\n"
E1129 18:53:51.0 4254 model_lifecycle.cc:642] "failed to load 'tensorrt_llm' version 1: Internal: ConfigError: no match
  - max_draft_len: the repository says 4, found 5
  what to do: emit it again

At:
  model.py(10): initialize
"
I1129 18:53:51.1 4254 server.cc:604]
+------------------+
| Repository Agent |
+------------------+
error: creating server: Internal - failed to load all models
"""


def test_errors_with_all_their_lines_and_nothing_else():
    assert useful_lines(LOG) == [
        'ERROR: Failed to create instance: ConfigError: no "match"',
        "- max_draft_len: the repository says 4, found 5",
        "what to do: emit it again",
        "failed to load 'tensorrt_llm' version 1: Internal: ConfigError: no match",
    ]


def test_without_errors_the_end_of_the_log():
    assert useful_lines("one\ntwo\n\nthree\n", max_lines=2) == ["two", "three"]
    assert useful_lines("") == []


def test_a_crash_of_the_server_is_told():
    log = LOG.split("E1129 18:53:51")[0] + "Signal (11) received.\n 0# 0x00 in tritonserver\n"
    assert useful_lines(log) == ["Signal (11) received.", "0# 0x00 in tritonserver"]


def test_last_words():
    assert last_words(LOG) == "error: creating server: Internal - failed to load all models"
    assert last_words('I1129 18:53:50.3 4254 m.cc:472] "loading: x:1"\n\n+--+\n') == "loading: x:1"
    assert last_words("") == ""


def test_a_log_in_use_is_left_alone(tmp_path):
    first, place = open_log(tmp_path / "a.log", tmp_path / "b.log")
    first.write(b"kept")
    first.flush()
    second, other = open_log(tmp_path / "a.log", tmp_path / "b.log")
    assert (place.name, other.name) == ("a.log", "b.log")
    with pytest.raises(MachineError, match="other servers write"):
        open_log(tmp_path / "a.log", tmp_path / "b.log")
    assert place.read_bytes() == b"kept"
    first.close()
    again, place = open_log(tmp_path / "a.log", tmp_path / "b.log")
    assert (place.name, place.read_bytes()) == ("a.log", b"")
    again.close()
    second.close()
