"""What a client asks for, checked before anything runs, and what it gets back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trt_spec.errors import RequestError, TrtSpecError
from trt_spec.runtime.stats import DraftCounts

FinishReason = Literal["length", "stop", "eos", "cancelled"]
TARGET, ACCEPTED, RECOVERED = range(3)  # where an output token came from, see `Chunk`
MAX_SEED = 2**64 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. Defaults are greedy decoding of 64 tokens.

    Attributes:
        max_tokens: most tokens to generate, at least 1.
        min_tokens: tokens before which neither EOS nor a stop id may come, and stop strings are not looked for.
        temperature: 0 is greedy.
        top_k: keep this many largest tokens (and ties); 0 keeps all.
        top_p: keep the smallest set of largest tokens with this mass (and ties); 1 keeps all.
        min_p: keep tokens with at least this share of the largest probability; 0 keeps all.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
        presence_penalty, frequency_penalty: subtracted once per generated token kind, and per occurrence; 0 is off.
        logit_bias: added to the logits of these ids.
        seed: equal seeds give equal output at equal batch composition; None draws a fresh one.
        stop: strings that end the output and are cut from it.
        stop_token_ids: ids that end the output and stay in it.
        ignore_eos: do not end at EOS.
        logprobs: return the target's log-probability of every token (raw logits, before penalties and temperature).
    """

    max_tokens: int = 64
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False

    def __post_init__(self) -> None:
        _check_int("max_tokens", self.max_tokens, 1)
        _check_int("min_tokens", self.min_tokens, 0)
        _check_int("top_k", self.top_k, 0)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, is_open_below=True)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, is_open_below=True)
        _check_float("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _check_float("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        if self.min_tokens > self.max_tokens:
            raise bad_parameter("min_tokens", self.min_tokens, f"at most max_tokens = {self.max_tokens}")
        if self.seed is not None:
            _check_int("seed", self.seed, 0, MAX_SEED)
        for string in self.stop:
            if not isinstance(string, str) or not string:
                raise bad_parameter("stop", string, "non-empty strings")
        for token in self.stop_token_ids:
            _check_int("stop_token_ids", token, 0)
        for token, bias in self.logit_bias.items():
            _check_int("logit_bias", token, 0)
            _check_float("logit_bias", bias, -1e4, 1e4)


def bad_parameter(name: str, got: object, expected: str) -> RequestError:
    """A parameter of a request with a value that cannot be."""
    return RequestError(f"invalid request parameter {name}", where=name, got=got, expected=expected)


def _check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        raise bad_parameter(
            name, value, f"an integer of at least {low}" + (f" and at most {high}" if high is not None else "")
        )


def _check_float(name: str, value: object, low: float, high: float, *, is_open_below: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < low or value > high or (is_open_below and value == low):
        raise bad_parameter(name, value, f"a number {'above' if is_open_below else 'from'} {low:g} to {high:g}")


@dataclass(frozen=True)
class Request:
    """One prompt. `speculation` off gives plain target sampling on the same engine; `max_draft_len` caps the draft."""

    request_id: str
    input_ids: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    speculation: bool = True
    max_draft_len: int | None = None


@dataclass(frozen=True)
class KvCacheUse:
    """Cache of one request. Here it takes one preallocated slot, which is the block that is counted.

    Engines with a paged cache count its blocks; None where an engine does not tell.
    """

    reused_block: int | None = 0
    missed_block: int | None = 1
    alloc_new_blocks: int | None = 1
    alloc_total_blocks: int | None = 1
    hit_rate: float | None = 0.0


@dataclass
class Completion:
    """The end of a request: why it ended, what it cost, what speculation gave.

    Accepted draft tokens exclude the recovered or bonus token of each step. A step counts as a draft when the drafter
    proposed at least one token. Times are nanoseconds since the epoch. None stands for what an engine does not tell;
    ours tells everything.
    """

    finish_reason: FinishReason
    stop_reason: str | int | None
    num_input_tokens: int
    num_output_tokens: int
    cumulative_logprob: float | None
    num_drafts: int | None
    total_draft_tokens: int | None
    total_accepted_draft_tokens: int | None
    accepted_per_position: list[int] | None
    arrival_time_ns: int
    first_scheduled_time_ns: int | None
    first_token_time_ns: int
    last_token_time_ns: int
    kv_cache: KvCacheUse = KvCacheUse()

    @property
    def drafts(self) -> DraftCounts | None:
        """What drafts gave, to be added up; None where the engine does not tell what was drafted and accepted."""
        drafted, accepted = self.total_draft_tokens, self.total_accepted_draft_tokens
        per_pos = self.accepted_per_position
        if drafted is None or accepted is None:
            return None
        return DraftCounts(self.num_drafts, drafted, accepted, None if per_pos is None else list(per_pos))

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted; 0 where nothing was drafted."""
        return self.total_accepted_draft_tokens / self.total_draft_tokens if self.total_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / num_drafts: tokens per drafted step, with the token that ends it; None where not told."""
        if self.num_drafts is None:
            return None
        return 1.0 + (self.total_accepted_draft_tokens / self.num_drafts if self.num_drafts else 0.0)


@dataclass
class Chunk:
    """What one step adds to one request. Texts, ids, log-probabilities and origins are deltas.

    The last chunk carries `completion`, or `error` where the engine could not go on with this request.

    Attributes:
        token_origins: per token: `TARGET` where nothing was drafted at its place (plain decoding, and the bonus token
            after a draft that was accepted to its end), `ACCEPTED` for a draft token, `RECOVERED` where the draft was
            rejected. A step ends at each token that is not `ACCEPTED`. Empty from servers that do not tell.
        sequence_index: which of the `n` samples of one served request this is of; 0 where there is one.
    """

    request_id: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    completion: Completion | None = None
    error: TrtSpecError | None = None
    token_origins: list[int] = field(default_factory=list)
    sequence_index: int = 0

    @property
    def is_last(self) -> bool:
        return self.completion is not None or self.error is not None


@dataclass(frozen=True)
class Generation:
    """A finished request, all chunks joined."""

    text: str
    token_ids: list[int]
    logprobs: list[float] | None
    completion: Completion
    token_origins: list[int] = field(default_factory=list)


def join(chunks: Sequence[Chunk]) -> Generation:
    """Joins all chunks of one request; raises the request's own error where it failed."""
    last = chunks[-1]
    if last.error is not None:
        raise last.error
    has_logprobs = any(chunk.logprobs is not None for chunk in chunks)
    return Generation(
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token for chunk in chunks for token in chunk.token_ids],
        logprobs=[value for chunk in chunks for value in chunk.logprobs or ()] if has_logprobs else None,
        completion=last.completion,
        token_origins=[origin for chunk in chunks for origin in chunk.token_origins],
    )
