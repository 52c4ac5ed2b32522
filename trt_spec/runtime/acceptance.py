"""Acceptance: which draft tokens stand, and which token follows them.

A rule walks the draft tree from the last committed token. Row 0 of the target's probabilities belongs to that token,
row 1 + i to node i. Every rule ends with one token of the target's own: recovered after a rejection, bonus after full
acceptance.
Sources: rejection sampling (Leviathan et al. 2023, Chen et al. 2023), on trees (SpecInfer, Miao et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import NamedTuple

import torch
from torch import Tensor

from trt_spec.methods import ACCEPTANCE, Rule
from trt_spec.runtime.randomness import Role, Stream
from trt_spec.runtime.sampling import first_argmax
from trt_spec.runtime.tree import ROOT, DraftTree


class Draft(NamedTuple):
    """What a drafter proposes for one sequence.

    Attributes:
        token_ids: [T] int64.
        parents: [T] index of the parent node, −1 = last committed token; a chain is −1, 0, 1, …
        probs: [T, V] what each token WAS drawn from; None for a deterministic proposal.
        has_replacement: siblings were drawn independently, so that one may repeat another; otherwise each was drawn
            from the probabilities without the siblings before it.
    """

    token_ids: Tensor
    parents: Tensor
    probs: Tensor | None = None
    has_replacement: bool = False

    @property
    def tree(self) -> DraftTree:
        return DraftTree.of(self.parents)

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
class TargetProbs:
    """The target's probabilities at every row of one sequence, from logits [1 + T, V] that are already processed.

    Attributes:
        logits: after penalties, bias and masks, before temperature.
        to_probs: temperature, top-k, top-p and min-p of this request; None where the temperature is 0.
    """

    logits: Tensor
    to_probs: Callable[[Tensor], Tensor] | None = None

    @cached_property
    def argmax(self) -> list[int]:
        return first_argmax(self.logits)

    @cached_property
    def probs(self) -> Tensor:
        if self.to_probs is None:
            return torch.nn.functional.one_hot(self.logits.argmax(-1), self.logits.shape[-1]).to(self.logits.dtype)
        return self.to_probs(self.logits)

    @property
    def is_greedy(self) -> bool:
        return self.to_probs is None


RuleFn = Callable[[TargetProbs, Draft, Stream], Verdict]


@dataclass(frozen=True)
class AcceptanceRule:
    """A way to accept drafts.

    Attributes:
        is_lossless: the emitted tokens follow the target's distribution for every request that the rule serves.
        serves_sampling: the rule serves temperature > 0; otherwise such requests are refused.
    """

    name: str
    is_lossless: bool
    serves_sampling: bool
    decide: RuleFn


def follow(draft: Draft, token_at: Callable[[int, int], int]) -> Verdict:
    """Walks down while a child carries the token that `token_at(row, depth)` gives, and ends with that token."""
    tokens, branches = draft.token_ids.tolist(), draft.tree.children
    node, path = ROOT, []
    while True:
        token = token_at(node + 1, len(path))
        node = next((child for child in branches.get(node, ()) if tokens[child] == token), None)
        if node is None:
            return Verdict(torch.tensor(path, dtype=torch.int64), token)
        path.append(node)


def greedy(target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
    """Accepts a draft token where it is the target's argmax. The case T = 0 of every other rule."""
    return follow(draft, lambda row, depth: target.argmax[row])


