"""Acceptance: which draft tokens stand, and which token follows them.

A rule walks the draft tree from the last committed token. Row 0 of the target's law belongs to that token, row 1 + i
to node i. Every rule ends with one token of the target's own: recovered after a rejection, bonus after full
acceptance.
Sources: rejection sampling (Leviathan et al. 2023, Chen et al. 2023), on trees (SpecInfer, Miao et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from trt_spec.runtime import tree
from trt_spec.runtime.randomness import Role, Stream


class Draft(NamedTuple):
    """What a drafter proposes for one sequence.

    Attributes:
        token_ids: [T] int64.
        parents: [T] index of the parent node, −1 = last committed token; a chain is −1, 0, 1, …
        probs: [T, V] the law that each token WAS drawn from; None for a deterministic proposal.
    """

    token_ids: Tensor
    parents: Tensor
    probs: Tensor | None = None

    @classmethod
    def chain(cls, token_ids: list[int], probs: Tensor | None = None) -> Draft:
        return cls(torch.tensor(token_ids, dtype=torch.int64), torch.arange(-1, len(token_ids) - 1), probs)

    @classmethod
    def empty(cls) -> Draft:
        return cls.chain([])


class Verdict(NamedTuple):
    """What verification decided.

    Attributes:
        path: [A] accepted nodes, root to leaf.
        next_token: recovered token after a rejection, bonus token after full acceptance.
    """

    path: Tensor
    next_token: int


@dataclass(frozen=True)
class TargetLaw:
    """The target's law at every row of one sequence, from logits [1 + T, V] that are already processed.

    Attributes:
        logits: after penalties, bias and masks, before temperature.
        to_probs: temperature, top-k, top-p and min-p of this request; None where the temperature is 0.
    """

    logits: Tensor
    to_probs: Callable[[Tensor], Tensor] | None = None

    @cached_property
    def argmax(self) -> list[int]:
        return self.logits.argmax(-1).tolist()

    @cached_property
    def probs(self) -> Tensor:
        if self.to_probs is None:
            return torch.nn.functional.one_hot(self.logits.argmax(-1), self.logits.shape[-1]).to(self.logits.dtype)
        return self.to_probs(self.logits)

    @property
    def is_greedy(self) -> bool:
        return self.to_probs is None


RuleFn = Callable[[TargetLaw, Draft, Stream], Verdict]


@dataclass(frozen=True)
class AcceptanceRule:
    """A way to accept drafts.

    Attributes:
        is_lossless: the emitted tokens follow the target's law for every request that the rule serves.
        serves_sampling: the rule serves temperature > 0; otherwise such requests are refused.
    """

    name: str
    is_lossless: bool
    serves_sampling: bool
    decide: RuleFn


def _follow(draft: Draft, token_at: Callable[[int, int], int]) -> Verdict:
    """Walks down while a child carries the token that `token_at(row, depth)` gives, and ends with that token."""
    tokens, branches = draft.token_ids.tolist(), tree.children(draft.parents.tolist())
    node, path = -1, []
    while True:
        token = token_at(node + 1, len(path))
        node = next((child for child in branches.get(node, ()) if tokens[child] == token), None)
        if node is None:
            return Verdict(torch.tensor(path, dtype=torch.int64), token)
        path.append(node)


def greedy(target: TargetLaw, draft: Draft, stream: Stream) -> Verdict:
    """Accepts a draft token where it is the target's argmax. The case T = 0 of every other rule."""
    return _follow(draft, lambda row, depth: target.argmax[row])


def exact_match(target: TargetLaw, draft: Draft, stream: Stream) -> Verdict:
    """Samples the target at every visited node and accepts a draft token that equals the sample.

    The sample at a position uses the random number that plain decoding uses there, so a seeded request gives the same
    tokens with and without speculation. Accepts Σ p(x) q(x) of stochastic and p(x) of deterministic drafts.
    """
    return _follow(draft, lambda row, depth: stream.choose(target.probs[row], Role.TARGET, ahead=depth))


def rejection(target: TargetLaw, draft: Draft, stream: Stream) -> Verdict:
    """Accepts draft token x with probability min(1, p(x)/q(x)) and resamples a rejection from norm(max(p − q, 0)).

    Children of a node are tried in order. After rejecting one drawn from q, p becomes the residual, and q loses that
    token, since siblings are drawn without replacement. A deterministic child (probs None) has a one-hot q, so it is
    accepted with p(x) and its rejection zeroes p[x].
    """
    if target.is_greedy:
        return greedy(target, draft, stream)
    tokens, branches = draft.token_ids.tolist(), tree.children(draft.parents.tolist())
    node, path = -1, []
    while True:
        law, accepted = target.probs[node + 1], None
        tried: list[int] = []
        for child in branches.get(node, ()):
            token = tokens[child]
            draft_law = None if draft.probs is None else without(draft.probs[child], tried)
            ratio = float(law[token]) / (1.0 if draft_law is None else float(draft_law[token]))
            if stream.flip(ratio, Role.ACCEPT, child):
                accepted = child
                break
            law = residual(law, token, draft_law)
            tried.append(token)
        if accepted is None:
            return Verdict(torch.tensor(path, dtype=torch.int64), stream.choose(law, Role.TARGET, ahead=len(path)))
        node = accepted
        path.append(node)


def without(law: Tensor, tokens: list[int]) -> Tensor:
    """`law` [V] after removing tokens already drawn from it, renormalised."""
    if not tokens:
        return law
    left = law.clone()
    left[tokens] = 0
    return left / left.sum()


def residual(law: Tensor, token: int, draft_law: Tensor | None) -> Tensor:
    """norm(max(p − q, 0)) [V] after rejecting `token`; draft_law None stands for a one-hot at `token`.

    Where p = q a rejection has probability 0 and is only reached by rounding; p itself is then returned.
    """
    if draft_law is None:
        left = law.clone()
        left[token] = 0
    else:
        left = (law - draft_law).clamp_(min=0)
    total = left.sum()
    return left / total if total > 0 else law


ACCEPTANCE_RULES: dict[str, AcceptanceRule] = {
    rule.name: rule
    for rule in (
        AcceptanceRule("greedy", is_lossless=True, serves_sampling=False, decide=greedy),
        AcceptanceRule("rejection", is_lossless=True, serves_sampling=True, decide=rejection),
        AcceptanceRule("exact_match", is_lossless=True, serves_sampling=True, decide=exact_match),
    )
}
