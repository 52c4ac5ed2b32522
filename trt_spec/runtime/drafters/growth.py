"""How a draft grows: as a chain, as a static tree of ranks, or as a dynamic tree of the likeliest paths.

A drafter that predicts one token at a time asks a growth, level by level, which nodes to add and which of them to
feed next. Growths know nothing of models; drafters know nothing of tree shapes.
Sources: Medusa's and EAGLE-1's static trees, EAGLE-2's dynamic tree (Li et al. 2024), sampling trees of SpecInfer
(Miao et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from trt_spec.runtime.acceptance import Draft
from trt_spec.runtime.batch import Rows
from trt_spec.runtime.randomness import Role, Stream
from trt_spec.runtime.sampling import has_choice, logits_to_probs
from trt_spec.runtime.sequence import Sequence
from trt_spec.runtime.tree import ROOT, tree_of_choices

Siblings = Literal["top", "without_replacement", "with_replacement"]


@dataclass
class GrowingTree:
    """The draft of one sequence while it grows.

    Attributes:
        max_depth: levels that it may have, at least 1.
        tokens, parents, laws: one entry per node; a law [V] where the token was drawn from it, else None.
        frontier: nodes whose next token is wanted now; the root (−1) at first.
        fed: nodes whose rows the drafter has been asked to run, in that order. Nodes without children are never fed.
    """

    sequence: Sequence
    max_depth: int
    stream: Stream
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    laws: list[Tensor | None] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    ranks: list[tuple[int, ...]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    frontier: list[int] = field(default_factory=lambda: [ROOT])
    fed: list[int] = field(default_factory=list)

    def add(self, parent: int, token: int, law: Tensor | None = None, *, rank: int = 0, value: float = 0.0) -> int:
        """Adds a node; `value` is its log-probability given its parent."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.laws.append(law)
        self.depths.append(0 if parent == ROOT else self.depths[parent] + 1)
        self.ranks.append((*(() if parent == ROOT else self.ranks[parent]), rank))
        self.values.append(value + (0.0 if parent == ROOT else self.values[parent]))
        return len(self.tokens) - 1

    def feed(self, nodes: list[int]) -> None:
        """Makes `nodes` the next frontier."""
        self.frontier = nodes
        self.fed += nodes

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

    def process(self, logits: Tensor) -> Tensor | None:
        """The request's penalties, bias and masks on the logits [F, V] of the frontier; never in place.

        None, and the tree has grown, where they leave no law: all of a reduced draft vocabulary may be masked, and a
        draft's numbers may overflow.
        """
        processor, num_output = self.sequence.processor, self.sequence.num_output_tokens
        if not processor.is_identity(logits.shape[-1], num_output):
            drafted = [self.drafted_before(node) for node in self.frontier]
            logits = processor(logits, self.sequence.history, num_output, drafted)
        if has_choice(logits):
            return logits
        self.feed([])
        return None

    def draft(self, nodes: list[int] | None = None) -> Draft:
        """The finished draft, of all nodes or of an ancestor-closed choice of them, parents first."""
        nodes = list(range(len(self.tokens))) if nodes is None else nodes
        index = {node: place for place, node in enumerate(nodes)}
        laws = [self.laws[node] for node in nodes]
        return Draft(
            torch.tensor([self.tokens[node] for node in nodes], dtype=torch.int64),
            torch.tensor([index.get(self.parents[node], ROOT) for node in nodes], dtype=torch.int64),
            torch.stack(laws) if laws and laws[0] is not None else None,
        )


class Growth(Protocol):
    """A shape policy.

    Attributes:
        max_depth: levels of the deepest draft.
        max_nodes: nodes of the largest finished draft, which the target verifies.
        max_fed: nodes that a drafter may have to feed for one draft.
    """

    max_depth: int
    max_nodes: int
    max_fed: int

    def grow(self, tree: GrowingTree, logits: Tensor) -> None:
        """Adds children to the frontier, whose next-token logits [F, V] are given, and chooses the next frontier."""

    def finish(self, tree: GrowingTree) -> Draft:
        """The draft of a fully grown tree."""


class ChainGrowth:
    """One token after another: the argmax at temperature 0, else drawn from the law, which travels with it."""

    def __init__(self, max_depth: int):
        self.max_depth = self.max_nodes = max_depth
        self.max_fed = max(max_depth - 1, 0)

    def grow(self, tree: GrowingTree, logits: Tensor) -> None:
        [parent], params = tree.frontier, tree.sequence.request.params
        if (logits := tree.process(logits)) is None:
            return
        if params.temperature == 0:
            node = tree.add(parent, int(logits.argmax(-1)))
        else:
            law = logits_to_probs(logits, params)[0]
            node = tree.add(parent, tree.stream.choose(law, Role.DRAFT, len(tree.tokens)), law)
        tree.feed([node] if tree.depths[node] + 1 < tree.max_depth else [])

    def finish(self, tree: GrowingTree) -> Draft:
        return tree.draft()


