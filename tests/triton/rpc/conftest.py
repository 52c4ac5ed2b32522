"""An engine that the tests drive, served over rpc, and a worker of another model."""

from __future__ import annotations

import pytest

from tests.triton.rpc.ends import FACTS, Engine, place_for_sockets
from trt_spec.triton.rpc.client import RemoteWorker
from trt_spec.triton.rpc.server import EngineServer


@pytest.fixture
def address(monkeypatch):
    with place_for_sockets(monkeypatch) as found:
        yield found


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def server(address, engine):
    server = EngineServer(address, engine, FACTS, engine)
    yield server
    server.close()


@pytest.fixture
def remote(address):
    worker = RemoteWorker(address, "m")
    yield worker
    worker.close()
