"""N-gram drafts before a neural drafter's, where the text repeats itself for long enough.

A long match is right more often than any network and costs nothing to find; TensorRT-LLM's suffix-automaton
enhancement makes the same choice. Which drafter proposes depends on the committed tokens alone, so every rule stays
lossless.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from trt_spec.runtime.acceptance import Draft, Verdict
from trt_spec.runtime.batch import Rows
from trt_spec.runtime.drafters.base import Drafter
from trt_spec.runtime.drafters.ngram import NgramDrafter
from trt_spec.runtime.models import Hidden
from trt_spec.runtime.randomness import Randomness
from trt_spec.runtime.sequence import Sequence


class NgramFirstDrafter(Drafter):
    """Looks up first, and asks `neural` for the sequences where nothing was found."""

    def __init__(self, ngram: NgramDrafter, neural: Drafter):
        self.ngram, self.neural = ngram, neural
        self.caches, self.capture, self.max_positions = neural.caches, neural.capture, neural.max_positions

    def observe(self, prompts: SequenceOf[tuple[Sequence, Rows]], hidden: Hidden) -> None:
        self.neural.observe(prompts, hidden)

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        drafts = self.ngram.propose(sequences, max_lens, source)
        missed = [index for index, draft in enumerate(drafts) if not len(draft.token_ids)]
        if missed:
            others = self.neural.propose([sequences[i] for i in missed], [max_lens[i] for i in missed], source)
            for index, draft in zip(missed, others, strict=True):
                drafts[index] = draft
        return drafts

    def commit(
        self,
        sequences: SequenceOf[Sequence],
        drafts: SequenceOf[Draft],
        verdicts: SequenceOf[Verdict],
        hidden: SequenceOf[Hidden],
    ) -> None:
        self.neural.commit(sequences, drafts, verdicts, hidden)

    def release(self, sequence: Sequence) -> None:
        self.ngram.release(sequence)
        self.neural.release(sequence)

    def snapshot(self, sequence: Sequence) -> object:
        return self.neural.snapshot(sequence)

    def restore(self, sequence: Sequence, snapshot: object) -> None:
        self.neural.restore(sequence, snapshot)
