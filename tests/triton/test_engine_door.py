"""The way to an engine in another process: what is lost, what is not, and who is told, when either end goes."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import pytest

from tests.triton.test_codec import completion
from trt_spec.errors import MachineError, OverloadedError, RequestError
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.request import Chunk, Request
from trt_spec.triton import engine_door
from trt_spec.triton.engine_door import EngineDoor, EngineFacts, RemoteWorker, door_address

FACTS = EngineFacts(EngineLimits(max_batch_size=2, max_queue_size=4), has_tokenizer=True)


@dataclass
class Engine:
    """A worker and a host that do what the test says, and note what they were told."""

    requests: dict = field(default_factory=dict)
    cancelled: list = field(default_factory=list)
    counted: list = field(default_factory=list)
    stopped: list = field(default_factory=list)
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


def until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def address(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_door.tempfile, "gettempdir", lambda: str(tmp_path))
    return door_address("/repository/model", "m")


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def door(address, engine):
    door = EngineDoor(address, engine, FACTS, engine)
    yield door
    if not door.is_closing:
        door.close()


@pytest.fixture
def remote(address):
    worker = RemoteWorker(address, "m")
    yield worker
    worker.close()


def hang_up(worker):
    """What the kernel does for a process that dies."""
    with socket.fromfd(worker._connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def test_an_engine_that_is_loaded_later_is_found(address, engine, remote):
    found = []
    thread = threading.Thread(target=lambda: found.append(remote.engine))
    thread.start()
    time.sleep(0.05)
    door = EngineDoor(address, engine, FACTS, engine)
    thread.join(5)
    assert found == [FACTS]
    door.close()


def test_without_an_engine_requests_are_refused(remote, monkeypatch):
    monkeypatch.setattr(engine_door, "CONNECT_S", 0.05)
    with pytest.raises(MachineError, match="model m, which holds the engine, is not loaded"):
        remote.submit_all([Request("1", (5,))], print)


def test_chunks_arrive_whole_and_in_order_under_their_own_ids_from_several_models(door, address, engine, remote):
    other = RemoteWorker(address, "m")
    chunks = {"one": [], "two": []}
    requests = [Request("7", (1, 2), max_draft_len=3), Request("8", (3,))]
    remote.submit_all(requests, chunks["one"].append)
    other.submit_all([Request("7", (9,))], chunks["two"].append)
    until(lambda: len(engine.requests) == 3)
    assert sorted(request.input_ids for request, _ in engine.requests.values()) == [(1, 2), (3,), (9,)]
    for name, (request, on_chunk) in engine.requests.items():
        for number in range(50):
            on_chunk(Chunk(name, f"{number}", [number], [-0.5], token_origins=[1]))
        on_chunk(Chunk(name, completion=completion(num_output_tokens=request.input_ids[0])))
    until(lambda: remote.drain(0) and other.drain(0))
    for ids, prompt, found in (("7", 1, "one"), ("8", 3, "one"), ("7", 9, "two")):
        mine = [chunk for chunk in chunks[found] if chunk.request_id == ids]
        assert [chunk.token_ids for chunk in mine] == [*([number] for number in range(50)), []]
        assert mine[3] == Chunk(ids, "3", [3], [-0.5], token_origins=[1])
        assert mine[-1].completion.num_output_tokens == prompt
    other.close()
    assert engine.num_lost == 0


@pytest.mark.parametrize("refusal", [OverloadedError("full", remedy="retry"), ValueError("odd")])
def test_what_the_worker_refuses_is_told_for_every_request(door, engine, remote, refusal):
    engine.refusal = refusal
    chunks = []
    remote.submit_all([Request("1", (5,)), Request("2", (5,))], chunks.append)
    until(lambda: len(chunks) == 2)
    assert remote.drain(0)
    assert {chunk.request_id for chunk in chunks} == {"1", "2"}
    kind = OverloadedError if isinstance(refusal, OverloadedError) else Exception
    assert all(
        (isinstance(chunk.error, kind) and "full" in str(chunk.error)) or "odd" in str(chunk.error) for chunk in chunks
    )


def test_cancel_count_and_stop(door, engine, remote):
    remote.submit_all([Request("1", (5,))], lambda chunk: None)
    remote.cancel("1")
    remote.count_request("eos")
    remote.stop("known")
    with pytest.raises(RequestError, match="no request in flight"):
        remote.stop("unknown")
    assert engine.stopped == ["known", "unknown"]
    assert engine.counted == ["eos"]
    assert engine.cancelled == list(engine.requests)


def test_a_goodbye_of_the_engine_ends_what_runs_and_another_engine_is_found(door, address, engine, remote):
    chunks = []
    remote.submit_all([Request("1", (5,))], chunks.append)
    until(lambda: engine.requests)
    door.close()
    until(lambda: chunks)
    assert "went away" in str(chunks[0].error)
    assert remote.failure is None
    again = EngineDoor(address, engine, FACTS, engine)
    assert remote.engine == FACTS
    again.close()
    assert engine.num_lost == 0


def test_a_dead_engine_is_a_failure_that_everybody_hears_of(door, engine, remote):
    chunks = []
    remote.submit_all([Request("1", (5,))], chunks.append)
    until(lambda: engine.requests)
    hang_up(remote)
    until(lambda: chunks)
    assert "process of model m died" in str(chunks[0].error)
    assert "process of model m died" in str(remote.failure)
    with pytest.raises(MachineError, match="died"):
        remote.submit_all([Request("2", (5,))], chunks.append)


def test_a_dead_caller_is_told_of_and_its_requests_are_cancelled(door, engine, remote):
    remote.submit_all([Request("1", (5,)), Request("2", (5,))], lambda chunk: None)
    until(lambda: len(engine.requests) == 2)
    hang_up(remote)
    until(lambda: engine.num_lost == 1)
    assert sorted(engine.cancelled) == sorted(engine.requests)


def test_a_caller_that_does_not_read_does_not_hold_up_the_engine(door, address, engine):
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.connect(str(address))
        until(lambda: door._callers)
        started = time.monotonic()
        for number in range(1000):
            door._callers[0]._tell(Chunk("x/1", "a" * 1000, [number]))
        assert time.monotonic() - started < 2


def test_the_sockets_are_for_their_user_and_server_alone(address, tmp_path, monkeypatch):
    assert address.parent.stat().st_mode & 0o777 == 0o700
    assert door_address("/repository/other", "m") == address  # another model of the repository
    assert door_address("/elsewhere/model", "m") != address
    assert door_address("/repository/model", "n") != address
    monkeypatch.setattr(engine_door.os, "getppid", lambda: 1)
    assert door_address("/repository/model", "m") != address
    address.parent.chmod(0o755)
    with pytest.raises(MachineError, match="entered by others"):
        door_address("/repository/model", "m")


def test_a_socket_that_a_killed_server_left_is_no_obstacle(address, engine):
    code = f"import socket; socket.socket(socket.AF_UNIX).bind({str(address)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert address.exists()
    door = EngineDoor(address, engine, FACTS, engine)
    door.close()
    assert not address.exists()
