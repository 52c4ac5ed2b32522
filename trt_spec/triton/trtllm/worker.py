"""A TensorRT-LLM engine behind the same door as our own: requests in, chunks out, on a thread of its own.

The thread runs an event loop. Every request is a task that reads what TensorRT-LLM generates and passes it through the
same `Sequence` as the torch engine, so text, cuts, ids and reasons are those of the contract by construction. What
TensorRT-LLM does not tell is None, and left out of the answer: drafts per step, acceptance per position, where each
token came from.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import MachineError, OverloadedError, TrtSpecError
from trt_spec.runtime.detokenizer import Detokenizer
from trt_spec.runtime.request import TARGET, Chunk, Completion, KvCacheUse, Request
from trt_spec.runtime.sequence import Sequence
from trt_spec.triton.metrics import Series
from trt_spec.triton.trtllm.adapter import Generation, Metrics, Update
from trt_spec.triton.trtllm.requests import LlmEngine

OnChunk = Callable[[Chunk], None]
ABORT_S = 5.0  # how long a request that was ended here may take to end there
UNKNOWN_CACHE = KvCacheUse(None, None, None, None, None)
NOT_AVAILABLE = ("num_drafts", "accepted_per_position", "token_origins")  # outputs of the contract without a source


class Llm(Protocol):
    """What is needed of `trtllm_adapter.TrtLlm`."""

    def generate(self, input_ids: Any, sampling: Any) -> Generation: ...
    def close(self) -> None: ...


@dataclass
class LlmTotals:
    """Counts since the engine was opened, of finished requests."""

    num_output_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


COUNTERS = (
    Series("num_output_tokens_total", "Tokens generated.", lambda worker: worker.totals.num_output_tokens),
    Series("num_draft_tokens_total", "Draft tokens verified.", lambda worker: worker.totals.num_draft_tokens),
    Series("num_accepted_tokens_total", "Draft tokens accepted.", lambda worker: worker.totals.num_accepted_tokens),
)
GAUGES = (
    Series("num_requests_in_flight", "Requests running or waiting in the engine.", lambda worker: worker.num_in_flight),
)


class LlmWorker:
    """Runs one opened engine.

    Args:
        open_llm: opens it, on the worker's thread.
        engine: what it can serve.
        tokenizer: the target's.
    """

    def __init__(self, open_llm: Callable[[], Llm], engine: LlmEngine, tokenizer: Tokenizer) -> None:
        self.engine, self.tokenizer, self.totals = engine, tokenizer, LlmTotals()
        self.failure: BaseException | None = None
        self._open_llm = open_llm
        self._lock = threading.Lock()
        self._num_accepted = 0
        self._is_draining = False
        self._idle = threading.Event()
        self._idle.set()
        self._is_open = threading.Event()
        self._generations: dict[str, Generation | None] = {}  # None: accepted, and not started yet
        self._tasks: dict[str, asyncio.Task[None] | None] = {}
        self._cancelled: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> LlmWorker:
        """Starts the thread and waits for the engine; raises what opening it raises."""
        self._thread.start()
        self._is_open.wait()
        if self.failure is not None:
            raise self.failure
        return self

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not finished, queued ones included."""
        return self._num_accepted

    def submit(self, request: Request, on_chunk: OnChunk) -> None:
        """Starts one request, see `submit_all`."""
        self.submit_all([request], on_chunk)

    def submit_all(self, requests: SequenceOf[Request], on_chunk: OnChunk) -> None:
        """Starts requests, all of them or none; `on_chunk` gets every chunk of each, the last one with `is_last`.

        Raises:
            RequestError, CapabilityError: the engine cannot serve these requests.
            OverloadedError: too many are in flight, or the worker is draining.
        """
        for request in requests:
            self.engine.check(request)
        with self._lock:
            if self._is_draining:
                raise OverloadedError("the engine is draining and takes no new requests", remedy="use another server")
            self.engine.limits.refuse_overload(self._num_accepted, len(requests))
            self._num_accepted += len(requests)
            self._idle.clear()
            for request in requests:
                self._generations[request.request_id] = None
                asyncio.run_coroutine_threadsafe(self._serve(request, on_chunk), self._loop)

    def cancel(self, request_id: str) -> None:
        """Ends a request as soon as the engine can; unknown ids are ignored."""
        self._loop.call_soon_threadsafe(self._cancel, request_id)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Refuses new requests and waits until accepted ones are done; False when the time ran out."""
        with self._lock:
            self._is_draining = True
        return self._idle.wait(timeout_s)

    def close(self) -> None:
        """Ends what is in flight as cancelled, closes the engine and stops the thread."""
        with self._lock:
            self._is_draining = True
            left = list(self._generations)
        for request_id in left:
            self.cancel(request_id)
        self._idle.wait(ABORT_S)
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    # ---- the worker's thread ----

    def _run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            # On a thread of its own: opening starts event loops and processes of its own.
            self._llm = await asyncio.to_thread(self._open_llm)
        except BaseException as error:  # the waiting `start` raises it
            self.failure = error
            self._is_open.set()
            return
        self._is_open.set()
        await self._stop.wait()
        await asyncio.to_thread(self._llm.close)

    def _cancel(self, request_id: str) -> None:
        if request_id not in self._generations or request_id in self._cancelled:
            return
        self._cancelled.add(request_id)
        generation = self._generations[request_id]
        if generation is not None:
            generation.abort()
        task = self._tasks.get(request_id)
        if task is not None:  # for an engine that does not answer the abort
            self._loop.call_later(ABORT_S, task.cancel)

    async def _serve(self, request: Request, on_chunk: OnChunk) -> None:
        request_id = request.request_id
        self._tasks[request_id] = asyncio.current_task()
        try:
            sequence = self._sequence(request)
            last = await self._generate(sequence, on_chunk)
        except asyncio.CancelledError:
            last = self._completed(sequence.cancel(), None)
        except TrtSpecError as error:
            last = Chunk(request_id, error=error)
        except Exception as error:
            told = MachineError(
                "TensorRT-LLM failed on this request",
                got=f"{type(error).__name__}: {error}",
                remedy="see the server's log; restart it where every request fails",
            )
            last = Chunk(request_id, error=told)
        with self._lock:
            del self._generations[request_id], self._tasks[request_id]
            self._cancelled.discard(request_id)
            self._num_accepted -= 1
            is_idle = self._num_accepted == 0
        self._tell(on_chunk, last)
        if is_idle:
            self._idle.set()

    def _sequence(self, request: Request) -> Sequence:
        return Sequence(
            request,
            None,  # probabilities are computed elsewhere
            eos_token_ids=self.engine.eos_token_ids,
            max_seq_len=self.engine.limits.max_seq_len,
            detokenizer=Detokenizer(self.tokenizer, request.params.stop),
            history=None,
        )

    async def _generate(self, sequence: Sequence, on_chunk: OnChunk) -> Chunk:
        """Runs one request; every chunk but the last is told, the last is returned."""
        request = sequence.request
        if request.request_id in self._cancelled:
            return self._completed(sequence.cancel(), None)
        generation = self._llm.generate(request.input_ids, self.engine.sampling(request, sequence.seed))
        self._generations[request.request_id] = generation
        updates = aiter(generation)
        is_running = True
        try:
            async for update in updates:
                is_running = update.finish_reason is None
                is_cancelled = request.request_id in self._cancelled
                chunk = sequence.cancel() if is_cancelled else self._append(sequence, update)
                if chunk.completion is None and not is_running:
                    self._end(sequence, chunk, update.finish_reason)
                if chunk.completion is not None:
                    metrics = update.metrics
                    if is_running and not is_cancelled:
                        is_running = False
                        generation.abort()
                        metrics = await self._metrics_of_the_rest(updates)
                    return self._completed(chunk, metrics)
                if chunk.token_ids:
                    self._tell(on_chunk, chunk)
        finally:
            if is_running and request.request_id not in self._cancelled:
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

    def _end(self, sequence: Sequence, chunk: Chunk, reason: str) -> None:
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

        try:
            return await asyncio.wait_for(read(), ABORT_S)
        except Exception:  # it was ended here; that it ends badly there is no matter of this client
            return None

    def _completed(self, chunk: Chunk, metrics: Metrics | None) -> Chunk:
        """The last chunk with TensorRT-LLM's own counts instead of the sequence's zeros."""
        assert chunk.completion is not None
        metrics = metrics or Metrics()
        if self.engine.always_drafts and metrics.total_draft_tokens == 0 and chunk.completion.num_output_tokens > 1:
            # Versions whose PyTorch backend does not fill the counts in leave zeros there; that is no measurement.
            metrics = replace(metrics, total_draft_tokens=None, total_accepted_draft_tokens=None)
        chunk.completion = with_metrics(chunk.completion, metrics)
        done = chunk.completion
        self.totals.num_output_tokens += done.num_output_tokens
        self.totals.num_draft_tokens += done.total_draft_tokens or 0
        self.totals.num_accepted_tokens += done.total_accepted_draft_tokens or 0
        return chunk

    def _tell(self, on_chunk: OnChunk, chunk: Chunk) -> None:
        """A callback that raises loses its own request only."""
        try:
            on_chunk(chunk)
        except Exception:
            self._cancel(chunk.request_id)


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
