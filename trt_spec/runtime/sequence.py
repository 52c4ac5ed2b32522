"""One request in flight: its tokens, where they are cached, and when it is done."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import torch

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.runtime.detokenizer import Detokenizer
from trt_spec.runtime.draft_lengths import Acceptance
from trt_spec.runtime.randomness import Randomness, Stream
from trt_spec.runtime.request import ACCEPTED, Chunk, Completion, FinishReason, Request
from trt_spec.runtime.sampling import History, LogitsProcessor
from trt_spec.runtime.stats import DraftCounts


class Sequence:
    """Tokens of one request: the prompt, then the output.

    Between steps `token_ids[num_cached_tokens:]` are committed but not in the target's cache: the rest of the prompt
    during prefill, exactly one token while decoding. `num_draft_cached_tokens` is the same count for the drafter's
    own cache.
    """

    def __init__(
        self,
        request: Request,
        processor: LogitsProcessor,
        *,
        eos_token_ids: Iterable[int],
        max_seq_len: int,
        detokenizer: Detokenizer | None,
        history: History | None,
    ):
        self.request, self.processor, self.detokenizer, self.history = request, processor, detokenizer, history
        self.token_ids = list(request.input_ids)
        self.num_prompt_tokens = len(request.input_ids)
        self.max_num_tokens = min(max_seq_len, self.num_prompt_tokens + request.params.max_tokens)
        self.slot = -1
        self.num_cached_tokens = 0
        self.num_draft_cached_tokens = 0
        self.seed = secrets.randbits(64) if request.params.seed is None else request.params.seed
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.cumulative_logprob = 0.0
        self.acceptance = Acceptance()
        self.drafts = DraftCounts()
        self.is_drafting_over = False  # the drafter raised for this request and has forgotten it
        self.arrival_time_ns = time.time_ns()
        self.first_scheduled_time_ns = self.first_token_time_ns = self.last_token_time_ns = 0
        self._eos = frozenset() if request.params.ignore_eos else frozenset(eos_token_ids)
        self._stop_ids = frozenset(request.params.stop_token_ids)

    @classmethod
    def of(
        cls,
        request: Request,
        *,
        eos_token_ids: Iterable[int],
        max_seq_len: int,
        num_valid_tokens: int,
        vocab_size: int,
        device: torch.device,
        tokenizer: Tokenizer | None,
    ) -> Sequence:
        """The sequence of a request that was admitted."""
        params = request.params
        eos = () if params.ignore_eos else tuple(eos_token_ids)
        processor = LogitsProcessor(params, num_valid_tokens, (*eos, *params.stop_token_ids))
        return cls(
            request,
            processor,
            eos_token_ids=eos,
            max_seq_len=max_seq_len,
            detokenizer=Detokenizer(tokenizer, params.stop) if tokenizer else None,
            history=History.of(request.input_ids, vocab_size, device) if processor.needs_history() else None,
        )

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Committed tokens that the target has not seen yet."""
        return len(self.token_ids) - self.num_cached_tokens

    @property
    def is_decoding(self) -> bool:
        """The prompt is cached and the first output token is there."""
        return self.num_output_tokens > 0

    @property
    def speculates(self) -> bool:
        """Whether this request may be drafted for, now or later."""
        return self.request.speculation and self.request.max_draft_len != 0 and not self.is_drafting_over

    @property
    def room(self) -> int:
        """Tokens that may still be generated, by max_tokens and by the context limit."""
        return self.max_num_tokens - len(self.token_ids)

    def draft_room(self, max_draft_len: int, max_positions: int | None) -> int:
        """Depth that may be drafted: never past max_tokens, the context or the drafter's own positions."""
        if not self.speculates:
            return 0
        limit = max_draft_len if self.request.max_draft_len is None else self.request.max_draft_len
        length = min(limit, self.room - 1)
        if max_positions is not None:
            length = min(length, max_positions - len(self.token_ids))
        return max(length, 0)

    def stream(self, source: Randomness) -> Stream:
        return Stream(source, self.seed, len(self.token_ids))

    def append(
        self, token_ids: SequenceOf[int], logprobs: SequenceOf[float] | None, last_origin: int, num_drafted: int = 0
    ) -> Chunk:
        """Commits the tokens of one step, cut where plain decoding would end: EOS, stop id, stop string or limit.

        All tokens but the last are accepted drafts; `last_origin` is where the last one came from, see `Chunk`. Of the
        `num_drafted` tokens of the step those count as accepted that are committed.
        """
        chunk = Chunk(self.request.request_id, logprobs=None if logprobs is None else [])
        for index, token in enumerate(token_ids):
            self.token_ids.append(token)
            chunk.token_ids.append(token)
            chunk.token_origins.append(ACCEPTED if index + 1 < len(token_ids) else last_origin)
            if logprobs is not None:
                chunk.logprobs.append(logprobs[index])
                self.cumulative_logprob += logprobs[index]
            chunk.text += self._finish_at(token)
            if self.finish_reason is not None:
                break
        if num_drafted:
            self.drafts.count(num_drafted, chunk.token_origins.count(ACCEPTED))
        if self.history is not None:
            self.history.add(chunk.token_ids)
        self.last_token_time_ns = time.time_ns()
        self.first_token_time_ns = self.first_token_time_ns or self.last_token_time_ns
        if self.finish_reason is not None:
            self._close(chunk)
        return chunk

    def _finish_at(self, token: int) -> str:
        """Sets the finish reason if `token` ends the output; returns the text that may be shown."""
        text, stop = "", None
        if self.detokenizer is not None:
            check_stop = self.num_output_tokens >= self.request.params.min_tokens
            text, stop, _ = self.detokenizer.push([token], check_stop)
        if token in self._eos:
            self.finish_reason = "eos"
        elif token in self._stop_ids:
            self.finish_reason, self.stop_reason = "stop", token
        elif stop is not None:
            self.finish_reason, self.stop_reason = "stop", stop
        elif self.room <= 0:
            self.finish_reason = "length"
        return text

    def cancel(self) -> Chunk:
        """Ends the request where it is; what was generated stays counted."""
        chunk = Chunk(self.request.request_id, logprobs=[] if self.request.params.logprobs else None)
        self.finish(chunk, "cancelled")
        return chunk

    def finish(self, chunk: Chunk, reason: FinishReason) -> None:
        """Ends the request with this chunk, for a reason that its tokens do not show."""
        self.finish_reason = reason
        self._close(chunk)

    def _close(self, chunk: Chunk) -> None:
        if self.detokenizer is not None:
            chunk.text += self.detokenizer.finish()
        now = time.time_ns()
        chunk.completion = Completion(
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            num_input_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            cumulative_logprob=self.cumulative_logprob if self.request.params.logprobs else None,
            num_drafts=self.drafts.num_drafts,
            total_draft_tokens=self.drafts.num_draft_tokens,
            total_accepted_draft_tokens=self.drafts.num_accepted_tokens,
            accepted_per_position=list(self.drafts.num_accepted_tokens_per_pos),
            arrival_time_ns=self.arrival_time_ns,
            first_scheduled_time_ns=self.first_scheduled_time_ns or now,
            first_token_time_ns=self.first_token_time_ns or now,
            last_token_time_ns=self.last_token_time_ns or now,
        )
