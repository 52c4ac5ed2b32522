"""Counters of the engine, for metrics, benchmarks and tests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class EngineStats:
    """Totals since the engine started. Accepted tokens exclude recovered and bonus tokens."""

    num_steps: int = 0
    num_finished: int = 0
    num_cancelled: int = 0
    num_output_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)

    def count_step(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Counts one drafted step of one sequence."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        count_positions(self.num_accepted_tokens_per_pos, num_accepted_tokens)


def count_positions(per_position: list[int], num_accepted_tokens: int) -> None:
    """Adds one accepted token to each of the first `num_accepted_tokens` positions, growing the list as needed."""
    per_position.extend([0] * (num_accepted_tokens - len(per_position)))
    for position in range(num_accepted_tokens):
        per_position[position] += 1
