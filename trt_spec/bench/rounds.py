"""Arms in turns: the one loop of every comparison.

In each round every arm gets every item; the order of the arms is reversed from round to round (A B, B A, A B, ...), so
that a drift of the machine falls on all of them. The first rounds warm up and are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[[float], None]


@dataclass(frozen=True)
class Turn(Generic[Item, Result]):
    """One turn of one arm.

    Attributes:
        round: 0 for the first that counts; below 0 for those that warm up.
        result: what the arm returned.
    """

    round: int
    arm: str
    item: Item
    result: Result


def turns(
    arms: Mapping[str, Callable[[Item], Result]],
    items: Sequence[Item],
    *,
    num_rounds: int,
    num_warm_up: int = 1,
    advance: Advance = lambda part: None,
) -> Iterator[Turn[Item, Result]]:
    """Runs all turns, those that warm up included; `by_arm` leaves these out.

    Args:
        arms: by name; each is called with one item.
        num_rounds: rounds that count.
        advance: called with the part done, 0 to 1, after each round.
    """
    for index in range(num_warm_up + num_rounds):
        for item in items:
            for name in list(arms) if index % 2 == 0 else reversed(list(arms)):
                yield Turn(index - num_warm_up, name, item, arms[name](item))
        advance((index + 1) / (num_warm_up + num_rounds))


def by_arm(found: Iterator[Turn[Item, Result]]) -> dict[str, list[Turn[Item, Result]]]:
    """The turns that count, by arm, in the order of time."""
    arms: dict[str, list[Turn[Item, Result]]] = {}
    for turn in found:
        if turn.round >= 0:
            arms.setdefault(turn.arm, []).append(turn)
    return arms
