"""Draft trees as parent lists, and the masks and positions that one packed forward needs. A chain is a tree.

Nodes are numbered in draft order, parents before children; parent −1 is the last committed token (the root row).
Source: tree attention of SpecInfer (Miao et al. 2023) and Medusa (Cai et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence


def is_chain(parents: Sequence[int]) -> bool:
    """Whether every node has at most one child, in draft order."""
    return all(parent == index - 1 for index, parent in enumerate(parents))


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of each node; children of the root have depth 0."""
    result: list[int] = []
    for parent in parents:
        result.append(0 if parent < 0 else result[parent] + 1)
    return result


def ancestors(parents: Sequence[int], node: int) -> list[int]:
    """Nodes from the first level down to `node` itself; empty for the root (−1)."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def children(parents: Sequence[int]) -> dict[int, list[int]]:
    """Children of each node that has any, in draft order, keyed by node (−1 for the root)."""
    result: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        result.setdefault(parent, []).append(node)
    return result
