"""One request in flight: its tokens, where they are cached, and when it is done."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Any

from trt_spec.runtime.acceptance import Draft
from trt_spec.runtime.batch import Rows
from trt_spec.runtime.detokenizer import Detokenizer
from trt_spec.runtime.draft_lengths import Acceptance
from trt_spec.runtime.randomness import Randomness, Stream
from trt_spec.runtime.request import ACCEPTED, Chunk, Completion, FinishReason, Request
from trt_spec.runtime.sampling import History, LogitsProcessor
from trt_spec.runtime.stats import DraftCounts


class Sequence:
    """Tokens of one request: the prompt, then the output.

    Between steps `token_ids[num_cached_tokens:]` are committed but not in the target's cache: the rest of the prompt
    during prefill, exactly one token while decoding.
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
        self.drafter_states: dict[object, Any] = {}  # what drafters keep of it; they replace a value, never write to it
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

    def next_rows(self, num_tokens: int, draft: Draft | None = None) -> Rows:
        """The next committed tokens that are not cached, then the nodes of a draft."""
        tokens = self.token_ids[self.num_cached_tokens : self.num_cached_tokens + num_tokens]
        drafted, parents = ([], []) if draft is None else (draft.token_ids.tolist(), draft.parents.tolist())
        return Rows(self.slot, self.num_cached_tokens, tokens + drafted, parents)

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
            text, stop = self.detokenizer.push(token, check_stop)
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
