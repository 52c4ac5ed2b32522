"""The way to an engine in another process: what is lost, what is not, and who is told, when the engine goes."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.triton.rpc.ends import FACTS, Engine, hang_up
from tests.triton.test_codec import completion
from tests.waiting import WAIT_S, until
from trt_spec.errors import MachineError
from trt_spec.runtime.request import Chunk, Request
from trt_spec.triton.rpc import client as rpc_client
from trt_spec.triton.rpc import server as rpc_server
from trt_spec.triton.rpc.client import RemoteWorker
from trt_spec.triton.rpc.server import EngineServer


def test_an_engine_that_is_loaded_later_is_found(address, engine, remote):
    found = []
    thread = threading.Thread(target=lambda: found.append(remote.engine))
    thread.start()
    time.sleep(0.05)
    server = EngineServer(address, engine, FACTS, engine)
    thread.join(WAIT_S)
    assert found == [FACTS]
    server.close()


def test_without_an_engine_requests_are_refused(remote, monkeypatch):
    monkeypatch.setattr(rpc_client, "CONNECT_S", 0.05)
    with pytest.raises(MachineError, match="model m, which holds the engine, is not loaded"):
        remote.submit_all([Request("1", (5,))], print)


def test_chunks_arrive_whole_and_in_order_under_their_own_ids_from_several_models(server, address, engine, remote):
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


def test_an_engine_that_closes_ends_what_runs_and_another_engine_is_found(server, address, engine, remote):
    chunks = []
    remote.submit_all([Request("1", (5,))], chunks.append)
    until(lambda: engine.requests)
    server.close()
    until(lambda: chunks)
    assert "went away" in str(chunks[0].error)
    assert remote.failure is None
    again = EngineServer(address, engine, FACTS, engine)
    assert remote.engine == FACTS
    again.close()
    assert engine.num_lost == 0


def test_a_dead_engine_is_a_failure_that_everybody_hears_of(server, engine, remote):
    chunks = []
    remote.submit_all([Request("1", (5,))], chunks.append)
    until(lambda: engine.requests)
    hang_up(remote)
    until(lambda: chunks)
    assert "process of model m died" in str(chunks[0].error)
    assert "process of model m died" in str(remote.failure)
    with pytest.raises(MachineError, match="died"):
        remote.submit_all([Request("2", (5,))], chunks.append)


def test_all_wait_for_an_engine_together_and_not_one_after_the_other(remote, monkeypatch):
    monkeypatch.setattr(rpc_client, "CONNECT_S", 1.0)
    for number in range(5):
        if number == 1:
            started = time.monotonic()
        with pytest.raises(MachineError, match="not loaded"):
            remote.submit_all([Request(f"{number}", (5,))], print)
    assert time.monotonic() - started < 4 * rpc_client.CONNECT_S  # each of the four looks twice, within 0.1 s


def test_an_engine_that_dies_while_nothing_runs_is_told_of(address, server):
    failed = threading.Event()
    worker = RemoteWorker(address, "m", failed.set)
    until(lambda: worker._current)
    hang_up(worker)
    assert failed.wait(WAIT_S)
    assert "process of model m died" in str(worker.failure)
    worker.close()


def test_a_server_that_closes_before_it_said_anything_is_no_death(address, engine):
    with socket.socket(socket.AF_UNIX) as closing:
        closing.bind(str(address))
        closing.listen(1)
        worker = RemoteWorker(address, "m")
        closing.accept()[0].close()
    address.unlink()
    server = EngineServer(address, engine, FACTS, engine)
    assert worker.engine == FACTS
    assert worker.failure is None
    worker.close()
    server.close()


def test_a_request_for_an_engine_that_has_just_gone_goes_to_the_next_one(address, server, remote):
    until(lambda: remote._current)
    old = remote._current
    server.drain()
    connection, new = remote._connection, Engine()
    found = [old]
    remote._connection = lambda: found.pop() if found else connection()  # it looked a moment before the engine went
    again = EngineServer(address, new, FACTS, new)
    remote.submit_all([Request("1", (5,))], print)
    until(lambda: new.requests)
    again.close()


def test_nothing_is_left_of_connections_and_requests(address, engine, remote):
    threads = threading.active_count()
    for _ in range(10):
        server = EngineServer(address, engine, FACTS, engine)
        chunks = []
        remote.submit_all([Request("1", (5,))], chunks.append)
        until(lambda: engine.requests)
        [(name, (_, on_chunk))] = engine.requests.items()
        on_chunk(Chunk(name, completion=completion()))
        until(lambda chunks=chunks: chunks)
        assert all(not session.running for session in server._sessions)
        engine.requests.clear()
        server.drain()
        server.close()
    until(lambda: not remote._connections and threading.active_count() <= threads)


def test_an_engine_that_comes_after_a_long_time_is_found_by_the_next_request(address, engine, remote):
    remote._alone_since -= 2 * rpc_client.CONNECT_S
    for _ in range(5):
        with pytest.raises(MachineError, match="not loaded"):
            remote.submit_all([Request("1", (5,))], print)
        server = EngineServer(address, engine, FACTS, engine)
        remote.submit_all([Request("1", (5,))], print)
        until(lambda: engine.requests)
        engine.requests.clear()
        server.close()
        until(lambda: not remote._connections)
        remote._alone_since -= 2 * rpc_client.CONNECT_S


def test_a_connection_to_a_draining_engine_takes_nothing_more(server, engine, remote):
    remote.submit_all([Request("1", (5,))], print)
    until(lambda: engine.requests)
    connection = remote._current
    draining = threading.Thread(target=server.drain)
    draining.start()
    until(lambda: connection.is_draining)
    assert not connection.submit([Request("2", (6,))], print)  # behind its end nobody would read it
    [(name, (_, on_chunk))] = engine.requests.items()
    on_chunk(Chunk(name, completion=completion()))
    draining.join(WAIT_S)
    assert not draining.is_alive()


def test_what_a_draining_engine_no_longer_took_goes_to_the_next_one(address, engine, remote, monkeypatch):
    """A model whose process gets no time to run hears late that the engine goes, and has sent a request meanwhile."""
    monkeypatch.setattr(rpc_server, "ANSWER_S", 0.05)
    server, old, goes_on, chunks = EngineServer(address, engine, FACTS, engine), engine, threading.Event(), []
    remote.submit_all([Request("1", (5,))], lambda chunk: goes_on.wait(WAIT_S))  # holds the connection's thread up
    until(lambda: old.requests)
    [(first, (_, on_chunk))] = old.requests.items()
    on_chunk(Chunk(first, completion=completion()))
    server.drain()
    remote.submit_all([Request("2", (6,)), Request("3", (7,))], chunks.append)
    remote.submit_all([Request("4", (8,))], chunks.append)
    remote.cancel("4")
    until(lambda: old.cancelled)  # read, and what was sent before it
    assert list(old.requests) == [first]
    server.close()
    goes_on.set()
    new = Engine()
    again = EngineServer(address, new, FACTS, new)
    until(lambda: len(new.requests) == 2)
    for name, (_, on_chunk) in new.requests.items():
        on_chunk(Chunk(name, completion=completion()))
    until(lambda: remote.drain(0))
    assert [request.input_ids for request, _ in new.requests.values()] == [(6,), (7,)]
    assert {chunk.request_id: chunk.error is None for chunk in chunks} == {"2": True, "3": True, "4": False}
    again.close()


def test_without_a_next_engine_what_a_draining_one_no_longer_took_is_refused(address, engine, remote, monkeypatch):
    monkeypatch.setattr(rpc_server, "ANSWER_S", 0.05)
    monkeypatch.setattr(rpc_client, "CONNECT_S", 0.2)
    until(lambda: remote._num_attempts)
    server, goes_on, chunks = EngineServer(address, engine, FACTS, engine), threading.Event(), []
    until(lambda: remote._current)
    remote.submit_all([Request("1", (5,))], lambda chunk: goes_on.wait(WAIT_S))
    until(lambda: engine.requests)
    [(first, (_, on_chunk))] = engine.requests.items()
    on_chunk(Chunk(first, completion=completion()))
    server.drain()
    remote.submit_all([Request("2", (6,))], chunks.append)
    server.close()
    goes_on.set()
    until(lambda: chunks)
    assert "is not loaded" in str(chunks[0].error)
    until(lambda: remote.drain(0))
