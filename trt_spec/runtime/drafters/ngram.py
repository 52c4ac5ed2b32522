"""Drafting by lookup: what followed the current n-gram the last time it occurred in this request.

Source: prompt lookup decoding (Saxena 2023). Deterministic, so a draft token x is accepted with the target's own p(x).
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from trt_spec.runtime.acceptance import Draft
from trt_spec.runtime.drafters.base import Drafter
from trt_spec.runtime.drafters.inputs import DrafterInputs
from trt_spec.runtime.randomness import Randomness
from trt_spec.runtime.sequence import Sequence


class NgramIndex:
    """Where each n-gram of one growing token list was last followed by something: a dict entry per token and size."""

    def __init__(self, min_ngram: int, max_ngram: int):
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        self._next_position: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0  # n-grams ending before this position are in the index

    def lookup(self, tokens: SequenceOf[int], length: int) -> list[int]:
        """Up to `length` tokens that followed the longest known suffix of `tokens`; empty where no suffix is known.

        A match that runs into the end goes on with its own continuation, so a loop is followed for any length.
        """
        position = self.match(tokens)
        if position is None:
            return []
        period = len(tokens) - position
        return [tokens[position + offset % period] for offset in range(length)]

    def match(self, tokens: SequenceOf[int]) -> int | None:
        """Position of the token that followed the longest known suffix of `tokens`; None where no suffix is known."""
        self._index(tokens)
        for size in self.sizes:
            position = self._next_position.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if position is not None:
                return position
        return None

    def _index(self, tokens: SequenceOf[int]) -> None:
        """Indexes every n-gram that already has a token after it; the current suffix has none yet."""
        for end in range(max(self._num_indexed, 1), len(tokens)):
            for size in self.sizes:
                if size <= end:
                    self._next_position[tuple(tokens[end - size : end])] = end
        self._num_indexed = len(tokens)


class NgramDrafter(Drafter):
    """Prompt and output lookup, one index per request."""

    def __init__(self, min_ngram: int, max_ngram: int):
        self.min_ngram, self.max_ngram = min_ngram, max_ngram

    def reachable_lengths(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int]) -> list[int]:
        """0 where nothing is found."""
        return [
            0 if self._index_of(sequence).match(sequence.token_ids) is None else length
            for sequence, length in zip(sequences, max_lens, strict=True)
        ]

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        return [
            Draft.chain(self._index_of(sequence).lookup(sequence.token_ids, length))
            for sequence, length in zip(sequences, max_lens, strict=True)
        ]

    def _index_of(self, sequence: Sequence) -> NgramIndex:
        return sequence.drafter_states.setdefault(self, NgramIndex(self.min_ngram, self.max_ngram))


def make(inputs: DrafterInputs) -> NgramDrafter:
    """Lookup by the section `speculation.ngram`."""
    ngram = inputs.speculation.ngram
    return NgramDrafter(ngram.min_ngram, ngram.max_ngram)
