"""The contract of a drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf

from trt_spec.runtime.acceptance import Draft, Verdict
from trt_spec.runtime.batch import Rows
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.models import Hidden
from trt_spec.runtime.randomness import Randomness
from trt_spec.runtime.sequence import Sequence


class Drafter(ABC):  # the empty methods are for drafters that keep nothing between steps
    """Proposes tokens for running sequences and keeps its own state, where it has any, in step with the target's.

    Attributes:
        caches: KV caches with the target's slots; the engine moves their rows together with the target's.
        capture: target layers whose hidden states `observe` wants, see `Model.forward`.
        max_positions: longest sequence that the drafter can follow; None is unlimited.
    """

    caches: SequenceOf[KVCache] = ()
    capture: tuple[int, ...] = ()
    max_positions: int | None = None

    def observe(self, prompts: SequenceOf[tuple[Sequence, Rows]], hidden: Hidden) -> None:
        """Prompt chunks that the target has just processed. `hidden` holds their rows, packed in the same order."""

    def within(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int]) -> list[int]:
        """The depths that `propose` could reach, as far as that is known before it is paid for; at most `max_lens`."""
        return list(max_lens)

    @abstractmethod
    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        """One draft per sequence, of depth at most its entry of `max_lens` (at least 1)."""

    def commit(
        self,
        sequences: SequenceOf[Sequence],
        drafts: SequenceOf[Draft],
        verdicts: SequenceOf[Verdict],
        hidden: SequenceOf[Hidden],
    ) -> None:
        """What was decided for every sequence of the step, drafted or not, told before its tokens are appended.

        `hidden[i]` has the rows of sequence i: the last committed token, then the nodes of its draft.
        """

    def release(self, sequence: Sequence) -> None:
        """The sequence is gone, or is not drafted for any more."""

    def snapshot(self, sequence: Sequence) -> object:
        """What is kept of a sequence between calls, for `restore`. No tensor in it is ever written to."""
        return sequence.num_draft_cached_tokens

    def restore(self, sequence: Sequence, snapshot: object) -> None:
        """Takes back what a call that raised has changed. Rows of a cache are left: they are written again."""
        sequence.num_draft_cached_tokens = snapshot
