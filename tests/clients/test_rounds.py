"""Arms in turns: their order, what counts, and what is told of each call."""

from __future__ import annotations

import itertools

from trt_spec.clients.rounds import by_arm, in_turn, results, turns


def test_every_arm_gets_every_item_and_the_order_turns_round():
    log, parts = [], []
    arms = {name: lambda item, name=name: log.append(name + item) or name + item for name in "ab"}
    found = by_arm(turns(arms, ["1", "2"], num_rounds=2, advance=parts.append))
    assert log == ["a1", "b1", "a2", "b2", "b1", "a1", "b2", "a2", "b1", "a1", "b2", "a2"]
    assert ["".join(in_turn("ab", index)) for index in range(6)] == ["ab", "ba", "ba", "ab", "ab", "ba"]
    assert list(found) == ["a", "b"]  # as they were given, whichever came first in the rounds that count
    assert {arm: [(turn.round, turn.result) for turn in of_arm] for arm, of_arm in found.items()} == {
        "b": [(0, "b1"), (0, "b2"), (1, "b1"), (1, "b2")],
        "a": [(0, "a1"), (0, "a2"), (1, "a1"), (1, "a2")],
    }
    assert parts == [1 / 3, 2 / 3, 1]


def test_of_several_calls_the_first_is_not_counted():
    count = itertools.count()
    found = results(turns({"a": lambda item: next(count)}, [None], num_rounds=2, num_warm_up=1, num_calls=3))
    assert found == {"a": [4, 5, 7, 8]}


def test_seconds_are_those_of_the_call_alone():
    clock = itertools.count()  # it goes on by one each time it is read, and by two more in the call
    arms = {1: lambda item: [next(clock), next(clock)]}
    for turn in turns(arms, [None], num_rounds=2, num_warm_up=0, now=lambda: float(next(clock))):
        next(clock)
        assert (turn.arm, turn.seconds) == (1, 3.0)
