"""Arms in turns: the one loop of every comparison.

In each round every arm gets every item, in the order of `in_turn`. The first rounds warm up and are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Arm = TypeVar("Arm", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[[float], None]  # called with the part done, 0 to 1


@dataclass(frozen=True)
class Turn(Generic[Arm, Item, Result]):
    """One call of one arm.

    Attributes:
        round: 0 for the first that counts; below 0 for those that warm up.
        result: what the arm returned.
        seconds: how long it took.
    """

    round: int
    arm: Arm
    item: Item
    result: Result
    seconds: float


def in_turn(arms: Iterable[Arm], index: int) -> list[Arm]:
    """The order of the arms in a round: A B, B A, B A, A B, and so on, so that a drift of the machine falls on all."""
    return list(arms) if index % 4 in (0, 3) else list(arms)[::-1]


def turns(
    arms: Mapping[Arm, Callable[[Item], Result]],
    items: Sequence[Item],
    *,
    num_rounds: int,
    num_warm_up: int = 1,
    num_calls: int = 1,
    now: Callable[[], float] = time.perf_counter,
    advance: Advance = lambda part: None,
) -> Iterator[Turn[Arm, Item, Result]]:
    """Runs all turns, those that warm up included; `by_arm` leaves these out.

    Args:
        arms: by name; each is called with one item.
        num_rounds: rounds that count.
        num_calls: calls in a row; of several the first, which comes after another arm, warms up.
        now: the clock, in seconds.
        advance: called after each round.
    """
    for index in range(num_warm_up + num_rounds):
        for item in items:
            for arm in in_turn(arms, index):
                for call in range(num_calls):
                    started = now()
                    result = arms[arm](item)
                    seconds = now() - started
                    is_counted = call > 0 or num_calls == 1
                    yield Turn(index - num_warm_up if is_counted else -1, arm, item, result, seconds)
        advance((index + 1) / (num_warm_up + num_rounds))


def by_arm(found: Iterable[Turn[Arm, Item, Result]]) -> dict[Arm, list[Turn[Arm, Item, Result]]]:
    """The turns that count, by arm: arms as they were given, turns in the order of time."""
    arms: dict[Arm, list[Turn[Arm, Item, Result]]] = {}
    for turn in found:
        of_arm = arms.setdefault(turn.arm, [])
        if turn.round >= 0:
            of_arm.append(turn)
    return arms


def results(found: Iterable[Turn[Arm, Item, Result]]) -> dict[Arm, list[Result]]:
    """What arms returned in the turns that count; ordered as `by_arm`."""
    return {arm: [turn.result for turn in of_arm] for arm, of_arm in by_arm(found).items()}
