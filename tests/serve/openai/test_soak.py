"""The front under abuse, on a real tritonserver: what is answered is right, and nothing of it stays behind."""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.triton import abuse
from tests.triton.conftest import LONG, MODEL_NAME
from tests.triton.test_serving import wait_for
from trt_spec.errors import OverloadedError

pytestmark = pytest.mark.server
soak = pytest.mark.soak


@pytest.fixture(scope="module")
def texts(front):
    return {prompt: abuse.ask_front(front.port, prompt) for prompt in abuse.PROMPTS}


@pytest.fixture(autouse=True)
def next_is_right(server, front, texts):
    wait_for(server, running=0)
    yield
    wait_for(server, running=0)
    assert abuse.ask_front(front.port, abuse.PROMPTS[0]) == texts[abuse.PROMPTS[0]]
    server.check()


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=soak)])
def test_sixteen_clients(front, texts, seconds):
    until, outcomes = time.monotonic() + seconds, []

    def one_client(seed):
        rng = random.Random(seed)
        while time.monotonic() < until or outcomes.count(True) <= 5 * seconds:
            prompt = rng.choice(abuse.PROMPTS)
            try:
                outcomes.append(abuse.ask_front(front.port, prompt) == texts[prompt])
            except OverloadedError:
                outcomes.append("refused")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one_client, range(16)))
    assert set(outcomes) <= {True, "refused"}
    assert outcomes.count(True) > 5 * seconds


@pytest.mark.parametrize("number", [15, pytest.param(200, marks=soak)])
def test_clients_that_leave_at_any_moment(front, server, number):
    rng = random.Random(1)
    for _ in range(number):
        body = json.dumps({"model": MODEL_NAME, "prompt": "to be left", "stream": rng.random() < 0.5, **LONG}).encode()
        sent = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        with socket.create_connection((front.host, front.port)) as raw:
            if rng.random() < 0.5:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing sends a reset
            raw.sendall(sent[: rng.choice((1, 30, len(sent) - 1, len(sent), len(sent)))])
            time.sleep(rng.uniform(0, 0.03))
    wait_for(server, running=0)


@pytest.mark.parametrize("number", [50, pytest.param(1000, marks=soak)])
def test_calls_one_after_the_other_leave_nothing_open(front, number):
    def send(count):
        for index in range(count):
            abuse.ask_front(front.port, abuse.PROMPTS[index % len(abuse.PROMPTS)], max_tokens=3)
        gc.collect()
        time.sleep(0.2)

    send(20)
    before, memory = len(os.listdir("/proc/self/fd")), abuse.memory_mib(os.getpid())
    send(number)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert abuse.memory_mib(os.getpid()) - memory < 8 + number / 250  # MiB
