"""The engine's end of rpc: who is let in, what is told to whom, and who hears of it when one goes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.triton.rpc.ends import FACTS, Engine, hang_up
from tests.triton.test_codec import completion
from tests.waiting import WAIT_S, until
from trt_spec.errors import MachineError, OverloadedError, RequestError, TrtSpecError
from trt_spec.runtime.request import Chunk, Request
from trt_spec.triton.rpc import server as rpc_server
from trt_spec.triton.rpc.server import EngineServer, socket_path


@pytest.mark.parametrize("refusal", [OverloadedError("full", remedy="retry"), ValueError("odd")])
def test_what_the_worker_refuses_is_told_for_every_request(server, engine, remote, refusal):
    engine.refusal = refusal
    chunks = []
    remote.submit_all([Request("1", (5,)), Request("2", (5,))], chunks.append)
    until(lambda: len(chunks) == 2)
    assert remote.drain(0)
    assert {chunk.request_id for chunk in chunks} == {"1", "2"}
    kind = OverloadedError if isinstance(refusal, OverloadedError) else TrtSpecError
    assert [type(chunk.error) for chunk in chunks] == [kind] * 2
    assert all(str(refusal).splitlines()[0] in str(chunk.error) for chunk in chunks)


def test_cancel_count_and_stop(server, engine, remote):
    remote.submit_all([Request("1", (5,))], lambda chunk: None)
    remote.cancel("1")
    remote.count_request("eos")
    remote.stop("known")
    with pytest.raises(RequestError, match="no request in flight"):
        remote.stop("unknown")
    assert engine.stopped == ["known", "unknown"]
    assert engine.counted == ["eos"]
    assert engine.cancelled == list(engine.requests)


def test_a_dead_client_is_told_of_and_its_requests_are_cancelled(server, engine, remote):
    remote.submit_all([Request("1", (5,)), Request("2", (5,))], lambda chunk: None)
    until(lambda: len(engine.requests) == 2)
    hang_up(remote)
    until(lambda: engine.num_lost == 1)
    assert sorted(engine.cancelled) == sorted(engine.requests)


def test_a_client_that_does_not_read_does_not_hold_up_the_engine(server, address, engine):
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.connect(str(address))
        until(lambda: server._sessions)
        chunks = [Chunk("x/1", "a" * 1000, [number]) for number in range(1000)]
        telling = threading.Thread(target=lambda: [server._sessions[0]._tell(chunk) for chunk in chunks], daemon=True)
        telling.start()
        until(lambda: not telling.is_alive())


def test_the_sockets_are_for_their_user_and_server_alone(address, monkeypatch):
    assert address.parent.stat().st_mode & 0o777 == 0o700
    assert socket_path("/repository/other", "m") == address  # another model of the repository
    assert socket_path("/elsewhere/model", "m") != address
    assert socket_path("/repository/model", "n") != address
    monkeypatch.setattr(rpc_server.os, "getppid", lambda: 1)
    assert socket_path("/repository/model", "m") != address
    address.parent.chmod(0o755)
    with pytest.raises(MachineError, match="entered by others"):
        socket_path("/repository/model", "m")


def test_a_socket_that_a_killed_server_left_is_no_obstacle(address, engine):
    code = f"import socket; socket.socket(socket.AF_UNIX).bind({str(address)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert address.exists()
    server = EngineServer(address, engine, FACTS, engine)
    server.close()
    assert not address.exists()


def test_a_new_engine_takes_the_address_over_and_the_old_one_leaves_it_alone(address, server, engine, remote):
    """As Triton reloads a model: the new one is loaded before the old one is unloaded."""
    chunks, old = [], engine
    remote.submit_all([Request("1", (5,))], chunks.append)
    until(lambda: old.requests)
    new = Engine()
    again = EngineServer(address, new, FACTS, new)
    draining = threading.Thread(target=server.drain)
    draining.start()
    until(lambda: remote._current is not None and len(remote._connections) == 2)
    remote.submit_all([Request("2", (6,))], chunks.append)
    until(lambda: new.requests)
    assert draining.is_alive()  # it waits for what it took
    [(name, (_, on_chunk))] = old.requests.items()
    on_chunk(Chunk(name, "a", [1]))
    remote.cancel("1")
    until(lambda: old.cancelled == [name])
    on_chunk(Chunk(name, completion=completion()))
    draining.join(WAIT_S)
    assert not draining.is_alive()
    server.close()
    assert address.exists()
    assert [chunk.request_id for chunk in chunks] == ["1", "1"]
    [(name, (_, on_chunk))] = new.requests.items()
    on_chunk(Chunk(name, completion=completion()))
    until(lambda: remote.drain(0))
    assert (old.num_lost, new.num_lost, new.cancelled, remote.failure) == (0, 0, [], None)
    again.close()
    assert not address.exists()


def test_a_draining_engine_does_not_wait_for_a_client_that_waits_for_nothing(address, server, monkeypatch):
    monkeypatch.setattr(rpc_server, "ANSWER_S", 0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(address))
        until(lambda: server._sessions)
        server.drain()
        server.close()


def test_who_only_tries_whether_somebody_listens_is_not_missed(address, server, engine):
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(address))
    until(lambda: server._sessions and not server._sessions[0].is_alive)
    assert engine.num_lost == 0


def test_an_engine_that_fails_at_a_message_does_not_lose_the_client(server, engine, remote):
    def refuse(request_id):
        raise RuntimeError("Event loop is closed")  # as a worker that was closed

    engine.cancel = refuse
    remote.submit_all([Request("1", (5,))], print)
    remote.cancel("1")
    remote.count_request("eos")
    until(lambda: engine.counted)
    assert "Event loop is closed" in str(engine.logged[0])
    assert engine.num_lost == 0


def test_no_tmpdir_is_needed(monkeypatch):
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, f"/nowhere/{'long' * 30}")
    address = socket_path("/repository/model", "m")
    server = EngineServer(address, Engine(), FACTS, Engine())
    server.close()


def test_what_killed_servers_left_is_removed_and_what_others_use_is_not(address, server, engine):
    old = address.with_name("old")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(old))
    used = time.time() - 2 * rpc_server.ABANDONED_S
    os.utime(address, (used, used))
    EngineServer(address.with_name("another"), engine, FACTS, engine).close()
    assert old.exists()  # it may be about to listen
    os.utime(old, (used, used))
    EngineServer(address.with_name("another"), engine, FACTS, engine).close()
    assert (old.exists(), address.exists()) == (False, True)


def test_a_socket_that_cannot_be_made_is_one_clear_error(address, engine):
    with pytest.raises(MachineError, match="cannot be made") as caught:
        EngineServer(address.with_name("x" * 120), engine, FACTS, engine)
    assert "x" * 120 in str(caught.value)


def test_an_answer_that_cannot_be_sent_is_an_error_of_its_own_request(server, engine, remote):
    chunks = []
    remote.submit_all([Request("1", (5,)), Request("2", (5,))], chunks.append)
    until(lambda: len(engine.requests) == 2)
    (first, (_, on_chunk)), (second, _) = engine.requests.items()
    on_chunk(Chunk(first, error=MachineError("odd", got=lambda: None)))
    on_chunk(Chunk(second, completion=completion()))
    until(lambda: remote.drain(0) and len(chunks) == 2)
    told = {chunk.request_id: chunk.error for chunk in chunks}
    assert "could not be sent" in str(told["1"])
    assert told["2"] is None
    assert engine.logged
