"""The asyncio client: the same chunks as the blocking one, cancelling, and whether the model answers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tests.triton.conftest import LONG, MODEL_NAME, built, client, installation, server
from tests.triton.test_serving import cancels, metrics, wait_for
from trt_spec.clients.triton_aio import AsyncTritonClient
from trt_spec.errors import MachineError, OverloadedError, RequestError
from trt_spec.triton.codec import merge
from trt_spec.triton.server.installation import free_ports

__all__ = ["built", "client", "installation", "server"]  # fixtures

pytestmark = pytest.mark.server
PROMPT = "the cat sat on the mat and the cat"


def run(url, use, model_name=MODEL_NAME):
    """What `use` makes of a client on an event loop of its own."""

    async def main():
        client = AsyncTritonClient(url, model_name)
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(main())


async def collect(client, prompt=PROMPT, **parameters):
    return [chunk async for chunk in client.stream(prompt, **parameters)]


@pytest.mark.parametrize("streaming", [True, False])
def test_chunks_are_those_of_the_blocking_client(server, client, streaming):
    expected = client.generate(PROMPT, max_tokens=30, ignore_eos=True)
    chunks = run(server.grpc_url, lambda one: collect(one, max_tokens=30, ignore_eos=True, streaming=streaming))
    assert (len(chunks) > 1) == streaming
    whole = merge(chunks)
    assert (whole.text, whole.token_ids) == (expected.text, expected.token_ids)
    assert whole.completion.num_output_tokens == 30


def test_closing_the_iterator_frees_the_slot(server):
    async def use(client):
        async with aclosing(client.stream(PROMPT, **LONG)) as deltas:
            await anext(deltas)
        await asyncio.to_thread(wait_for, server, running=0)  # while the connection stays

    with cancels(server):
        run(server.grpc_url, use)


def test_cancelling_the_task_frees_the_slot(server):
    async def use(client):
        task = asyncio.ensure_future(collect(client, **LONG))
        await asyncio.to_thread(wait_for, server, running=1)
        task.cancel()
        await asyncio.to_thread(wait_for, server, running=0)

    with cancels(server):
        run(server.grpc_url, use)


def test_errors_have_their_kind(server):
    with pytest.raises(RequestError, match="temperature"):
        run(server.grpc_url, lambda client: collect(client, temperature=-1.0))
    with pytest.raises(RequestError, match="other"):
        run(server.grpc_url, collect, model_name="other")

    async def too_many(client):
        return await asyncio.gather(*(collect(client, max_tokens=100) for _ in range(40)), return_exceptions=True)

    found = run(server.grpc_url, too_many)
    assert {type(one) for one in found} == {list, OverloadedError}


def test_the_model_is_asked_whether_it_answers_and_that_counts_as_no_request(server):
    def counted():
        return {name: value for name, value in metrics(server).items() if "requests_total" in name}

    before = counted()
    assert run(server.grpc_url, lambda client: client.check()) is None
    assert counted() == before
    with pytest.raises(MachineError, match="does not answer"):
        run(server.grpc_url, lambda client: client.check(), model_name="other")


def test_a_server_that_is_not_there_is_a_machine_error():
    url = f"127.0.0.1:{free_ports(1)[0]}"
    for use in (collect, lambda client: client.check()):
        with pytest.raises(MachineError):
            run(url, use)
