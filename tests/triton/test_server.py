"""Starting, watching and stopping a real tritonserver, and every way in which that can fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import WAIT_S, until
from trt_spec.clients.triton import TritonClient
from trt_spec.errors import MachineError
from trt_spec.triton import pbtxt
from trt_spec.triton.codec import merge
from trt_spec.triton.pbtxt import ModelConfig
from trt_spec.triton.server import installation as installations
from trt_spec.triton.server.installation import free_ports
from trt_spec.triton.server.server import TritonServer, processes

# The smallest model that loads, for tests of the server and not of the engine.
IDLE_MODEL = """
import os, time
class TritonPythonModel:
    def initialize(self, args):
        {initialize}
    def execute(self, requests):
        os._exit(1)
"""


def idle_repository(root: Path, initialize: str = "pass") -> Path:
    """A repository of one model; a request makes its process die."""
    directory = root / "repo" / "idle"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(IDLE_MODEL.format(initialize=initialize))
    tensor = pbtxt.Tensor("x", "INT32", (1,))
    (directory / "config.pbtxt").write_text(pbtxt.dumps(ModelConfig("idle", "python", (tensor,), (tensor,))))
    return root / "repo"


def make_server(repository: Path, **options) -> TritonServer:
    http_port, grpc_port, metrics_port = free_ports(3)
    ports = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
    return TritonServer(repository, **{**ports, "drain_timeout_s": 1, **options})


class Traces:
    """What a server would leave behind: its processes and its shared memory. Other servers may run on this machine."""

    def __init__(self) -> None:
        self.stubs: set[processes.Stub] = set()

    def note(self, pid: int | None) -> None:
        """Remembers the processes that a server has now."""
        self.stubs |= set(processes.stubs_of(pid)) if pid is not None else set()

    def assert_gone(self) -> None:
        """Fails where any of them is still there, after a moment."""
        assert self.stubs, "nothing was noted, so nothing was checked"
        for stub in self.stubs:
            assert gone(stub.pid)
            assert stub.region
            assert not (processes.SHARED_MEMORY / stub.region).exists()


def gone(pid: int) -> bool:
    deadline = time.monotonic() + WAIT_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not Path(f"/proc/{pid}").exists()


@pytest.fixture
def traces():
    return Traces()


# --- refused before anything starts ---


def test_no_repository_is_one_clear_error(tmp_path):
    with pytest.raises(MachineError, match="no model repository here") as caught:
        TritonServer(tmp_path).start()
    assert "trt-spec emit" in caught.value.remedy


def test_a_missing_tritonserver_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(installations.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match="no tritonserver here"):
        TritonServer(idle_repository(tmp_path)).start()
    assert [path.name for path in tmp_path.iterdir()] == ["repo"]


@pytest.mark.parametrize("which", ["http_port", "grpc_port", "metrics_port"])
def test_a_port_in_use_names_its_key(tmp_path, installation, which):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = make_server(idle_repository(tmp_path), installation=installation, **{which: listener.getsockname()[1]})
        with pytest.raises(MachineError, match="is in use") as caught:
            server.start()
    assert caught.value.where == f"serve.{which}"
    assert server.pid is None
    assert [path.name for path in tmp_path.iterdir()] == ["repo"]


def test_a_log_that_cannot_be_written_is_one_clear_error(tmp_path, installation):
    (tmp_path / "file").write_text("")
    server = make_server(idle_repository(tmp_path), installation=installation, log_path=tmp_path / "file" / "log")
    with pytest.raises(MachineError, match="log cannot be written"):
        server.start()


# --- a real server ---


@pytest.mark.server
def test_a_model_that_cannot_be_loaded_shows_why(tmp_path, installation, traces):
    server = make_server(
        idle_repository(tmp_path, "raise ValueError('the weights are\\n  gone')"), installation=installation
    )
    with pytest.raises(MachineError, match="before it was ready") as caught:
        server.start(on_wait=lambda seconds, last: traces.note(server.pid))
    text = str(caught.value)
    assert "the weights are" in text
    assert "gone" in text
    assert str(server.log_path) in text
    traces.assert_gone()


@pytest.mark.server
def test_a_model_that_an_earlier_version_emitted_says_what_to_do(tmp_path, installation):
    repository = idle_repository(tmp_path)
    older = Path(__file__).parents[1] / "data" / "models_with_classes" / "streaming.txt"
    (repository / "idle" / "1" / "model.py").write_text(older.read_text())
    with pytest.raises(MachineError, match="before it was ready") as caught:
        make_server(repository, installation=installation).start()
    assert "emitted by another version of trt_spec" in str(caught.value)
    assert "trt-spec emit" in str(caught.value)


@pytest.mark.server
def test_two_servers_of_one_repository_have_a_log_each(tmp_path, installation):
    repository = idle_repository(tmp_path)
    with make_server(repository, installation=installation) as first:
        assert first.log_path == tmp_path / "repo.log"
        before = first.log_path.read_bytes()
        with make_server(repository, installation=installation) as second:
            assert second.log_path == tmp_path / f"repo.{second.http_port}.log"
            assert b"idle" in second.log_path.read_bytes()
            assert first.log_path.read_bytes().startswith(before)
    with make_server(repository, installation=installation) as third:  # the lock went with the server
        assert third.log_path == tmp_path / "repo.log"
        assert not third.log_path.read_bytes().startswith(before)


@pytest.mark.server
def test_a_model_that_loads_for_ever_runs_into_the_timeout(tmp_path, installation, traces):
    server = make_server(idle_repository(tmp_path, "time.sleep(600)"), installation=installation, ready_timeout_s=1.5)
    words = []

    def on_wait(seconds, last):
        words.append(last)
        traces.note(server.pid)

    with pytest.raises(MachineError, match=r"not ready within 1\.5 s") as caught:
        server.start(on_wait)
    assert any("idle" in word for word in words)
    assert "loading: idle:1" in str(caught.value)
    traces.assert_gone()


@pytest.mark.server
def test_a_dead_model_process_is_noticed_though_the_model_stays_ready(tmp_path, installation, traces):
    with make_server(idle_repository(tmp_path), installation=installation) as server:
        server.check()
        traces.note(server.pid)
        (stub,) = traces.stubs
        os.kill(stub.pid, signal.SIGKILL)
        with pytest.raises(MachineError, match="the Python process of model idle died"):
            server.wait(threading.Event(), period_s=0.1)
        url = f"http://{server.http_url}/v2/models/idle/ready"
        assert urllib.request.urlopen(url, timeout=WAIT_S).status == 200  # which is why we look for ourselves
        with pytest.raises(MachineError, match="running already"):
            server.start()
    traces.assert_gone()
    with pytest.raises(MachineError, match="not running"):
        server.check()
    server.stop()


@pytest.mark.server
def test_a_dead_server_is_noticed_and_leaves_nothing(tmp_path, installation, traces):
    with make_server(idle_repository(tmp_path), installation=installation) as server:
        traces.note(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(MachineError, match="ended by SIGKILL"):
            server.wait(threading.Event(), period_s=0.1)
    traces.assert_gone()


RUN_SERVER = """
import sys
from pathlib import Path
from trt_spec.triton.server.server import TritonServer
http, grpc, metrics = map(int, sys.argv[2:5])
with TritonServer(Path(sys.argv[1]), http_port=http, grpc_port=grpc, metrics_port=metrics, drain_timeout_s=1) as server:
    print(server.pid, flush=True)
    print(server.run_until_signal(), flush=True)
