"""The engine in this process as a client: on a thread of its own for many askers, or stepped by the one that asks."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from trt_spec.clients.client import Ask, Client, Params
from trt_spec.clients.prompts import Prompt, encoder
from trt_spec.clients.trace import Trace, trace_of
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.request import Chunk, Request
from trt_spec.runtime.worker import EngineWorker


class _InProcess(Client):
    """What both share: an engine, and requests under ids of their own."""

    name = "engine"

    def __init__(self, engine: Engine, *, speculation: bool = True) -> None:
        self.engine, self._speculation = engine, speculation
        self._encode, self._numbers = encoder(engine.tokenizer), itertools.count()

    def _request(self, prompt: Prompt, params: Params, request_id: str) -> Request:
        request_id = request_id or f"{self.name}-{next(self._numbers)}"
        speculation = params.speculation and self._speculation
        return Request(request_id, self._encode(prompt), params.sampling, speculation, params.max_draft_len)


class SteppedClient(_InProcess):
    """An idle engine that is stepped by the asking thread, one at a time. The caller keeps the engine.

    Args:
        speculation: whether requests that ask for drafts get them; False makes it an arm of plain decoding.
    """

    def stream(self, prompt: Prompt, params: Params, *, request_id: str = "") -> Iterator[Chunk]:
        """See `Client.stream`."""
        request = self._request(prompt, params, request_id)
        self.engine.add(request)
        try:
            while self.engine.has_work:
                for chunk in self.engine.step():
                    if chunk.error is not None:
                        raise chunk.error
                    yield chunk
        finally:
            if self.engine.has_work:
                self.engine.cancel(request.request_id)
                self.engine.step()

    def ask_all(self, asks: Sequence[Ask]) -> list[Trace]:
        """See `Client.ask_all`. In one batch, added in the order given: equal seeds give equal tokens again."""
        requests = [self._request(ask.prompt, ask.params, ask.request_id) for ask in asks]
        seen: dict[str, list[tuple[int, Chunk]]] = {request.request_id: [] for request in requests}
        pending, num_open, sent_ns = deque(requests), 0, time.perf_counter_ns()
        while pending or self.engine.has_work:
            while pending and num_open < self.engine.limits.capacity:
                self.engine.add(pending.popleft())
                num_open += 1
            for chunk in self.engine.step():
                seen[chunk.request_id].append((time.perf_counter_ns(), chunk))
                num_open -= chunk.is_last
        timed = zip(asks, seen.values(), strict=True)
        return [trace_of(chunks, sent_ns=sent_ns, prompt=ask.prompt.name, may_be_empty=True) for ask, chunks in timed]


class EngineClient(_InProcess):
    """An engine on a thread of its own, where `load` loads it."""

    def __init__(self, load: Callable[[], Engine]) -> None:
        self.worker = EngineWorker(load).start()
        super().__init__(self.worker.engine)

    def stream(self, prompt: Prompt, params: Params, *, request_id: str = "") -> Iterator[Chunk]:
        """See `Client.stream`."""
        request, chunks = self._request(prompt, params, request_id), queue.SimpleQueue()
        self.worker.submit(request, chunks.put)
        is_over = False
        try:
            while not is_over:
                chunk = chunks.get()
                is_over = chunk.is_last
                if chunk.error is not None:
                    raise chunk.error
                yield chunk
        finally:
            if not is_over:
                self.worker.cancel(request.request_id)

    def _hear(self, prompt: Prompt, params: Params, request_id: str, note: Callable[[Chunk], None]) -> None:
        """On the engine's thread, so that the asker wakes once per answer."""
        ended = threading.Event()

        def heard(chunk: Chunk) -> None:
            note(chunk)
            if chunk.is_last:
                ended.set()

        self.worker.submit(self._request(prompt, params, request_id), heard)
        ended.wait()

    def close(self) -> None:
        self.worker.close()
