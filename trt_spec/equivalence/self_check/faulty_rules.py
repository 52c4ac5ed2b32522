"""Rejection sampling with a fault in each place where one can be: the building block of the mutants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trt_spec.runtime.acceptance import Draft, TargetProbs, Verdict, residual, without
from trt_spec.runtime.randomness import Role, Stream
from trt_spec.runtime.tree import ROOT


def right_ratio(probs: Tensor, token: int, draft_probs: Tensor | None) -> float:
    """p(x)/q(x); more than 1 where q(x) is 0, which only a wrongly recorded q can be."""
    drafted = 1.0 if draft_probs is None else float(draft_probs[token])
    return float(probs[token]) / drafted if drafted > 0 else 2.0


def flip(stream: Stream, ratio: float, node: int) -> bool:
    return stream.flip(ratio, Role.ACCEPT, node)


def sample(probs: Tensor, stream: Stream, depth: int, node: int) -> int:
    return stream.choose(probs, Role.TARGET, ahead=depth)


@dataclass(frozen=True)
class Rejection:
    """`acceptance.rejection` in replaceable pieces; with none replaced it is the right rule.

    Attributes:
        ratio: (p, token, q) to the acceptance probability.
        coin: (stream, ratio, node) to whether the token stands.
        leftover: (p, token, q) to the probabilities after a rejection.
        recover: (probs, stream, depth, rejected node) to the token after a rejection.
        bonus_row: (node, parent of it) to the row that gives the bonus token.
        reshape: (probs, is_bonus) to what the last token is drawn from.
        updates_draft: q loses the siblings that were tried.
        updates_target: p becomes the leftover between siblings.
    """

    ratio: Callable[[Tensor, int, Tensor | None], float] = right_ratio
    coin: Callable[[Stream, float, int], bool] = flip
    leftover: Callable[[Tensor, int, Tensor | None], Tensor] = residual
    recover: Callable[[Tensor, Stream, int, int], int] = sample
    bonus_row: Callable[[int, int], int] = lambda node, parent: node + 1
    reshape: Callable[[Tensor, bool], Tensor] = lambda probs, is_bonus: probs
    updates_draft: bool = True
    updates_target: bool = True

    def __call__(self, target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
        tokens, tree = draft.token_ids.tolist(), draft.tree
        node, parent, path = ROOT, ROOT, []
        while True:
            children = tree.children.get(node, ())
            row = node + 1 if children else self.bonus_row(node, parent)
            first = probs = target.probs[row]
            accepted, rejected, tried = None, ROOT, []
            for child in children:
                token = tokens[child]
                draft_probs = None if draft.probs is None else draft.probs[child]
                if draft_probs is not None and self.updates_draft:
                    draft_probs = without(draft_probs, tried)
                if self.coin(stream, self.ratio(probs, token, draft_probs), child):
                    accepted = child
                    break
                left = self.leftover(probs, token, draft_probs)
                probs = left if self.updates_target or child == children[-1] else first
                rejected = child
                tried.append(token)
            if accepted is None:
                is_bonus = not children
                probs = self.reshape(probs, is_bonus)
                draw = sample if is_bonus else self.recover
                return Verdict(torch.tensor(path, dtype=torch.int64), draw(probs, stream, len(path), rejected))
            parent, node = node, accepted
            path.append(node)


def normalised(probs: Tensor) -> Tensor:
    return probs / probs.sum(-1, keepdim=True)


def dropped(probs: Tensor, token: int) -> Tensor:
    """p without one token; p itself where it was all of it."""
    left = probs.clone()
    left[token] = 0
    return normalised(left) if left.sum() > 0 else probs
