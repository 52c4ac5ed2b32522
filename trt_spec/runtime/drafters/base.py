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
    """Proposes tokens for running sequences.

    What it keeps of a sequence between calls lies in the caches and in `Sequence.drafter_states`, nowhere else: so it
    goes with the sequence, and can be taken back where a call raises.

    Attributes:
        caches: KV caches with the target's slots; the engine moves their rows together with the target's.
        capture: target layers whose hidden states `prefill` wants, see `Model.forward`.
        max_positions: longest sequence that the drafter can follow; None is unlimited.
    """

    caches: SequenceOf[KVCache] = ()
    capture: tuple[int, ...] = ()
    max_positions: int | None = None

    def prefill(self, prompts: SequenceOf[tuple[Sequence, Rows]], hidden: Hidden) -> None:
        """Prompt chunks that the target has just processed. `hidden` holds their rows, packed in the same order."""

    def reachable_lengths(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int]) -> list[int]:
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


class WrappedDrafter(Drafter):
    """Another drafter, which hears and keeps what it would alone; a subclass changes what is proposed."""

    def __init__(self, inner: Drafter):
        self.inner = inner
        self.caches, self.capture, self.max_positions = inner.caches, inner.capture, inner.max_positions

    def prefill(self, prompts: SequenceOf[tuple[Sequence, Rows]], hidden: Hidden) -> None:
        self.inner.prefill(prompts, hidden)

    def commit(
        self,
        sequences: SequenceOf[Sequence],
        drafts: SequenceOf[Draft],
        verdicts: SequenceOf[Verdict],
        hidden: SequenceOf[Hidden],
    ) -> None:
        self.inner.commit(sequences, drafts, verdicts, hidden)
