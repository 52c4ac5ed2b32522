"""Stand-ins for both ends of rpc."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import WAIT_S
from trt_spec.errors import RequestError
from trt_spec.runtime.admission import EngineLimits
from trt_spec.triton.rpc import client as rpc_client
from trt_spec.triton.rpc import server as rpc_server
from trt_spec.triton.rpc.server import EngineFacts, socket_path

FACTS = EngineFacts(EngineLimits(max_batch_size=2, max_queue_size=4), has_tokenizer=True)


@dataclass
class Engine:
    """A worker and a host that do what the test says, and note what they were told."""

    requests: dict = field(default_factory=dict)
    cancelled: list = field(default_factory=list)
    counted: list = field(default_factory=list)
    stopped: list = field(default_factory=list)
    logged: list = field(default_factory=list)
    num_lost: int = 0
    refusal: Exception | None = None

    def submit_all(self, requests, on_chunk):
        if self.refusal is not None:
            raise self.refusal
        self.requests |= {request.request_id: (request, on_chunk) for request in requests}

    def cancel(self, request_id):
        self.cancelled.append(request_id)

    def stop(self, client_id):
        self.stopped.append(client_id)
        if client_id != "known":
            raise RequestError("no request in flight has this id", got=client_id)

    def wake(self):
        pass

    def count(self, outcome):
        self.counted.append(outcome)

    def lost(self):
        self.num_lost += 1

    def log(self, error):
        self.logged.append(error)


def hang_up(worker):
    """What the kernel does for a process that dies."""
    with socket.fromfd(worker._current.socket.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def place_for_sockets(monkeypatch) -> Iterator[Path]:
    """The address of model m's engine, in a directory of its own; a socket's name is 107 bytes at most.

    Requests wait for an engine as long as a test may wait for anything.
    """
    monkeypatch.setattr(rpc_client, "CONNECT_S", WAIT_S)
    with tempfile.TemporaryDirectory(dir=rpc_server.SHARED_MEMORY) as root:
        monkeypatch.setattr(rpc_server, "SHARED_MEMORY", Path(root))
        yield socket_path("/repository/model", "m")
