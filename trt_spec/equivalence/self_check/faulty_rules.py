"""Rejection sampling with a fault in each place where one can be: the building block of the mutants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trt_spec.runtime.acceptance import Draft, TargetLaw, Verdict, residual, without
from trt_spec.runtime.randomness import Role, Stream
from trt_spec.runtime.tree import ROOT

Law = Callable[..., Tensor]


def right_ratio(law: Tensor, token: int, draft_law: Tensor | None) -> float:
    """p(x)/q(x); more than 1 where q(x) is 0, which only a wrongly recorded q can be."""
    drafted = 1.0 if draft_law is None else float(draft_law[token])
    return float(law[token]) / drafted if drafted > 0 else 2.0


def flip(stream: Stream, ratio: float, node: int) -> bool:
    return stream.flip(ratio, Role.ACCEPT, node)


def sample(law: Tensor, stream: Stream, depth: int, node: int) -> int:
    return stream.choose(law, Role.TARGET, ahead=depth)


@dataclass(frozen=True)
class Rejection:
    """`acceptance.rejection` in replaceable pieces; with none replaced it is the right rule.

    Attributes:
        ratio: (p, token, q) to the acceptance probability.
        coin: (stream, ratio, node) to whether the token stands.
        leftover: (p, token, q) to the law after a rejection.
        recover: (law, stream, depth, rejected node) to the token after a rejection.
        bonus_row: (node, parent of it) to the row whose law gives the bonus token.
        reshape: (law, is_bonus) to the law that the last token is drawn from.
        updates_draft: q loses the siblings that were tried.
        updates_target: p becomes the leftover between siblings.
    """

    ratio: Callable[[Tensor, int, Tensor | None], float] = right_ratio
    coin: Callable[[Stream, float, int], bool] = flip
    leftover: Callable[[Tensor, int, Tensor | None], Tensor] = residual
    recover: Callable[[Tensor, Stream, int, int], int] = sample
    bonus_row: Callable[[int, int], int] = lambda node, parent: node + 1
    reshape: Callable[[Tensor, bool], Tensor] = lambda law, is_bonus: law
    updates_draft: bool = True
    updates_target: bool = True

    def __call__(self, target: TargetLaw, draft: Draft, stream: Stream) -> Verdict:
        tokens, tree = draft.token_ids.tolist(), draft.tree
        node, parent, path = ROOT, ROOT, []
        while True:
            children = tree.children.get(node, ())
            row = node + 1 if children else self.bonus_row(node, parent)
            first = law = target.probs[row]
            accepted, rejected, tried = None, ROOT, []
            for child in children:
                token = tokens[child]
                draft_law = None if draft.probs is None else draft.probs[child]
                if draft_law is not None and self.updates_draft:
                    draft_law = without(draft_law, tried)
                if self.coin(stream, self.ratio(law, token, draft_law), child):
                    accepted = child
                    break
                left = self.leftover(law, token, draft_law)
                law = left if self.updates_target or child == children[-1] else first
                rejected = child
                tried.append(token)
            if accepted is None:
                is_bonus = not children
                law = self.reshape(law, is_bonus)
                draw = sample if is_bonus else self.recover
                return Verdict(torch.tensor(path, dtype=torch.int64), draw(law, stream, len(path), rejected))
            parent, node = node, accepted
            path.append(node)


def normalised(law: Tensor) -> Tensor:
    return law / law.sum(-1, keepdim=True)


def dropped(law: Tensor, token: int) -> Tensor:
    """p without one token; p itself where it was all of it."""
    left = law.clone()
    left[token] = 0
    return normalised(left) if left.sum() > 0 else law
