"""Drafts from an engine of their own: the loop that asks the draft for tokens and the target to judge them. Pure.

Each round the draft continues the text so far by a few tokens, and the target, given them, returns those that it would
have generated itself and one more. So the output is the target's own, whatever the draft says.

TensorRT-LLM's own loop (tensorrt_llm_bls, lib/decode.py) sends the same seed every round, which repeats the same random
numbers; here every round has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np


@dataclass
class Rounds:
    """What came of it.

    Attributes:
        token_ids: the output, the id that ends it included where the engine returned it.
        num_draft_tokens, num_accepted_tokens: over all rounds; accepted ones exclude the target's own.
        num_drafts: rounds with a draft.
        draft_error: what the draft raised; the rounds after it have no draft.
    """

    token_ids: list[int] = field(default_factory=list)
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_drafts: int = 0
    draft_error: Exception | None = None

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted; 0 where nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0


def generate(
    prompt: Sequence[int],
    max_tokens: int,
    max_draft_len: int,
    draft: Callable[[list[int], int, int], list[int]],
    verify: Callable[[list[int], list[int], int], list[int]],
    end_id: int,
    stop_words: Sequence[Sequence[int]] = (),
    num_ids: int | None = None,
) -> Rounds:
    """Runs rounds until the output ends; from the first round in which `draft` raises on without drafts.

    Args:
        prompt: token ids.
        max_tokens: most tokens to generate.
        max_draft_len: most draft tokens a round.
        draft: (text so far, number of tokens, round) -> draft tokens, at most that many.
        verify: (text so far, draft tokens, round) -> the target's tokens, at most one more than the draft's.
        end_id: ends the output.
        stop_words: token sequences that end it.
        num_ids: ids of the target; a draft ends before one that the target lacks.
    """
    done = Rounds()
    for number in range(max_tokens):  # each round adds one token at least, or ends it
        text = [*prompt, *done.token_ids]
        room = max_tokens - len(done.token_ids)
        length = min(max_draft_len, room - 1)  # the target adds one of its own
        drafted: list[int] = []
        if length > 0 and done.draft_error is None:
            try:
                drafted = _known(draft(text, length, number)[:length], num_ids)
            except Exception as error:  # the target can do without, whatever it is
                done.draft_error = error
        added = verify(text, drafted, number)[: len(drafted) + 1]
        accepted = _common(drafted, added)
        if drafted:
            done.num_drafts += 1
            done.num_draft_tokens += len(drafted)
            done.num_accepted_tokens += accepted
        ended = _add(done.token_ids, added, end_id, stop_words)
        # Without a token of its own the target has ended: the end id, which some versions leave out.
        if ended or len(added) == accepted or len(done.token_ids) >= max_tokens:
            break
    return done


def _known(drafted: list[int], num_ids: int | None) -> list[int]:
    return drafted if num_ids is None else list(takewhile(lambda token: 0 <= token < num_ids, drafted))


def _common(drafted: Sequence[int], added: Sequence[int]) -> int:
    count = 0
    for one, other in zip(drafted, added, strict=False):
        if one != other:
            break
        count += 1
    return count


def _add(output: list[int], added: Sequence[int], end_id: int, stop_words: Sequence[Sequence[int]]) -> bool:
    """Adds tokens up to the one that ends the output; whether there was one."""
    for token in added:
        output.append(token)
        if token == end_id or any(output[-len(word) :] == list(word) for word in stop_words if word):
            return True
    return False


def round_seed(seed: int, number: int) -> int:
    """A seed for each round of a request, a 64-bit mix of its own seed and the round."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])