"""


@pytest.fixture
def foreground(tmp_path, installation):
    """A process of its own that runs a server, as `trt-spec serve` does; with the server's process id."""
    arguments = [idle_repository(tmp_path), *map(str, free_ports(3))]
    with subprocess.Popen([sys.executable, "-c", RUN_SERVER, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def catches(pid: int, number: signal.Signals) -> bool:
    (mask,) = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line]
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_server_in_order(foreground, traces, number):
    process, server_pid = foreground
    traces.note(server_pid)
    until(lambda: catches(process.pid, signal.SIGTERM))  # the handler that is installed last
    process.send_signal(number)
    assert process.stdout.readline() == f"{number.name}\n"
    assert process.wait(WAIT_S) == 0
    assert gone(server_pid)
    traces.assert_gone()


@pytest.mark.server
def test_a_second_signal_ends_the_patience_and_leaves_nothing(foreground, traces):
    process, server_pid = foreground
    traces.note(server_pid)
    until(lambda: catches(process.pid, signal.SIGTERM))
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "SIGTERM\n"
    time.sleep(0.2)  # into `stop`
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 0
    assert not Path(f"/proc/{server_pid}").exists()
    traces.assert_gone()


@pytest.mark.server
def test_a_server_does_not_outlive_the_process_that_started_it(foreground):
    process, server_pid = foreground
    stubs = processes.stubs_of(server_pid)
    process.kill()
    assert gone(server_pid)
    assert all(gone(stub.pid) for stub in stubs)


@pytest.mark.server
def test_a_repository_that_does_not_fit_its_engine_is_refused(built, tmp_path, installation):
    repository = tmp_path / "repo"
    shutil.copytree(built.repository, repository)
    path = repository / "tensorrt_llm" / "config.pbtxt"
    path.write_text(path.read_text().replace('string_value: "4"', 'string_value: "5"'))
    server = make_server(repository, installation=installation)
    with pytest.raises(MachineError, match="before it was ready") as caught:
        server.start()
    assert "max_draft_len: the repository says 5, found 4" in str(caught.value)


@pytest.mark.server
def test_stopping_lets_requests_in_flight_finish(built, installation):
    """Streams, whole answers, those of inflight_batcher, and requests that still wait for a slot: all accepted."""
    params = {"max_tokens": 300, "ignore_eos": True, "speculation": False}
    with (
        ThreadPoolExecutor(16) as pool,
        make_server(built.repository, installation=installation, drain_timeout_s=WAIT_S) as server,
    ):
        client = TritonClient(server.http_url, server.grpc_url, timeout_s=WAIT_S)
        deltas = client.stream("the cat", **params)
        next(deltas)
        answers = [pool.submit(client.infer, "the cat", **params) for _ in range(4)]
        answers += [pool.submit(client.generate, "the cat", **params) for _ in range(4)]
        older = {"text_input": "the cat", "max_tokens": 300, "end_id": -1, "num_draft_tokens": 0}
        texts = [pool.submit(older_text, server, model, older) for model in ("ensemble", "tensorrt_llm_bls")]
        until(lambda: in_flight(server) == 11)  # more than there are slots
        server.stop()
    done = [merge(list(deltas)), *(answer.result(WAIT_S) for answer in answers)]
    assert [chunk.completion.finish_reason for chunk in done] == ["length"] * 9
    assert [chunk.completion.num_output_tokens for chunk in done[1:]] == [300] * 8
    assert [text.result(WAIT_S) for text in texts] == [done[1].text] * 2


def older_text(server, model, body):
    request = urllib.request.Request(f"http://{server.http_url}/v2/models/{model}/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        return json.load(response)["text_output"]


def in_flight(server):
    """How many requests the engine has taken and not finished."""
    with urllib.request.urlopen(server.metrics_url, timeout=WAIT_S) as response:
        lines = response.read().decode().splitlines()
    names = ("trt_spec_num_requests_running", "trt_spec_num_requests_waiting")
    return sum(float(line.split()[-1]) for line in lines if line.startswith(names))
