"""What drafting gave, counted from committed tokens; and the engine's totals, for metrics, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class DraftCounts:
    """What drafts gave: one counter for a request, an engine, an arm of a measurement and a report.

    Attributes:
        num_drafts: steps of a sequence in which something was drafted.
        num_draft_tokens: tokens drafted in them.
        num_accepted_tokens: those of them that were committed; recovered and bonus tokens, and what a stop cut off, are
            none.
        num_accepted_tokens_per_pos: at i, drafts of which at least i + 1 tokens were committed.

    Ours are all told. Of another engine num_drafts and num_accepted_tokens_per_pos may be None, and so may their sums.
    """

    num_drafts: int | None = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] | None = field(default_factory=list)

    @classmethod
    def total(cls, counts: Iterable[DraftCounts]) -> DraftCounts:
        """The sum of several."""
        found = cls()
        for each in counts:
            found.add(each)
        return found

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """Counts one drafted step of one sequence."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        self._add_positions([1] * num_accepted)

    def add(self, other: DraftCounts) -> None:
        """Counts what another one counted, too."""
        if self.num_drafts is not None:
            self.num_drafts = None if other.num_drafts is None else self.num_drafts + other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        if other.num_accepted_tokens_per_pos is None:
            self.num_accepted_tokens_per_pos = None
        else:
            self._add_positions(other.num_accepted_tokens_per_pos)

    def _add_positions(self, counts: list[int]) -> None:
        per_pos = self.num_accepted_tokens_per_pos
        if per_pos is None:
            return
        per_pos.extend([0] * (len(counts) - len(per_pos)))
        for position, count in enumerate(counts):
            per_pos[position] += count

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None where nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens of a drafted step, with the one that ends it; None where nothing was drafted."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def rate_per_pos(self) -> list[float] | None:
        """At i, the share of drafts of which at least i + 1 tokens were committed; None where none was made or told."""
        if not self.num_drafts or self.num_accepted_tokens_per_pos is None:
            return None
        return [count / self.num_drafts for count in self.num_accepted_tokens_per_pos]


@dataclass
class EngineStats(DraftCounts):
    """Totals since the engine started. Drafter errors are what `DrafterGuard` caught."""

    num_steps: int = 0
    num_finished: int = 0
    num_cancelled: int = 0
    num_output_tokens: int = 0
    num_drafter_errors: int = 0
