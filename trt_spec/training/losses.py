"""Cross-entropy of a head's law against the target's full law, without ever holding all logits at once.

For one row with target law p and draft logits z the loss is −Σ p log softmax(z), which differs from KL(p ‖ q) by the
entropy of p alone. Its gradient softmax(z) − p is known in the forward, so each chunk of rows is gone through once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 21  # logits of one chunk: 8 MB in float32, which caches hold


class TargetLaws(NamedTuple):
    """The target's laws over the draft vocabulary, for R rows.

    Attributes:
        probs: [R, D], each row adding up to 1.
        best: [R] the likeliest entry.
    """

    probs: Tensor
    best: Tensor


@torch.no_grad()
def target_laws(states: Tensor, head_rows: Tensor) -> TargetLaws:
    """Laws of the target from its states [R, H] and the rows [D, H] of its head, renormalised over those D tokens."""
    probs = torch.empty(len(states), len(head_rows), dtype=states.dtype, device=states.device)
    best = torch.empty(len(states), dtype=torch.int64, device=states.device)
    step = max(CHUNK_ELEMENTS // len(head_rows), 1)
    for start in range(0, len(states), step):
        here = slice(start, start + step)
        law = (states[here] @ head_rows.T).float().softmax(-1)
        probs[here], best[here] = law.to(probs.dtype), law.argmax(-1)
    return TargetLaws(probs, best)


class HeadLoss(NamedTuple):
    """Sums over rows: the loss (with gradients), and rows where both have the same likeliest token."""

    loss: Tensor
    num_right: Tensor


def head_loss(states: Tensor, head: Tensor, laws: TargetLaws, rows: Tensor) -> HeadLoss:
    """Draft states [R, H] through a head [D, H], against the entries `rows` [R] of `laws`."""
    return HeadLoss(*_HeadLoss.apply(states, head, laws.probs, laws.best, rows))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states: Tensor, head: Tensor, probs: Tensor, best: Tensor, rows: Tensor):
        learns_head = ctx.needs_input_grad[1]
        state_grads = torch.empty_like(states)
        head_grad = torch.zeros_like(head, dtype=torch.float32) if learns_head else None
        loss = torch.zeros((), dtype=torch.float32, device=states.device)
        num_right = torch.zeros((), dtype=torch.int64, device=states.device)
        step = max(CHUNK_ELEMENTS // len(head), 1)
        for start in range(0, len(states), step):
            here = slice(start, start + step)
            part = states[here]
            logits, law = (part @ head.T).float(), probs[rows[here]].float()
            num_right += (logits.argmax(-1) == best[rows[here]]).sum()
            norm = logits.logsumexp(-1, keepdim=True)
            loss += norm.sum() - (law * logits).sum()
            grad = logits.sub_(norm).exp_().sub_(law).to(part.dtype)
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
