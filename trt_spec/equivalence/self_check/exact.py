"""The exact law of production code: every random outcome walked, with its weight, and no sampling noise.

Drafting and acceptance take all their randomness from `choose` and `flip`. Here both are answered by a script that is
replayed until each outcome has been seen once, so the law under test is the law of the code that serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from torch import Tensor

from trt_spec.runtime.randomness import Draw

Outcome = TypeVar("Outcome")


class ReusedRandomness(AssertionError):
    """Two decisions of one run asked for the random number of the same key."""


class _Walk:
    """A `Randomness` that follows a script of branches, and the first open branch beyond it."""

    def __init__(self, script: list[int]):
        self.script, self.weight = script, 1.0
        self.num_branches: list[int] = []
        self._keys: set[Draw] = set()
        self.reused: Draw | None = None  # an engine does not pass on what its drafter raises

    def choose(self, probs: Tensor, draws: Sequence[Draw]) -> list[int]:
        return [self._branch(list(enumerate(row)), draw) for row, draw in zip(probs.tolist(), draws, strict=True)]

    def flip(self, probs: Sequence[float], draws: Sequence[Draw]) -> list[bool]:
        sure = [min(max(prob, 0.0), 1.0) for prob in probs]
        return [self._branch([(True, p), (False, 1 - p)], draw) for p, draw in zip(sure, draws, strict=True)]

    def _branch(self, options: Iterable[tuple[Outcome, float]], draw: Draw) -> Outcome:
        if draw in self._keys:
            self.reused = draw
            raise ReusedRandomness(str(draw))
        self._keys.add(draw)
        open_options = [(value, weight) for value, weight in options if weight > 0]
        total = sum(weight for _, weight in open_options)
        depth = len(self.num_branches)
        if depth == len(self.script):
            self.script.append(0)
        self.num_branches.append(len(open_options))
        value, weight = open_options[self.script[depth]]
        self.weight *= weight / total
        return value


def outcomes(run: Callable[[_Walk], Outcome]) -> Iterator[tuple[float, Outcome]]:
    """Every outcome of `run(source)` with its probability, depth first.

    Args:
        run: deterministic but for `source`, a `Randomness`; called once per outcome.

    Raises:
        ReusedRandomness: one run used a random number twice, which no marginal law could show.
    """
    script: list[int] = []
    while True:
        walk = _Walk(script)
        result = run(walk)
        if walk.reused is not None:
            raise ReusedRandomness(str(walk.reused))
        yield walk.weight, result
        script = script[: len(walk.num_branches)]
        while script and script[-1] + 1 == walk.num_branches[len(script) - 1]:
            script.pop()
        if not script:
            return
        script[-1] += 1
