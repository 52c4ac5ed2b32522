"""The chunked loss against autograd on whole matrices."""

from __future__ import annotations

import pytest
import torch

from trt_spec.training import losses
from trt_spec.training.losses import head_loss, target_probs


@pytest.mark.parametrize("chunk_elements", [1 << 21, 70, 1])
@pytest.mark.parametrize("learns_head", [True, False])
def test_loss_and_gradients_are_those_of_whole_matrices(monkeypatch, chunk_elements, learns_head):
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", chunk_elements)
    generator = torch.Generator().manual_seed(0)
    states, head, teacher, rows = (
        torch.randn(7, 6, generator=generator),
        torch.randn(20, 6, generator=generator),
        torch.randn(9, 6, generator=generator),
        torch.tensor([8, 0, 3, 3, 1, 7, 2]),
    )
    target = target_probs(teacher, 3 * head)
    states.requires_grad_()
    head.requires_grad_(learns_head)
    found = head_loss(states, head, target, rows)
    loss, num_right = found.loss, found.num_right
    (2 * loss).backward()
    again, head_again = states.detach().clone().requires_grad_(), head.detach().clone().requires_grad_()
    law = (teacher @ (3 * head.detach()).T).softmax(-1)[rows]
    expected = -(law * (again @ head_again.T).log_softmax(-1)).sum()
    (2 * expected).backward()
    assert torch.allclose(loss, expected, atol=1e-4)
    assert torch.allclose(states.grad, again.grad, atol=1e-5)
    assert int(num_right) == int(((again @ head_again.T).argmax(-1) == law.argmax(-1)).sum())
    if learns_head:
        assert torch.allclose(head.grad, head_again.grad, atol=1e-5)
    else:
        assert head.grad is None


def test_no_rows_is_no_loss():
    target = target_probs(torch.zeros(0, 6), torch.randn(20, 6))
    found = head_loss(torch.zeros(0, 6, requires_grad=True), torch.randn(20, 6), target)
    assert (float(found.loss.detach()), int(found.num_right), found.num_rows) == (0.0, 0, 0)
