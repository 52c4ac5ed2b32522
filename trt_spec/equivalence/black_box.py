"""Two servers of which only tokens come back: do they serve one law?

Outputs of both are compared cell by cell, where a cell is a token in its context: the exact prefix near the start of
the output (the first positions after the prefill are where verification first matters), the previous token later on.
The statistic sums (a − b)²/(a + b) over cells, after scaling to equal numbers of outputs. It is calibrated by
exchanging whole outputs between the servers within each prompt, which is exact for any dependence inside an output.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PREFIX_DEPTH = 3  # positions whose cell is the whole prefix; further on it is the token before
NUM_PERMUTATIONS = 999


@dataclass(frozen=True)
class Comparison:
    """What two servers showed.

    Attributes:
        pvalue: (1 + permutations at least as extreme) / (1 + permutations); at most α with probability α under the
            null, for every α that is a multiple of 1/(1 + permutations).
        worst: cells by their part of the statistic: (prompt, context, token, count of one, count of the other).
    """

    pvalue: float
    statistic: float
    num_outputs: int
    num_tokens: int
    worst: list[tuple[Hashable, tuple[int, ...], int, int, int]]


def compare(
    one: Sequence[tuple[Hashable, Sequence[int]]],
    other: Sequence[tuple[Hashable, Sequence[int]]],
    *,
    seed: int = 0,
    num_permutations: int = NUM_PERMUTATIONS,
) -> Comparison:
    """Compares outputs of two servers.

    Args:
        one, other: (prompt, output ids) per request; the same prompts on both sides, seeds of their own.

    Raises:
        ValueError: a prompt was sent to one of the two only.
    """
    prompts = [prompt for prompt, _ in (*one, *other)]
    if {prompt for prompt, _ in one} != {prompt for prompt, _ in other}:
        raise ValueError("both servers need outputs for the same prompts")
    cells: dict[tuple[Hashable, tuple[int, ...], int], int] = {}
    rows, columns = [], []
    for index, (prompt, tokens) in enumerate((*one, *other)):
        for position, token in enumerate(tokens):
            context = tuple(tokens[:position]) if position < PREFIX_DEPTH else (-1, tokens[position - 1])
            key = (prompt if position < PREFIX_DEPTH else None, context, token)
            rows.append(index)
            columns.append(cells.setdefault(key, len(cells)))
    in_one = np.arange(len(prompts)) < len(one)
    row, column = np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)
    total = np.bincount(column, minlength=len(cells)).astype(np.float64)
    scale = len(one) / len(prompts)

    def parts(members: NDArray[np.bool_]) -> NDArray[np.float64]:
        count = np.bincount(column, weights=members[row], minlength=len(cells))
        return (count - scale * total) ** 2 / total

    seen = parts(in_one)
    groups = [np.flatnonzero([prompt == wanted for prompt in prompts]) for wanted in dict.fromkeys(prompts)]
    generator, at_least = np.random.default_rng(seed), 0
    for _ in range(num_permutations):
        shuffled = in_one.copy()
        for members in groups:
            shuffled[members] = in_one[generator.permutation(members)]
        at_least += parts(shuffled).sum() >= seen.sum() * (1 - 1e-12)
    count = np.bincount(column, weights=in_one[row], minlength=len(cells)).astype(int)
    keys = list(cells)
    worst = [(*keys[cell], int(count[cell]), int(total[cell] - count[cell])) for cell in np.argsort(-seen)[:5]]
    return Comparison((1 + at_least) / (1 + num_permutations), float(seen.sum()), len(prompts), len(rows), worst)
