"""Shapes of drafts: a chain, a static tree of ranks, or a dynamic tree of the likeliest paths.

A drafter that predicts one token at a time asks a draft shape, level by level, which nodes to add and which of them to
feed next. Shapes know nothing of models; drafters know nothing of shapes.
Sources: Medusa's and EAGLE-1's static trees, EAGLE-2's dynamic tree (Li et al. 2024), sampling trees of SpecInfer
(Miao et al. 2023).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from trt_spec.runtime.acceptance import Draft
from trt_spec.runtime.batch import Rows
from trt_spec.runtime.randomness import Randomness, Role, Stream
from trt_spec.runtime.sampling import has_choice, logits_to_probs
from trt_spec.runtime.sequence import Sequence
from trt_spec.runtime.tree import ROOT, tree_of_choices

Siblings = Literal["top", "without_replacement", "with_replacement"]


@dataclass
class GrowingTree:
    """The draft of one sequence while it grows.

    Attributes:
        max_depth: levels that it may have, at least 1.
        tokens, parents, probs: one entry per node; probs [V] where the token was drawn from them, else None.
        frontier: nodes whose next token is wanted now; the root (−1) at first.
        fed: nodes whose rows the drafter has been asked to run, in that order. Nodes without children are never fed.
        outputs: what the drafter's network gave at them, where the drafter needs it again.
    """

    sequence: Sequence
    max_depth: int
    stream: Stream
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[Tensor | None] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    ranks: list[tuple[int, ...]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    frontier: list[int] = field(default_factory=lambda: [ROOT])
    fed: list[int] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def add(self, parent: int, token: int, probs: Tensor | None = None, *, rank: int = 0, value: float = 0.0) -> int:
        """Adds a node; `value` is its log-probability given its parent."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.probs.append(probs)
        self.depths.append(0 if parent == ROOT else self.depths[parent] + 1)
        self.ranks.append((*(() if parent == ROOT else self.ranks[parent]), rank))
        self.values.append(value + (0.0 if parent == ROOT else self.values[parent]))
        return len(self.tokens) - 1

    def feed(self, nodes: Iterable[int]) -> None:
        """Makes those of `nodes` the next frontier that may have children."""
        self.frontier = [node for node in nodes if self.depths[node] + 1 < self.max_depth]
        self.fed += self.frontier

    def rows(self, start: int) -> Rows:
        """The frontier as rows of a forward whose first `start` rows are cached."""
        index = {node: place for place, node in enumerate(self.fed)}
        parents = [index.get(self.parents[node], ROOT) for node in self.fed]
        tokens = [self.tokens[node] for node in self.frontier]
        return Rows(self.sequence.slot, start, tokens, parents, len(self.fed) - len(self.frontier))

    def drafted_before(self, node: int) -> list[int]:
        """Draft tokens on the path to a node, the node's own included."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def process(self, logits: Tensor) -> Tensor:
        """The request's penalties, bias and masks on the logits [F, V] of the frontier; never in place."""
        processor, num_output = self.sequence.processor, self.sequence.num_output_tokens
        if processor.is_identity(logits.shape[-1], num_output):
            return logits
        drafted = [self.drafted_before(node) for node in self.frontier]
        return processor(logits, self.sequence.history, num_output, drafted)

    def draft(self, nodes: list[int] | None = None) -> Draft:
        """The finished draft, of all nodes or of an ancestor-closed choice of them, parents first."""
        nodes = list(range(len(self.tokens))) if nodes is None else nodes
        index = {node: place for place, node in enumerate(nodes)}
        probs = [self.probs[node] for node in nodes]
        return Draft(
            torch.tensor([self.tokens[node] for node in nodes], dtype=torch.int64),
            torch.tensor([index.get(self.parents[node], ROOT) for node in nodes], dtype=torch.int64),
            torch.stack(probs) if probs and probs[0] is not None else None,
        )


class DraftShape(ABC):
    """Which nodes a draft has.

    Attributes:
        max_depth: levels of the deepest draft.
        max_nodes: nodes of the largest finished draft, which the target verifies.
        max_fed: nodes that a drafter may have to feed for one draft.
    """

    max_depth: int
    max_nodes: int
    max_fed: int

    def trees(
        self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness
    ) -> list[GrowingTree]:
        """Drafts without nodes yet, none of which gets deeper than its entry of `max_lens`."""
        return [
            GrowingTree(sequence, min(length, self.max_depth), sequence.stream(source))
            for sequence, length in zip(sequences, max_lens, strict=True)
        ]

    def grow(self, tree: GrowingTree, logits: Tensor) -> None:
        """Adds children to the frontier, whose next-token logits [F, V] are given, and chooses the next frontier.

        The tree has grown where processing leaves no probabilities: all of a reduced draft vocabulary may be masked,
        and a draft's numbers may overflow.
        """
        logits = tree.process(logits)
        tree.feed(self.add_level(tree, logits) if has_choice(logits) else [])

    @abstractmethod
    def add_level(self, tree: GrowingTree, logits: Tensor) -> list[int]:
        """Adds children to the frontier, from processed logits [F, V]; returns the nodes to go on from."""

    def finish(self, tree: GrowingTree) -> Draft:
        """The draft of a fully grown tree."""
        return tree.draft()


