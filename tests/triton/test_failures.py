"""A served engine that fails, and a model process that dies: all are told, and the server is not ready any more."""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.triton.conftest import LONG
from tests.triton.test_server import make_server
from tests.waiting import WAIT_S, until
from trt_spec.clients.triton import TritonClient
from trt_spec.errors import MachineError
from trt_spec.triton.server import processes

pytestmark = pytest.mark.server
# Appended to the emitted model: a request of 13 tokens breaks the engine.
BREAK = """
from trt_spec.runtime.engine import Engine
_step = Engine.step
def _broken_step(self):
    if any(sequence.request.params.max_tokens == 13 for sequence in self.scheduler.running):
        raise RuntimeError("CUDA error: unspecified launch failure")
    return _step(self)
Engine.step = _broken_step
"""


@pytest.fixture
def server(built, tmp_path, installation):
    """A server that nobody watches."""
    repository = tmp_path / "repo"
    shutil.copytree(built.repository, repository)
    model = repository / "tensorrt_llm" / "1" / "model.py"
    model.write_text(model.read_text() + BREAK)
    with make_server(repository, installation=installation) as running:
        yield running


def test_an_engine_that_fails_tells_everyone_and_is_not_ready(server):
    client = TritonClient(server.http_url, server.grpc_url, timeout_s=2 * WAIT_S)
    assert client.is_ready()
    assert client.generate("a", max_tokens=2, ignore_eos=True).completion.num_output_tokens == 2
    with ThreadPoolExecutor(2) as pool:
        streams = [client.stream("a", **LONG), client.generate_stream("a", **LONG)]
        for stream in streams:
            next(stream)
        rests = [pool.submit(list, stream) for stream in streams]
        with pytest.raises(MachineError, match="the engine has failed"):
            client.infer("a", max_tokens=13)
        for rest in rests:
            with pytest.raises(MachineError, match="the engine has failed"):
                rest.result(WAIT_S)
    assert not client.is_ready()
    until(lambda: server._get(f"http://{server.http_url}/v2/health/ready") is None)
    with pytest.raises(MachineError) as caught:
        server.check()
    assert "the engine has failed: RuntimeError: CUDA error: unspecified launch failure" in str(caught.value)


def test_a_dead_model_process_ends_the_readiness(server):
    (pid,) = [stub.pid for stub in processes.stubs_of(server.pid) if stub.model == "tensorrt_llm"]
    client = TritonClient(server.http_url, server.grpc_url, timeout_s=2 * WAIT_S)
    deltas = client.stream("a", **LONG)
    next(deltas)
    os.kill(pid, signal.SIGKILL)
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, deltas)
        with pytest.raises(MachineError):
            rest.result(WAIT_S)
    until(lambda: server._get(f"http://{server.http_url}/v2/health/ready") is None)
