"""What is measured: the built engine in this process, or a Triton server that serves the contract."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from trt_spec.clients.prompts import Prompt
from trt_spec.errors import CheckpointError, MachineError
from trt_spec.gate.measure import Clock
from trt_spec.gate.records import Answer, Arm

if TYPE_CHECKING:
    from trt_spec.checkpoints.tokenizer import Tokenizer
    from trt_spec.clients.triton import TritonClient
    from trt_spec.runtime.engine import Engine
    from trt_spec.runtime.request import Chunk, Completion

Encode = Callable[[Prompt], tuple[int, ...]]


def encoder(tokenizer: Tokenizer) -> Encode:
    """Token ids of a prompt, a message in the chat template where there is one; each prompt is encoded once."""

    @cache
    def encode(prompt: Prompt) -> tuple[int, ...]:
        if prompt.is_chat:
            try:
                text = tokenizer.apply_chat_template([{"role": "user", "content": prompt.text}])
                return tuple(tokenizer.encode(text, add_special_tokens=False))
            except CheckpointError:  # a base model: no chat template
                pass
        return tuple(tokenizer.encode(prompt.text))

    return encode


class _Heard:
    """The chunks of one answer and when they came."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.times: list[int] = []
        self.counts: list[int] = []

    def add(self, chunk: Chunk) -> None:
        """Notes a chunk that holds tokens."""
        now = self._clock.now_ns()
        if chunk.token_ids:
            self.times.append(now)
            self.counts.append(len(chunk.token_ids))

    def answer(self, completion: Completion | None) -> Answer:
        """All of it.

        Raises:
            MachineError: the answer has no end, or no token.
        """
        if completion is None or not self.times:
            raise MachineError("an answer without tokens", got=completion and completion.finish_reason)
        per_pos = completion.accepted_per_position
        return Answer(
            tuple(self.times),
            tuple(self.counts),
            sum(self.counts),
            completion.num_input_tokens,
            completion.num_drafts,
            completion.total_draft_tokens,
            completion.total_accepted_draft_tokens,
            None if per_pos is None else tuple(per_pos),
        )


class EngineSubject:
    """An engine on a thread of its own; chunks are noted on that thread, so clients wake once per answer.

    Args:
        load: loads it, on that thread.
    """

    def __init__(self, load: Callable[[], Engine], encode: Encode, clock: Clock) -> None:
        from trt_spec.runtime.worker import EngineWorker

        self._encode, self._clock = encode, clock
        self.worker = EngineWorker(load).start()

    def ask(self, prompt: Prompt, arm: Arm, max_tokens: int, request_id: str) -> Answer:
        """See `latency.measure.Subject`.

        Raises:
            RequestError: prompt and output do not fit the engine.
            MachineError: the engine failed.
        """
        from trt_spec.runtime.request import Request, SamplingParams

        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = Request(request_id, self._encode(prompt), params, speculation=arm == "speculation")
        heard, ended, last = _Heard(self._clock), threading.Event(), []

        def on_chunk(chunk: Chunk) -> None:
            heard.add(chunk)
            if chunk.is_last:
                last.append(chunk)
                ended.set()

        self.worker.submit(request, on_chunk)
        ended.wait()
        if last[0].error is not None:
            raise last[0].error
        return heard.answer(last[0].completion)

    def close(self) -> None:
        self.worker.close()


class TritonSubject:
    """Triton servers over gRPC or HTTP streams, one for each arm or the same for both.

    Args:
        urls: by arm; grpc://host:port, or host:port for HTTP.
    """

    def __init__(self, urls: Mapping[Arm, str], model_name: str, encode: Encode, clock: Clock) -> None:
        self._encode, self._clock = encode, clock
        self._clients = {arm: (url.startswith("grpc://"), _client(url, model_name)) for arm, url in urls.items()}

    def ask(self, prompt: Prompt, arm: Arm, max_tokens: int, request_id: str) -> Answer:
        """See `latency.measure.Subject`.

        Raises:
            RequestError, OverloadedError, MachineError: what the server said, or that there is none.
        """
        has_grpc, client = self._clients[arm]
        ask = client.stream if has_grpc else client.generate_stream
        heard, completion = _Heard(self._clock), None
        ids: Sequence[int] = list(self._encode(prompt))
        options = {"max_tokens": max_tokens, "ignore_eos": True, "speculation": arm == "speculation"}
        for chunk in ask(ids, request_id=request_id, **options):
            heard.add(chunk)
            completion = chunk.completion or completion
        return heard.answer(completion)

    def close(self) -> None:
        for _, client in self._clients.values():
            client.close()


def _client(url: str, model_name: str) -> TritonClient:
    from trt_spec.clients.triton import TritonClient

    if url.startswith("grpc://"):
        return TritonClient(grpc_url=url, model_name=model_name)
    return TritonClient(url, model_name=model_name)
