"""The choices of a call, each as one request to the served model, and their chunks as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from trt_spec.clients.triton_aio import AsyncTritonClient
from trt_spec.errors import TrtSpecError
from trt_spec.runtime.request import Chunk
from trt_spec.serve.openai.requests import Call

_Queue = asyncio.Queue  # of (choice's index, chunk), an error that ends them all, or None when all have ended


class Forwarder:
    """Forwards calls to one model. Lives on one event loop.

    Args:
        client: where to.
        max_batch_size: choices of one call that are in flight at once; the others wait here, so that a call with more
            prompts than the engine has places is not refused as an overload of its own making.
    """

    def __init__(self, client: AsyncTritonClient, max_batch_size: int) -> None:
        self.client, self.max_batch_size = client, max_batch_size
        self._queues: set[_Queue] = set()

    async def chunks(self, call: Call) -> AsyncIterator[tuple[int, Chunk]]:
        """Every chunk of a call with its choice's index. Closing the iterator cancels what is in flight.

        Raises:
            TrtSpecError: what the server said of the first choice that failed; the others are cancelled.
        """
        queue: _Queue = asyncio.Queue()
        self._queues.add(queue)
        everything = asyncio.ensure_future(self._run(call, queue))
        everything.add_done_callback(lambda task: queue.put_nowait(None))
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, TrtSpecError):
                    raise item
                yield item
            everything.result()  # raises what ended it early
        finally:
            self._queues.discard(queue)
            everything.cancel()
            await asyncio.wait((everything,))

    def fail(self, error: TrtSpecError) -> None:
        """Ends every call in flight with an error."""
        for queue in self._queues:
            queue.put_nowait(error)

    async def _run(self, call: Call, queue: _Queue) -> None:
        places = asyncio.Semaphore(self.max_batch_size)
        choices = [asyncio.ensure_future(self._one(call, index, places, queue)) for index in range(call.num_choices)]
        try:
            await asyncio.gather(*choices)
        finally:
            for choice in choices:
                choice.cancel()
            await asyncio.gather(*choices, return_exceptions=True)

    async def _one(self, call: Call, index: int, places: asyncio.Semaphore, queue: _Queue) -> None:
        prompt, parameters = call.choice(index)
        async with places:
            deltas = self.client.stream(prompt, streaming=call.stream, **parameters)
            try:
                async for chunk in deltas:
                    queue.put_nowait((index, chunk))
            finally:
                await deltas.aclose()
