"""A TensorRT-LLM engine as a worker like that of our own: requests in, chunks out, on a thread of its own.

The thread runs an event loop. Every request is a task that reads what TensorRT-LLM generates and passes it through the
same `Sequence` as the torch engine, so text, cuts, ids and reasons are those of the contract by construction. What
TensorRT-LLM does not tell is None, and left out of the answer: drafts per step, acceptance per position, where each
token came from.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import MachineError, TrtSpecError
from trt_spec.runtime.detokenizer import Detokenizer
from trt_spec.runtime.request import TARGET, Chunk, Completion, KvCacheUse, Request
from trt_spec.runtime.sequence import Sequence
from trt_spec.runtime.worker import Worker
from trt_spec.triton.trtllm.adapter import Generation, Metrics, Update
from trt_spec.triton.trtllm.requests import LlmEngine

ABORT_S = 5.0  # how long a request that was ended here may take to end there
UNKNOWN_CACHE = KvCacheUse(None, None, None, None, None)


class Llm(Protocol):
    """What is needed of `adapter.TrtLlm`."""

    def generate(self, input_ids: Any, sampling: Any) -> Generation: ...
    def close(self) -> None: ...


@dataclass
class _Running:
    """A request here; `generation` is the same one there, from when it was started."""

    task: asyncio.Task[Chunk]
    generation: Generation | None = None
    is_cancelled: bool = False


class LlmWorker(Worker):
    """Runs one opened engine.

    Args:
        open_llm: opens it, on the worker's thread.
        engine: what it can serve.
        tokenizer: the target's.
    """

    engine: LlmEngine

    def __init__(self, open_llm: Callable[[], Llm], engine: LlmEngine, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.engine, self.tokenizer = engine, tokenizer
        self._open_llm = open_llm
        self._running: dict[str, _Running] = {}

    def _call(self, function: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(function)

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._call(self._cancel_all)
            self._idle.wait(ABORT_S)
            self._call(self._stopped.set)

    # ---- the worker's thread ----

    def _run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        # On a thread of its own: opening starts event loops and processes of its own.
        opening = asyncio.ensure_future(asyncio.to_thread(self._open_llm))
        await asyncio.wait((opening,))
        self.failure = opening.exception()  # the waiting `start` raises it
        self._is_loaded.set()
        if self.failure is None:
            self._llm = opening.result()
            await self._stopped.wait()
            await asyncio.to_thread(self._llm.close)

    def _begin(self, request: Request) -> None:
        task = self._loop.create_task(self._serve(self._sequence(request)))
        self._running[request.request_id] = _Running(task)
        task.add_done_callback(functools.partial(self._end, request.request_id))

    def _cancel(self, request_id: str) -> None:
        running = self._running.get(request_id)
        if running is None or running.is_cancelled:
            return
        running.is_cancelled = True
        if running.generation is not None:
            running.generation.abort()
        self._loop.call_later(ABORT_S, running.task.cancel)  # for an engine that does not answer the abort

    def _cancel_all(self) -> None:
        for request_id in list(self._running):
            self._cancel(request_id)

    def _end(self, request_id: str, task: asyncio.Task[Chunk]) -> None:
        """Delivers the last chunk of a request; what failed there, whatever it was, is its own."""
        del self._running[request_id]
        error = task.exception()
        if error is not None and not isinstance(error, TrtSpecError):
            error = MachineError(
                "TensorRT-LLM failed on this request",
                got=f"{type(error).__name__}: {error}",
                remedy="see the server's log; restart it where every request fails",
            )
        self._deliver(task.result() if error is None else Chunk(request_id, error=error))

    async def _serve(self, sequence: Sequence) -> Chunk:
        try:
            return await self._generate(sequence, self._running[sequence.request.request_id])
        except asyncio.CancelledError:
            return self._completed(sequence.cancel(), None)

    def _sequence(self, request: Request) -> Sequence:
        return Sequence(
            request,
            None,  # probabilities are computed elsewhere
            eos_token_ids=self.engine.eos_token_ids,
            max_seq_len=self.engine.limits.max_seq_len,
            detokenizer=Detokenizer(self.tokenizer, request.params.stop),
            history=None,
        )

    async def _generate(self, sequence: Sequence, running: _Running) -> Chunk:
        """Runs one request; every chunk but the last is delivered, the last is returned."""
        request = sequence.request
        if running.is_cancelled:
            return self._completed(sequence.cancel(), None)
        generation = self._llm.generate(request.input_ids, self.engine.sampling(request, sequence.seed))
        running.generation = generation
        updates = aiter(generation)
        goes_on = True
        try:
            async for update in updates:
                goes_on = update.finish_reason is None
                is_cancelled = running.is_cancelled
                chunk = sequence.cancel() if is_cancelled else self._append(sequence, update)
                if chunk.completion is None and not goes_on:
                    self._finish(sequence, chunk, update.finish_reason)
                if chunk.completion is not None:
                    metrics = update.metrics
                    if goes_on and not is_cancelled:
                        goes_on = False
                        generation.abort()
                        metrics = await self._metrics_of_the_rest(updates)
                    return self._completed(chunk, metrics)
                if chunk.token_ids:
                    self._deliver(chunk)
        finally:
            if goes_on and not running.is_cancelled:
                generation.abort()  # this request failed here; it must not go on there
        raise MachineError("TensorRT-LLM ended this request without saying why", remedy="see the server's log")

    def _append(self, sequence: Sequence, update: Update) -> Chunk:
        wants_logprobs = sequence.request.params.logprobs
        if wants_logprobs and update.token_ids and update.logprobs is None:
            raise MachineError(
                "TensorRT-LLM returned no log-probability for a token",
                where="sampling_param_logprobs",
                remedy="leave it out; this version does not report them with this way of drafting",
            )
        chunk = sequence.append(update.token_ids, update.logprobs if wants_logprobs else None, TARGET)
        chunk.token_origins = []  # it does not tell
        done = chunk.completion
        is_early = done is not None and done.num_output_tokens < sequence.request.params.min_tokens
        if is_early and done.finish_reason != "length":
            raise MachineError(
                "TensorRT-LLM ended a text before its shortest length",
                where="sampling_param_min_tokens",
                got=done.num_output_tokens,
                expected=sequence.request.params.min_tokens,
                remedy="leave min_tokens out; this version does not apply it with this way of drafting",
            )
        return chunk

    def _finish(self, sequence: Sequence, chunk: Chunk, reason: str) -> None:
        """Ends a sequence that TensorRT-LLM has ended and whose ids alone do not say so."""
        if reason == "timeout":
            raise MachineError("TensorRT-LLM gave up on this request", got="timeout", remedy="see the server's log")
        if reason == "cancelled":
            raise MachineError("TensorRT-LLM cancelled this request", remedy="see the server's log")
        # "stop" without the end id among the ids is the end of text, which some versions leave out.
        sequence.finish(chunk, "eos" if reason == "stop" else "length")

    async def _metrics_of_the_rest(self, updates: Any) -> Metrics | None:
        """Reads an aborted request to its end, for what was measured of it."""

        async def read() -> Metrics | None:
            metrics = None
            async for update in updates:
                metrics = update.metrics or metrics
            return metrics

        reading = asyncio.ensure_future(read())
        done, _ = await asyncio.wait((reading,), timeout=ABORT_S)
        if not done:
            reading.cancel()
        # It was ended here; that it ends badly there, or not at all, is no matter of this client.
        return reading.result() if done and reading.exception() is None else None

    def _completed(self, chunk: Chunk, metrics: Metrics | None) -> Chunk:
        """The last chunk with TensorRT-LLM's own counts instead of the sequence's zeros."""
        assert chunk.completion is not None
        metrics = metrics or Metrics()
        if self.engine.always_drafts and metrics.total_draft_tokens == 0 and chunk.completion.num_output_tokens > 1:
            # Versions whose PyTorch backend does not fill the counts in leave zeros there; that is no measurement.
            metrics = replace(metrics, total_draft_tokens=None, total_accepted_draft_tokens=None)
        chunk.completion = with_metrics(chunk.completion, metrics)
        done, stats = chunk.completion, self.engine.stats
        stats.num_output_tokens += done.num_output_tokens
        stats.num_draft_tokens += done.total_draft_tokens or 0
        stats.num_accepted_tokens += done.total_accepted_draft_tokens or 0
        return chunk


def with_metrics(done: Completion, metrics: Metrics) -> Completion:
    """A completion with what TensorRT-LLM measured, and None for what it does not tell."""
    first_scheduled = None if metrics.queue_ns is None else done.arrival_time_ns + metrics.queue_ns
    return replace(
        done,
        num_drafts=None,
        accepted_per_position=None,
        total_draft_tokens=metrics.total_draft_tokens,
        total_accepted_draft_tokens=metrics.total_accepted_draft_tokens,
        first_scheduled_time_ns=first_scheduled and min(first_scheduled, done.first_token_time_ns),
        kv_cache=metrics.kv_cache or UNKNOWN_CACHE,
    )
