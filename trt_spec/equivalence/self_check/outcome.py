"""What the self-check found, for the certificate."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant or control of the self-check.

    Attributes:
        num_tokens: until it was caught, or all that were served.
        num_tokens_omnibus: the same by the omnibus alone; None where it did not catch it by then.
        bound: log(1/α)/KL, fewer tokens than which no test at α needs on average; None where it is not known.
        caught_by: the strongest bet, or the broken contract.
    """

    name: str
    is_control: bool
    is_caught: bool
    is_right: bool
    num_tokens: int
    num_tokens_omnibus: int | None
    bound: int | None
    caught_by: str | None


@dataclass(frozen=True)
class SelfCheck:
    """The verdict on the harness itself; ratios are tokens over bound, of mutants that have one."""

    is_right: bool
    num_mutants: int
    num_controls: int
    survivors: list[str]
    flagged: list[str]
    median_ratio: float | None
    median_ratio_omnibus: float | None
    num_omnibus: int
    num_bounded: int
    rows: list[Outcome]

    @classmethod
    def of(cls, rows: list[Outcome]) -> SelfCheck:
        bounded = [row for row in rows if row.bound and row.is_caught]
        ratios = [row.num_tokens / row.bound for row in bounded]
        omnibus = [row.num_tokens_omnibus / row.bound for row in bounded if row.num_tokens_omnibus]
        return cls(
            all(row.is_right for row in rows),
            sum(not row.is_control for row in rows),
            sum(row.is_control for row in rows),
            [row.name for row in rows if not row.is_control and not row.is_caught],
            [row.name for row in rows if row.is_control and row.is_caught],
            median(ratios) if ratios else None,
            median(omnibus) if omnibus else None,
            len(omnibus),
            len(ratios),
            rows,
        )
