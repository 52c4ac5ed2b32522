"""Drafts from an engine of their own: the loop that asks the draft for tokens and the target to judge them.

Each round the draft continues the text so far by a few tokens, and the target, given them, returns those that it would
have generated itself and one more. So the output is the target's own, whatever the draft says.

TensorRT-LLM's own loop (tensorrt_llm_bls, lib/decode.py) sends the same seed every round, which repeats the same random
numbers; here every round has its own, see `served_request.seed_of`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from trt_spec.runtime.stats import DraftCounts
from trt_spec.triton.isolation import isolated


@dataclass
class Rounds(DraftCounts):
    """What came of it, and what was drafted and accepted in all rounds.

    Attributes:
        token_ids: the output, the id that ends it included where the engine returned it.
        draft_error: what the draft raised; the rounds after it have no draft.
    """

    token_ids: list[int] = field(default_factory=list)
    draft_error: Exception | None = None

    def go_on_without(self, error: Exception) -> list[int]:
        """No draft, and none in later rounds: the target can do without, whatever the error is."""
        self.draft_error = error
        return []


def generate(
    prompt: Sequence[int],
    max_tokens: int,
    max_draft_len: int,
    draft: Callable[[list[int], int, int], list[int]],
    verify: Callable[[list[int], list[int], int], list[int]],
    end_id: int,
    stop_words: Sequence[Sequence[int]] = (),
    num_ids: float = math.inf,
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
        length = min(max_draft_len, max_tokens - len(done.token_ids) - 1)  # the target adds one of its own
        drafted: list[int] = []
        if length > 0 and done.draft_error is None:
            found = isolated(functools.partial(draft, text, length, number), done.go_on_without)
            drafted = list(takewhile(lambda token: 0 <= token < num_ids, found[:length]))
        added = verify(text, drafted, number)[: len(drafted) + 1]
        accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafted, added, strict=False)))
        if drafted:
            done.count(len(drafted), accepted)
        ended = _add(done.token_ids, added, end_id, stop_words)
        # Without a token of its own the target has ended: the end id, which some versions leave out.
        if ended or len(added) == accepted or len(done.token_ids) >= max_tokens:
            break
    return done


def _add(output: list[int], added: Sequence[int], end_id: int, stop_words: Sequence[Sequence[int]]) -> bool:
    """Adds tokens up to the one that ends the output; whether there was one."""
    for token in added:
        output.append(token)
        if token == end_id or any(output[-len(word) :] == list(word) for word in stop_words if word):
            return True
    return False