class StaticGrowth:
    """A fixed tree of ranks, see `tree_of_choices`.

    Args:
        siblings: "top" takes the likeliest tokens (a deterministic proposal). The others draw siblings from the law
            for requests with temperature > 0, each without the earlier ones, or independently.
    """

    def __init__(self, choices: list[list[int]], siblings: Siblings = "top"):
        tree, ranks = tree_of_choices(choices)
        self.siblings = siblings
        self.max_nodes, self.max_depth = len(tree), max(tree.depths) + 1
        self.max_fed = len([node for node in range(len(tree)) if node in tree.children])
        paths = [tuple(ranks[node] for node in tree.path(node)) for node in range(len(tree))]
        self._ranks_below: dict[tuple[int, ...], list[int]] = {}
        for path in paths:
            self._ranks_below.setdefault(path[:-1], []).append(path[-1])

    def grow(self, tree: GrowingTree, logits: Tensor) -> None:
        if (logits := tree.process(logits)) is None:
            return
        params = tree.sequence.request.params
        is_drawn = self.siblings != "top" and params.temperature > 0
        rows = logits_to_probs(logits, params) if is_drawn else logits
        added: list[int] = []
        for row, parent in zip(rows, tree.frontier, strict=True):
            ranks = self._ranks_below.get(self._path(tree, parent), [])
            added += self._draw(tree, parent, row, ranks) if is_drawn else self._take_top(tree, parent, row, ranks)
        deeper = [node for node in added if tree.depths[node] + 1 < tree.max_depth]
        tree.feed([node for node in deeper if self._path(tree, node) in self._ranks_below])

    @staticmethod
    def _path(tree: GrowingTree, node: int) -> tuple[int, ...]:
        return () if node == ROOT else tree.ranks[node]

    @staticmethod
    def _take_top(tree: GrowingTree, parent: int, logits: Tensor, ranks: list[int]) -> list[int]:
        top = logits.topk(min(max(ranks) + 1, logits.shape[-1]))
        found = [(rank, token) for rank, token in enumerate(top.indices.tolist()) if rank in ranks]
        return [tree.add(parent, token, rank=rank) for rank, token in found if top.values[rank] > float("-inf")]

    def _draw(self, tree: GrowingTree, parent: int, law: Tensor, ranks: list[int]) -> list[int]:
        left, nodes = law.clone(), []
        for rank in ranks:
            if left.sum() <= 0:  # the law has fewer tokens than the tree has siblings
                break
            token = tree.stream.choose(left, Role.DRAFT, len(tree.tokens))
            nodes.append(tree.add(parent, token, law, rank=rank))
            if self.siblings == "without_replacement":
                left[token] = 0
        return nodes

    def finish(self, tree: GrowingTree) -> Draft:
        return tree.draft()._replace(has_replacement=self.siblings == "with_replacement")


class DynamicGrowth:
    """EAGLE-2's tree: each level expands its `top_k` most probable nodes; at the end the most probable of all stay.

    A node's value is the probability of its path under the draft. Since the shape depends on the drafted tokens, they
    must be the likeliest ones: choosing among drawn tokens by their value would change the law that they were drawn
    from.
    """

    def __init__(self, max_depth: int, top_k: int, max_total_draft_tokens: int):
        self.max_depth, self.top_k, self.max_nodes = max_depth, top_k, max_total_draft_tokens
        self.max_fed = top_k * (max_depth - 1)

    def grow(self, tree: GrowingTree, logits: Tensor) -> None:
        if (logits := tree.process(logits)) is None:
            return
        logprobs = logits.log_softmax(-1)
        top = logprobs.topk(min(self.top_k, logprobs.shape[-1]), dim=-1)
        added = [
            tree.add(parent, token, rank=rank, value=value)
            for parent, tokens, values in zip(tree.frontier, top.indices.tolist(), top.values.tolist(), strict=True)
            for rank, (token, value) in enumerate(zip(tokens, values, strict=True))
            if value > float("-inf")
        ]
        is_last = not added or tree.depths[added[0]] + 1 >= tree.max_depth
        tree.feed([] if is_last else sorted(self._best(tree, added)[: self.top_k]))

    def finish(self, tree: GrowingTree) -> Draft:
        """Keeps the best nodes. A path's probability never grows, so a kept node's ancestors are kept with it."""
        return tree.draft(sorted(self._best(tree, range(len(tree.tokens)))[: self.max_nodes]))

    @staticmethod
    def _best(tree: GrowingTree, nodes) -> list[int]:
        return sorted(nodes, key=lambda node: (-tree.values[node], node))
