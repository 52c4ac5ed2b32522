"""Cross-entropy of a head's law against the target's full law, without ever holding all logits at once.

For one row with target law p and draft logits z the loss is −Σ p log softmax(z), which differs from KL(p ‖ q) by the
entropy of p alone. Its gradient softmax(z) − p is known in the forward, so each chunk of rows is gone through once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 21  # logits of one chunk: 8 MB in float32, which caches hold


class TargetProbs(NamedTuple):
    """The target's laws over the draft vocabulary, for R rows.

    Attributes:
        probs: [R, D], each row adding up to 1.
        best: [R] the likeliest entry.
    """

    probs: Tensor
    best: Tensor


@torch.no_grad()
def target_probs(states: Tensor, head_rows: Tensor) -> TargetProbs:
    """Laws of the target from its states [R, H] and the rows [D, H] of its head, renormalised over those D tokens."""
    probs = torch.empty(len(states), len(head_rows), dtype=states.dtype, device=states.device)
    best = torch.empty(len(states), dtype=torch.int64, device=states.device)
    step = max(CHUNK_ELEMENTS // len(head_rows), 1)
    for start in range(0, len(states), step):
        here = slice(start, start + step)
        exact = (states[here] @ head_rows.T).float().softmax(-1)
        probs[here], best[here] = exact.to(probs.dtype), exact.argmax(-1)
    return TargetProbs(probs, best)


@dataclass(frozen=True)
class PositionLoss:
    """One draft position of one batch, as sums over its rows.

    Attributes:
        loss: cross-entropy against the target's law, in nats, with gradients.
        num_right: rows where draft and target have the same likeliest token.
        num_rows: rows.
    """

    loss: Tensor
    num_right: Tensor
    num_rows: int


def head_loss(states: Tensor, head: Tensor, target: TargetProbs, rows: Tensor | None = None) -> PositionLoss:
    """Draft states [R, H] through a head [D, H], against the entries `rows` [R] of `target`; None for all in order."""
    return PositionLoss(*_HeadLoss.apply(states, head, target.probs, target.best, rows), len(states))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states: Tensor, head: Tensor, probs: Tensor, best: Tensor, rows: Tensor | None):
        learns_head = ctx.needs_input_grad[1]
        state_grads = torch.empty_like(states)
        head_grad = torch.zeros_like(head, dtype=torch.float32) if learns_head else None
        loss = torch.zeros((), dtype=torch.float32, device=states.device)
        num_right = torch.zeros((), dtype=torch.int64, device=states.device)
        step = max(CHUNK_ELEMENTS // len(head), 1)
        for start in range(0, len(states), step):
            here = slice(start, start + step)
            entries, part = here if rows is None else rows[here], states[here]
            logits, wanted = (part @ head.T).float(), probs[entries].float()
            num_right += (logits.argmax(-1) == best[entries]).sum()
            norm = logits.logsumexp(-1, keepdim=True)
            loss += norm.sum() - (wanted * logits).sum()
            grad = logits.sub_(norm).exp_().sub_(wanted).to(part.dtype)
            state_grads[here] = grad @ head
            if learns_head:
                head_grad += grad.T @ part
        ctx.save_for_backward(state_grads, head_grad)
        ctx.mark_non_differentiable(num_right)
        return loss, num_right

    @staticmethod
    def backward(ctx, loss_grad: Tensor, _: Tensor):
        state_grads, head_grad = ctx.saved_tensors
        head_grad = None if head_grad is None else head_grad * loss_grad
        return state_grads * loss_grad.to(state_grads.dtype), head_grad, None, None, None
