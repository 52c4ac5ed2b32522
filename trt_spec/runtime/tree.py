"""Draft trees: which node follows which, and the masks and positions that one packed forward needs. A chain is a tree.

Nodes are numbered in draft order, parents before children; parent −1 is the last committed token (the root).
Source: tree attention of SpecInfer (Miao et al. 2023) and Medusa (Cai et al. 2024).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trt_spec.errors import ConfigError

ROOT = -1


@dataclass(frozen=True)
class DraftTree:
    """A tree of T draft nodes; `parents[i]` is below i."""

    parents: tuple[int, ...]

    @classmethod
    def of(cls, parents: Iterable[int] | Tensor) -> DraftTree:
        return cls(tuple(parents.tolist() if isinstance(parents, Tensor) else parents))

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def is_chain(self) -> bool:
        """Whether every node follows the one before it."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; children of the root have depth 0."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Children of each node that has any, in draft order, keyed by node (−1 for the root)."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(node)
        return children

    def path(self, node: int) -> list[int]:
        """Nodes from the first level down to `node` itself; empty for the root."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def mask(self) -> Tensor:
        """[T, T] bool: whether the row's node sees the column's, which is so for itself and its ancestors."""
        mask = torch.eye(len(self), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                mask[node] |= mask[parent]
        return mask


def tree_of_choices(choices: Sequence[Sequence[int]]) -> tuple[DraftTree, tuple[int, ...]]:
    """The static tree of `medusa_choices` or `eagle_choices`: each choice is a path of ranks from the root.

    [[0], [1], [0, 0]] has the two likeliest first tokens, and the likeliest second token after the first of them.

    Returns:
        The tree in order of depth, then of rank; and each node's own rank among its siblings by likelihood.

    Raises:
        ConfigError: an empty or repeated choice, a negative rank, or a choice whose beginning is not a choice.
    """
    ordered = sorted((tuple(choice) for choice in choices), key=lambda choice: (len(choice), choice))
    index = {choice: node for node, choice in enumerate(ordered)}
    problem = None
    if len(index) < len(ordered):
        problem = "a choice is there twice"
    elif any(not choice or min(choice) < 0 for choice in ordered):
        problem = "a choice is empty or has a negative rank"
    orphans = [choice for choice in ordered if len(choice) > 1 and choice[:-1] not in index]
    if problem or orphans:
        raise ConfigError(
            problem or "a choice lacks its beginning",
            where="speculation.tree.choices",
            got=[list(choice) for choice in (orphans or ordered)[:5]],
            expected="distinct paths of ranks, each with all its beginnings",
        )
    parents = tuple(index[choice[:-1]] if len(choice) > 1 else ROOT for choice in ordered)
    return DraftTree(parents), tuple(choice[-1] for choice in ordered)