def exact_match(target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
    """Samples the target at every visited node and accepts a draft token that equals the sample.

    The sample at a position uses the random number that plain decoding uses there, so a seeded request gives the same
    tokens with and without speculation. Accepts Σ p(x) q(x) of stochastic and p(x) of deterministic drafts.
    """
    return follow(draft, lambda row, depth: stream.choose(target.probs[row], Role.TARGET, ahead=depth))


def rejection(target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
    """Accepts draft token x with probability min(1, p(x)/q(x)) and resamples a rejection from norm(max(p − q, 0)).

    Children of a node are tried in order. After rejecting one drawn from q, p becomes the residual, and q loses that
    token where siblings are drawn without replacement. A deterministic child (probs None) has a one-hot q, so it is
    accepted with p(x) and its rejection zeroes p[x].
    """
    if target.is_greedy:
        return greedy(target, draft, stream)
    tokens, branches = draft.token_ids.tolist(), draft.tree.children
    node, path = ROOT, []
    while True:
        probs, accepted = target.probs[node + 1], None
        tried: list[int] = []
        for child in branches.get(node, ()):
            token = tokens[child]
            draft_probs = None if draft.probs is None else draft.probs[child]
            if draft_probs is not None and not draft.has_replacement:
                draft_probs = without(draft_probs, tried)
            ratio = float(probs[token]) / (1.0 if draft_probs is None else float(draft_probs[token]))
            if stream.flip(ratio, Role.ACCEPT, child):
                accepted = child
                break
            probs = residual(probs, token, draft_probs)
            tried.append(token)
        if accepted is None:
            return Verdict(torch.tensor(path, dtype=torch.int64), stream.choose(probs, Role.TARGET, ahead=len(path)))
        node = accepted
        path.append(node)


def block(target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
    """Block verification: judges prefixes of a chain together, and accepts at least as many tokens as `rejection`.

    With w_i = min(1, w_{i-1} · p(x_i)/q(x_i)), the prefix of i tokens is accepted with probability S_i / (S_i + 1 −
    w_i), S_i = Σ max(w_i p − q, 0) over the next token; the longest accepted prefix stands, and the token
    after it comes from norm(max(w_i p − q, 0)). Source: Sun et al. 2024, algorithm 2.
    """
    if target.is_greedy:
        return greedy(target, draft, stream)
    tokens = draft.token_ids.tolist()
    weight, num_accepted, probs = 1.0, 0, None
    for position in range(len(tokens) + 1):
        if position:
            token = tokens[position - 1]
            drafted = 1.0 if draft.probs is None else float(draft.probs[position - 1, token])
            weight = min(1.0, weight * float(target.probs[position - 1, token]) / drafted)
        is_last = position == len(tokens)
        left = target.probs[position] if is_last else _excess(weight, target.probs[position], draft, position)
        mass = float(left.sum())
        # The brackets keep a mass that 1 would swallow: where p = q but for rounding, both terms are next to nothing.
        accept = weight if is_last else mass / (mass + (1 - weight)) if mass > 0 else 0.0
        if position == 0 or stream.flip(accept, Role.ACCEPT, position - 1):
            num_accepted, probs = position, left
    if probs.sum() <= 0:  # p = q throughout: a rejection after the first token has probability 0
        probs = target.probs[num_accepted]
    return Verdict(torch.arange(num_accepted), stream.choose(probs, Role.TARGET, ahead=num_accepted))


def _excess(weight: float, probs: Tensor, draft: Draft, position: int) -> Tensor:
    """max(w p − q, 0) [V], where q is what the draft token at `position` was drawn from."""
    left = weight * probs
    if draft.probs is None:
        left[draft.token_ids[position]] -= 1
    else:
        left -= draft.probs[position]
    return left.clamp_(min=0)


TYPICAL_EPSILON, TYPICAL_ALPHA = 0.3, 0.09  # Medusa's posterior_threshold and posterior_alpha


def typical(target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
    """Typical acceptance: takes any token that is likely enough, p(x) ≥ min(ε, α · exp(−H(p))). LOSSY by design.

    The deepest path of such tokens stands. Source: Medusa (Cai et al. 2024), section 3.3.1.
    """
    if target.is_greedy:
        return greedy(target, draft, stream)
    tree, tokens = draft.tree, draft.token_ids.tolist()
    entropy = torch.special.entr(target.probs).sum(-1)
    thresholds = (TYPICAL_ALPHA * (-entropy).exp()).clamp(max=TYPICAL_EPSILON).tolist()
    kept: dict[int, list[int]] = {ROOT: []}
    for node, parent in enumerate(tree.parents):
        if parent in kept and float(target.probs[parent + 1, tokens[node]]) >= thresholds[parent + 1]:
            kept[node] = [*kept[parent], node]
    path = max(kept.values(), key=len)
    row = path[-1] + 1 if path else 0
    return Verdict(
        torch.tensor(path, dtype=torch.int64), stream.choose(target.probs[row], Role.TARGET, ahead=len(path))
    )


def without(probs: Tensor, tokens: list[int]) -> Tensor:
    """`probs` [V] after removing tokens already drawn from it, renormalised."""
    if not tokens:
        return probs
    left = probs.clone()
    left[tokens] = 0
    return left / left.sum()


def residual(probs: Tensor, token: int, draft_probs: Tensor | None) -> Tensor:
    """norm(max(p − q, 0)) [V] after rejecting `token`; draft_probs None stands for a one-hot at `token`.

    Where p = q a rejection has probability 0 and is only reached by rounding; p itself is then returned.
    """
    if draft_probs is None:
        left = probs.clone()
        left[token] = 0
    else:
        left = (probs - draft_probs).clamp_(min=0)
    total = left.sum()
    return left / total if total > 0 else probs


def _decide(rule: Rule) -> RuleFn:
    module, _, function = rule.decide.partition(":")
    return getattr(import_module(module), function) if module else globals()[rule.name]


ACCEPTANCE_RULES: dict[str, AcceptanceRule] = {
    name: AcceptanceRule(name, rule.is_lossless, rule.serves_sampling, _decide(rule))
    for name, rule in ACCEPTANCE.items()
}
