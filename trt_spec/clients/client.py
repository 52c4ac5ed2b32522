"""Whoever answers prompts: one protocol for the engine in this process, our Triton models and other servers."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import Literal, get_args

from trt_spec.clients.prompts import Prompt
from trt_spec.clients.trace import Trace, trace_of
from trt_spec.errors import CapabilityError
from trt_spec.runtime.request import Chunk, SamplingParams

Now = Callable[[], int]  # monotonic, nanoseconds


Ability = Literal[
    "input_ids",  # takes prompts as token ids
    "output_ids",  # tells the ids of its output, not only its text
    "logprobs",  # tells the log-probability of each output token
    "token_origins",  # tells where each output token came from, see `Chunk.token_origins`
    "speculation_switch",  # drafts can be switched off by request
    "seed",  # a request's seed decides its sample
    "draft_counts",  # tells how many tokens were drafted and accepted
    "ignore_eos",  # can go on after the end of text
]
ABILITIES: frozenset[Ability] = frozenset(get_args(Ability))


@dataclass(frozen=True)
class Params:
    """What is asked for beside the prompt.

    Attributes:
        sampling: greedy, 64 tokens unless given.
        speculation: whether drafts may be made.
        max_draft_len: most draft tokens in a row; None for the engine's own.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: bool = True
    max_draft_len: int | None = None


@dataclass(frozen=True)
class Ask:
    """One of several requests that are sent together."""

    prompt: Prompt
    params: Params
    request_id: str = ""


class Client(AbstractContextManager):
    """One answerer. Any number of threads may ask at once, unless a class says otherwise.

    Attributes:
        name: who this is, for messages and reports.
        abilities: what it can do, so that a judge can refuse by name what it needs and does not get; they may become
            fewer while a server is found to refuse what it was asked.
        dropped: fields of requests that were refused, and are left out since then.
        concurrency: how many requests `ask_all` sends at once.
    """

    name: str = "client"
    abilities: frozenset[Ability] = ABILITIES
    dropped: frozenset[str] = frozenset()
    concurrency: int = 8

    @abstractmethod
    def stream(self, prompt: Prompt, params: Params, *, request_id: str = "") -> Iterator[Chunk]:
        """The chunks of one answer as they come, the last one with its completion. Closing the iterator cancels.

        Raises:
            RequestError: the request is not one that is served here.
            OverloadedError: there is too much to do.
            MachineError: nobody answers, or it failed.
        """

    def ask(
        self,
        prompt: Prompt,
        params: Params,
        *,
        request_id: str = "",
        due_ns: int | None = None,
        now: Now = time.perf_counter_ns,
        on_chunk: Callable[[Chunk], None] = lambda chunk: None,
        may_be_empty: bool = False,
    ) -> Trace:
        """Sends one request and waits for its end.

        Args:
            due_ns: when it should have been sent; now unless given.
            on_chunk: called with each chunk as it comes.

        Raises:
            TrtSpecError: as `stream`; MachineError also where the answer has no token and may not be empty.
        """
        sent_ns, seen = now(), []

        def note(chunk: Chunk) -> None:
            seen.append((now(), chunk))
            on_chunk(chunk)

        self._hear(prompt, params, request_id, note)
        return trace_of(seen, sent_ns=sent_ns, due_ns=due_ns, prompt=prompt.name, may_be_empty=may_be_empty)

    def _hear(self, prompt: Prompt, params: Params, request_id: str, note: Callable[[Chunk], None]) -> None:
        """Notes the chunks of one answer to its end, on whatever thread they come."""
        with closing(self.stream(prompt, params, request_id=request_id)) as chunks:
            for chunk in chunks:
                note(chunk)

    def ask_all(self, asks: Sequence[Ask]) -> list[Trace]:
        """Sends requests, several at a time, and waits for all; answers in the same order, which may be empty.

        Raises as `stream`.
        """
        with ThreadPoolExecutor(self.concurrency) as pool:
            sent = [
                pool.submit(self.ask, ask.prompt, ask.params, request_id=ask.request_id, may_be_empty=True)
                for ask in asks
            ]
            return [each.result() for each in sent]

    def require(self, *abilities: Ability, purpose: str) -> None:
        """Refuses by name (CapabilityError) what this answerer cannot do."""
        missing = [name for name in abilities if name not in self.abilities]
        if missing:
            raise CapabilityError(
                f"{self.name} cannot be used for {purpose}",
                got=f"no {', '.join(missing)}",
                expected=", ".join(abilities),
            )

    def close(self) -> None:
        """Lets go of what it holds; the client may not be used again."""
        return None

    def __exit__(self, *exc_info: object) -> None:
        self.close()
