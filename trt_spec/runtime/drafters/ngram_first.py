"""N-gram drafts before a neural drafter's, where the text repeats itself for long enough.

A long match is right more often than any network and costs nothing to find; TensorRT-LLM's suffix-automaton
enhancement makes the same choice. Which drafter proposes depends on the committed tokens alone, so every rule stays
lossless.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from trt_spec.runtime.acceptance import Draft
from trt_spec.runtime.drafters.base import Drafter, WrappedDrafter
from trt_spec.runtime.drafters.ngram import NgramDrafter
from trt_spec.runtime.randomness import Randomness
from trt_spec.runtime.sequence import Sequence


class NgramFirstDrafter(WrappedDrafter):
    """Looks up first, and asks the neural drafter for the sequences where nothing was found."""

    def __init__(self, ngram: NgramDrafter, neural: Drafter):
        super().__init__(neural)
        self.ngram = ngram

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        drafts = self.ngram.propose(sequences, max_lens, source)
        missed = [index for index, draft in enumerate(drafts) if not len(draft.token_ids)]
        if missed:
            others = self.inner.propose([sequences[i] for i in missed], [max_lens[i] for i in missed], source)
            for index, draft in zip(missed, others, strict=True):
                drafts[index] = draft
        return drafts
