"""Models that are loaded, unloaded and reloaded one by one while others are asked, on the real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.triton.test_server import in_flight
from tests.waiting import WAIT_S, until
from trt_spec.triton.rpc.client import CONNECT_S
from trt_spec.triton.server.installation import free_ports
from trt_spec.triton.server.server import TritonServer, processes

pytestmark = pytest.mark.server
OTHERS = ("tensorrt_llm_unary", "ensemble", "tensorrt_llm_bls")
LONG = 1500  # tokens, some seconds


class ExplicitServer(TritonServer):
    """A server that loads all models and lets them be loaded and unloaded."""

    def _arguments(self, installation):
        return [*super()._arguments(installation), "--model-control-mode=explicit", "--load-model=*"]


@contextmanager
def explicit_server(built, installation, root):
    copy = root / "triton_repo" / built.repository.name
    shutil.copytree(built.repository, copy)
    http_port, grpc_port, metrics_port = free_ports(3)
    running = ExplicitServer(
        copy,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        log_path=root / "server.log",
        ready_timeout_s=WAIT_S,
        installation=installation,
    )
    with running:
        yield running


@pytest.fixture(scope="module")
def server(built, installation, tmp_path_factory):
    with explicit_server(built, installation, tmp_path_factory.mktemp("explicit")) as running:
        yield running


def post(server, path, body=None):
    """Status and answer; a body that is no JSON is {}."""
    request = urllib.request.Request(f"http://{server.http_url}/v2/{path}", json.dumps(body or {}).encode())
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return response.status, json.loads(response.read() or "{}")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def body(model, num_tokens=5):
    """A request for so many tokens."""
    if model in ("ensemble", "tensorrt_llm_bls"):
        given = {"max_tokens": num_tokens, "bad_words": "", "stop_words": "", "end_id": -1, "num_draft_tokens": 0}
    else:
        given = {"sampling_param_max_tokens": num_tokens, "sampling_param_ignore_eos": True, "speculation": False}
    return {"text_input": "abc", **given}


def ask(server, model, num_tokens=5):
    """The text of one answer."""
    status, answer = post(server, f"models/{model}/generate", body(model, num_tokens))
    assert status == 200, answer
    return answer["text_output"]


def engines(server):
    return [stub for stub in processes.stubs_of(server.pid) if stub.model == "tensorrt_llm"]


@contextmanager
def asked_all_the_time(server, expected, *, may_refuse=False):
    """Short requests to every model without an engine, one after the other; each is answered, or refused by name."""
    is_over, found = threading.Event(), []

    def keep_asking(model):
        while not is_over.is_set():
            status, answer = post(server, f"models/{model}/generate", body(model))
            found.append((status, answer.get("text_output", answer.get("error"))))

    with ThreadPoolExecutor(len(OTHERS)) as pool:
        asking = [pool.submit(keep_asking, model) for model in OTHERS]
        try:
            until(lambda: len(found) > 10)
            yield
            enough = len(found) + 10
            until(lambda: len(found) > enough)
        finally:
            is_over.set()
        for one in asking:
            one.result(WAIT_S)
    others = {one for one in found if one != (200, expected)}
    assert not others or may_refuse, others
    assert all(status == 400 and "is not loaded" in text for status, text in others), others


@contextmanager
def long_answers(server, whole):
    """One long answer of every model without an engine runs while the block does, and comes whole."""
    with ThreadPoolExecutor(len(OTHERS)) as pool:
        running = [pool.submit(ask, server, model, LONG) for model in OTHERS]
        until(lambda: in_flight(server) == len(OTHERS))
        yield
        assert [one.result(WAIT_S) for one in running] == [whole] * len(OTHERS)


def test_the_engines_model_is_reloaded_and_unloaded_under_load_and_no_answer_is_lost(server):
    expected = ask(server, "tensorrt_llm")
    whole = ask(server, "tensorrt_llm_unary", LONG)
    source = server.repository / "tensorrt_llm" / "1" / "model.py"
    with long_answers(server, whole), asked_all_the_time(server, expected):
        source.write_text(source.read_text() + "\n# changed: Triton loads the new one, then unloads the old one\n")
        [old] = engines(server)
        assert post(server, "repository/models/tensorrt_llm/load")[0] == 200
    until(lambda: old not in engines(server))
    # What comes while no engine is loaded waits for one, and is refused where that takes too long.
    with long_answers(server, whole), asked_all_the_time(server, expected, may_refuse=True):
        assert post(server, "repository/models/tensorrt_llm/unload")[0] == 200
        assert post(server, "repository/models/tensorrt_llm/load")[0] == 200
    assert {ask(server, model) for model in ("tensorrt_llm", *OTHERS)} == {expected}


def test_without_the_engines_model_the_others_refuse_and_with_it_they_answer_again(server):
    expected = ask(server, "ensemble")
    assert post(server, "repository/models/tensorrt_llm/unload")[0] == 200
    until(lambda: not engines(server))
    time.sleep(CONNECT_S)
    with ThreadPoolExecutor(4) as pool:
        started = time.monotonic()
        found = list(pool.map(lambda _: post(server, "models/ensemble/generate", {"text_input": "abc"}), range(12)))
    assert time.monotonic() - started < 6 * CONNECT_S  # the model takes one at a time; each would wait so long
    assert all(status == 400 and "is not loaded" in answer["error"] for status, answer in found)
    assert post(server, "models/ensemble/generate", {"text_input": "abc", "ping": True})[0] == 400
    assert post(server, "repository/models/tensorrt_llm/load")[0] == 200
    assert ask(server, "ensemble") == expected
    assert post(server, "repository/models/ensemble/unload")[0] == 200
    assert ask(server, "tensorrt_llm_bls") == expected
    assert post(server, "repository/models/ensemble/load")[0] == 200
    assert ask(server, "ensemble") == expected


@pytest.mark.soak
def test_a_server_whose_engine_dies_while_nobody_asks_ends_by_itself(built, installation, tmp_path):
    with explicit_server(built, installation, tmp_path) as server:
        [engine] = engines(server)
        process = server._process
        os.kill(engine.pid, signal.SIGKILL)
        process.wait(WAIT_S)