class Chain(DraftShape):
    """One token after another: the argmax at temperature 0, else drawn from probabilities, which travel with it."""

    def __init__(self, max_depth: int):
        self.max_depth = self.max_nodes = max_depth
        self.max_fed = max(max_depth - 1, 0)

    def add_level(self, tree: GrowingTree, logits: Tensor) -> list[int]:
        [parent], params = tree.frontier, tree.sequence.request.params
        if params.temperature == 0:
            return [tree.add(parent, int(logits.argmax(-1)))]
        probs = logits_to_probs(logits, params)[0]
        return [tree.add(parent, tree.stream.choose(probs, Role.DRAFT, len(tree.tokens)), probs)]


class StaticTree(DraftShape):
    """A fixed tree of ranks, see `tree_of_choices`.

    Args:
        siblings: "top" takes the likeliest tokens (a deterministic proposal). The others draw siblings for requests
            with temperature > 0, each without the earlier ones, or independently.
    """

    def __init__(self, choices: list[list[int]], siblings: Siblings = "top"):
        tree, ranks = tree_of_choices(choices)
        self.siblings = siblings
        self.max_nodes, self.max_depth = len(tree), max(tree.depths) + 1
        self.max_fed = len([node for node in range(len(tree)) if node in tree.children])
        self._ranks_below: dict[tuple[int, ...], list[int]] = {}
        for node in range(len(tree)):
            path = tuple(ranks[above] for above in tree.path(node))
            self._ranks_below.setdefault(path[:-1], []).append(path[-1])

    def add_level(self, tree: GrowingTree, logits: Tensor) -> list[int]:
        params = tree.sequence.request.params
        is_drawn = self.siblings != "top" and params.temperature > 0
        rows = logits_to_probs(logits, params) if is_drawn else logits
        added: list[int] = []
        for row, parent in zip(rows, tree.frontier, strict=True):
            ranks = self._ranks_below.get(self._path(tree, parent), [])
            added += self._draw(tree, parent, row, ranks) if is_drawn else self._take_top(tree, parent, row, ranks)
        return [node for node in added if self._path(tree, node) in self._ranks_below]

    @staticmethod
    def _path(tree: GrowingTree, node: int) -> tuple[int, ...]:
        return () if node == ROOT else tree.ranks[node]

    @staticmethod
    def _take_top(tree: GrowingTree, parent: int, logits: Tensor, ranks: list[int]) -> list[int]:
        top = logits.topk(min(max(ranks) + 1, logits.shape[-1]))
        found = [(rank, token) for rank, token in enumerate(top.indices.tolist()) if rank in ranks]
        return [tree.add(parent, token, rank=rank) for rank, token in found if top.values[rank] > float("-inf")]

    def _draw(self, tree: GrowingTree, parent: int, probs: Tensor, ranks: list[int]) -> list[int]:
        left, nodes = probs.clone(), []
        for rank in ranks:
            if left.sum() <= 0:  # fewer tokens have any probability than the tree has siblings
                break
            token = tree.stream.choose(left, Role.DRAFT, len(tree.tokens))
            nodes.append(tree.add(parent, token, probs, rank=rank))
            if self.siblings == "without_replacement":
                left[token] = 0
        return nodes

    def finish(self, tree: GrowingTree) -> Draft:
        return tree.draft()._replace(has_replacement=self.siblings == "with_replacement")


class DynamicTree(DraftShape):
    """EAGLE-2's tree: each level expands its `top_k` most probable nodes; at the end the most probable of all stay.

    A node's value is the probability of its path under the draft. Since the shape depends on the drafted tokens, they
    must be the likeliest ones: choosing among drawn tokens by their value would change the distribution that they were
    drawn from.
    """

    def __init__(self, max_depth: int, top_k: int, max_total_draft_tokens: int):
        self.max_depth, self.top_k, self.max_nodes = max_depth, top_k, max_total_draft_tokens
        self.max_fed = top_k * (max_depth - 1)

    def add_level(self, tree: GrowingTree, logits: Tensor) -> list[int]:
        logprobs = logits.log_softmax(-1)
        top = logprobs.topk(min(self.top_k, logprobs.shape[-1]), dim=-1)
        added = [
            tree.add(parent, token, rank=rank, value=value)
            for parent, tokens, values in zip(tree.frontier, top.indices.tolist(), top.values.tolist(), strict=True)
            for rank, (token, value) in enumerate(zip(tokens, values, strict=True))
            if value > float("-inf")
        ]
        return sorted(self._best(tree, added)[: self.top_k])

    def finish(self, tree: GrowingTree) -> Draft:
        """Keeps the best nodes. A path's probability never grows, so a kept node's ancestors are kept with it."""
        return tree.draft(sorted(self._best(tree, range(len(tree.tokens)))[: self.max_nodes]))

    @staticmethod
    def _best(tree: GrowingTree, nodes: Iterable[int]) -> list[int]:
        return sorted(nodes, key=lambda node: (-tree.values[node], node))
