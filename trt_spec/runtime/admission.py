"""What an engine is built for, and the refusal of requests that are too many or too large for it."""

from __future__ import annotations

from dataclasses import dataclass

from trt_spec.errors import OverloadedError, RequestError
from trt_spec.runtime.request import Request, bad_parameter

PROMPT_TOO_LONG = "prompt-too-long"  # the code of that refusal


@dataclass(frozen=True)
class EngineLimits:
    """Sizes of an engine.

    Lengths are tokens. `max_num_tokens` bounds the rows of one step, and so how large the chunks of a prompt are.
    `max_draft_len` is the depth of a draft, `max_total_draft_tokens` the nodes of its tree (0 for as many as the
    depth).
    """

    max_batch_size: int = 16
    max_seq_len: int = 2048
    max_num_tokens: int = 512
    max_queue_size: int = 256
    max_draft_len: int = 0
    max_total_draft_tokens: int = 0

    @property
    def rows_per_sequence(self) -> int:
        """Rows of a decoding sequence in one step, at most: its last token and its draft."""
        return 1 + max(self.max_total_draft_tokens, self.max_draft_len)

    @property
    def slot_len(self) -> int:
        """Cached tokens of one sequence, at most, draft included."""
        return self.max_seq_len + self.rows_per_sequence - 1

    @property
    def capacity(self) -> int:
        """Requests that may be in flight at once, running and queued."""
        return self.max_batch_size + self.max_queue_size

    def refuse_overload(self, num_in_flight: int, num_more: int = 1) -> None:
        """Refuses `num_more` requests that belong together where they would be too many.

        Raises:
            RequestError: they would be too many even for an engine with nothing else to do.
            OverloadedError: there is no room for all of them now.
        """
        if num_more > self.capacity:
            raise bad_parameter("n", num_more, f"at most {self.capacity} = build.max_batch_size + build.max_queue_size")
        if num_in_flight + num_more > self.capacity:
            raise OverloadedError(
                "the engine's queue is full",
                got=f"{num_in_flight} requests in flight",
                expected=f"at most build.max_batch_size + build.max_queue_size = {self.capacity}, new ones included",
                remedy="retry later, or raise build.max_queue_size",
            )

    def refuse_long_text(self, fewest_tokens: int) -> None:
        """Refuses a text that cannot fit into the context, before it takes seconds to encode.

        Args:
            fewest_tokens: see `Tokenizer.fewest_tokens`.

        Raises:
            RequestError: see above.
        """
        if fewest_tokens >= self.max_seq_len:
            raise self._too_long(f"at least {fewest_tokens} tokens")

    def check_prompt(self, request: Request, vocab_size: int) -> None:
        """Raises RequestError where a prompt does not fit the context, or an id of a request is not the target's."""
        num_tokens = len(request.input_ids)
        if num_tokens == 0:
            raise bad_parameter("input_ids", "no tokens", "at least one prompt token")
        if num_tokens >= self.max_seq_len:
            raise self._too_long(f"{num_tokens} tokens")
        for name, ids in (
            ("input_ids", request.input_ids),
            ("stop_token_ids", request.params.stop_token_ids),
            ("logit_bias", request.params.logit_bias),
        ):
            outside = [token for token in ids if not 0 <= token < vocab_size]
            if outside:
                raise bad_parameter(name, outside[:5], f"token ids from 0 to {vocab_size - 1}")

    def _too_long(self, got: str) -> RequestError:
        limit = self.max_seq_len
        return RequestError(
            "the prompt is longer than the context",
            where="input_ids",
            got=got,
            expected=f"at most {limit - 1}, so that one can be generated (build.max_seq_len = {limit})",
            remedy="shorten the prompt, or build the engine with a larger build.max_seq_len",
            code=PROMPT_TOO_LONG,
        )
