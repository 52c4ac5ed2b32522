"""Clients that misbehave, and what to measure of a server that must not mind; for the soak tests."""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.triton.conftest import LONG, MODEL_NAME
from tests.waiting import WAIT_S
from trt_spec.clients.triton import TritonClient
from trt_spec.errors import MachineError, OverloadedError, RequestError
from trt_spec.runtime.request import Chunk
from trt_spec.triton.codec import merge
from trt_spec.triton.server.server import TritonServer, processes

PROMPTS = tuple(f"prompt {number}" for number in range(8))
PLAIN = {"max_tokens": 30, "ignore_eos": True}
WAYS: dict[str, Callable[..., Chunk]] = {
    "generate": lambda client, *args, **kwargs: client.generate(*args, **kwargs),
    "infer over gRPC": lambda client, *args, **kwargs: client.infer(*args, **kwargs),
    "infer over HTTP": lambda client, *args, **kwargs: client.infer(*args, transport="http", **kwargs),
    "stream": lambda client, *args, **kwargs: merge(list(client.stream(*args, **kwargs))),
    "generate_stream": lambda client, *args, **kwargs: merge(list(client.generate_stream(*args, **kwargs))),
}


def alone(client: TritonClient) -> dict[str, list[int]]:
    """Output ids of each prompt when nothing else runs."""
    return {prompt: client.generate(prompt, **PLAIN).token_ids for prompt in PROMPTS}


@dataclass
class Tally:
    """What became of the requests; `wrong` should stay empty."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def num_requests(self) -> int:
        return sum(self.outcomes.values())


def hammer(
    client: TritonClient, expected: dict[str, list[int]], *, num_clients: int, seconds: float, num_answers: int = 0
) -> Tally:
    """Many clients, each sending one request after the other in every way, until the time is up and enough answered."""
    tally, lock, until = Tally(), threading.Lock(), time.monotonic() + seconds

    def one_client(seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < until or tally.outcomes["answered"] <= num_answers:
            prompt, way = rng.choice(PROMPTS), rng.choice(list(WAYS))
            try:
                got = WAYS[way](client, prompt, **PLAIN)
                outcome = "answered"
            except OverloadedError:
                outcome = "refused"
            with lock:
                tally.outcomes[outcome] += 1
                if outcome == "answered" and got.token_ids != expected[prompt]:
                    tally.wrong.append(f"{way}, {prompt}: {got.token_ids}")

    with ThreadPoolExecutor(num_clients) as pool:
        list(pool.map(one_client, range(num_clients)))
    return tally


def cancel_one(client: TritonClient, rng: random.Random) -> str:
    """One long request that is cancelled after a random number of deltas, or a random time; says how."""
    way, request_id = rng.choice(("stream", "generate_stream", "deadline", "stop", "stop unary")), f"c{rng.random()}"
    if way in ("stream", "generate_stream"):
        deltas = getattr(client, way)("to be cancelled", **LONG)
        for _ in range(rng.randrange(4)):  # none: before it has begun
            next(deltas)
        deltas.close()
    elif way == "deadline":
        with (
            TritonClient(client.http_url, client.grpc_url, timeout_s=rng.uniform(0.005, 0.1)) as hasty,
            pytest.raises(MachineError, match="in time"),
        ):
            hasty.infer("to be cancelled", **LONG)
    else:
        _stop_one(client, request_id, rng, unary=way == "stop unary")
    return way


def _stop_one(client: TritonClient, request_id: str, rng: random.Random, *, unary: bool) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.infer if unary else client.generate, "to be stopped", request_id=request_id, **LONG)
        while not answer.done():
            time.sleep(rng.uniform(0, 0.02))
            with suppress(RequestError):  # not there yet
                client.stop(request_id, unary=unary)
                break
        assert answer.result(WAIT_S).completion.finish_reason == "cancelled"


class NotTaken(Exception):
    """The server closed the connection before it took the request."""


def ask_front(port: int, prompt: str, **fields: object) -> str:
    """The text of one streamed answer of the OpenAI front, over a connection of its own.

    Raises:
        NotTaken: no connection, or it was closed before the answer began.
        OverloadedError: the front said so.
        AssertionError: the answer began and did not end.
    """
    body = {"model": MODEL_NAME, "prompt": prompt, "stream": True, "temperature": 0, **PLAIN, **fields}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2 * WAIT_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
    except OSError as error:
        raise NotTaken(str(error)) from None
    data = response.read().decode()
    connection.close()
    if response.status == 429:
        raise OverloadedError(data)
    assert response.status == 200, data
    *events, last, empty = data.split("\n\n")
    assert (last, empty) == ("data: [DONE]", ""), data[-300:]
    choices = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all("error" not in choice for choice in choices), events[-1]
    return "".join(choice["choices"][0]["text"] for choice in choices)


# --- what a server uses ---


@dataclass(frozen=True)
class Usage:
    """Resident memory in MiB and open files, by process."""

    memory_mib: dict[str, float]
    num_files: dict[str, int]

    @classmethod
    def of(cls, server: TritonServer) -> Usage:
        """Of the server and of each model's Python process."""
        assert server.pid is not None
        pids = {"tritonserver": server.pid}
        pids |= {stub.model: stub.pid for stub in processes.stubs_of(server.pid)}
        return cls(
            {name: memory_mib(pid) for name, pid in pids.items()},
            {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()},
        )

    def growth_mib(self, before: Usage) -> dict[str, float]:
        return {name: round(self.memory_mib[name] - before.memory_mib[name], 1) for name in self.memory_mib}

    def new_files(self, before: Usage) -> dict[str, int]:
        return {name: self.num_files[name] - before.num_files[name] for name in self.num_files}


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no VmRSS of {pid}")


def cpu_s(server: TritonServer) -> float:
    """Processor time that the models' Python processes have used, in seconds."""
    assert server.pid is not None
    ticks = 0
    for stub in processes.stubs_of(server.pid):
        fields = Path(f"/proc/{stub.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime, see proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


def _series(metrics_url: str, name: str) -> list[str]:
    with urllib.request.urlopen(metrics_url, timeout=WAIT_S) as response:
        return [line for line in response.read().decode().splitlines() if line.startswith(f"{name}{{")]


def running(metrics_url: str) -> int:
    """How many requests have a slot."""
    [line] = _series(metrics_url, "trt_spec_num_requests_running")
    return int(float(line.split()[-1]))


def outcomes(server: TritonServer) -> Counter[str]:
    """How many requests the served model counts, by outcome."""
    counts = _series(server.metrics_url, "trt_spec_requests_total")
    return Counter({line.split('outcome="')[1].split('"')[0]: int(float(line.split()[-1])) for line in counts})


def assert_next_is_right(client: TritonClient, expected: dict[str, list[int]]) -> None:
    """The next request is answered, whatever way, as if nothing had happened."""
    for way in WAYS:
        assert WAYS[way](client, PROMPTS[0], **PLAIN).token_ids == expected[PROMPTS[0]], way
