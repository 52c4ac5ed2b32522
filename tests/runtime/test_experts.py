"""Routing and experts against loops over rows, written from the paper."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from trt_spec.runtime.experts import GroupedRouter, RoutedExperts, grouped_linear


def naive_route(row: torch.Tensor, router: GroupedRouter) -> dict[int, float]:
    """Expert to weight of one row, by the words of the paper."""
    scores = [float(torch.sigmoid(row @ weight)) for weight in router.weight]
    choice = [score + float(bias) for score, bias in zip(scores, router.bias, strict=True)]
    size = len(scores) // router.num_groups
    groups = [range(first, first + size) for first in range(0, len(scores), size)]
    groups.sort(key=lambda group: -sum(sorted(choice[expert] for expert in group)[-2:]))
    eligible = [expert for group in groups[: router.num_chosen_groups] for expert in group]
    chosen = sorted(eligible, key=lambda expert: -choice[expert])[: router.num_chosen]
    total = sum(scores[expert] for expert in chosen) if router.is_normalised else 1.0
    return {expert: scores[expert] / total * router.scale for expert in chosen}


@pytest.mark.parametrize("is_normalised", [True, False])
@pytest.mark.parametrize(("num_groups", "num_chosen_groups"), [(4, 2), (4, 1), (8, 3), (1, 1)])
def test_router_follows_the_paper(num_groups, num_chosen_groups, is_normalised):
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(16, 24, generator=generator), torch.randn(16, generator=generator)
    router = GroupedRouter(
        weight * 0.4,
        bias * 0.15,
        num_groups=num_groups,
        num_chosen_groups=num_chosen_groups,
        num_chosen=2,
        is_normalised=is_normalised,
        scale=2.5,
    )
    x = torch.randn(200, 24, generator=generator)
    experts, weights = router(x)
    for row, chosen, found in zip(x, experts.tolist(), weights.tolist(), strict=True):
        assert dict(zip(chosen, found, strict=True)) == pytest.approx(naive_route(row, router), abs=1e-5)
    assert len(set(experts.flatten().tolist())) > 8  # nothing degenerate was compared
    router.bias = torch.zeros_like(bias)
    assert (router(x)[0].sort().values != experts.sort().values).any()  # and the bias did choose


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("hidden", "inner"), [(16, 8), (15, 7)])  # aligned for torch's grouped product, or not
def test_experts_see_their_own_rows(dtype, hidden, inner):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return (0.5 * torch.randn(shape, generator=generator)).to(dtype)

    gate_up, down, x = draw(6, 2 * inner, hidden), draw(6, hidden, inner), draw(9, hidden)
    experts = torch.tensor([[0, 5], [5, 2], [2, 0], [5, 0], [0, 2], [2, 5], [5, 0], [0, 5], [2, 0]])  # 1, 3, 4 unused
    weights = torch.rand(9, 2, generator=generator)
    actual = RoutedExperts(gate_up, down)(x, experts, weights)
    assert actual.dtype is dtype
    expected = torch.zeros(9, hidden, dtype=torch.float64)
    for row in range(9):
        for expert, weight in zip(experts[row], weights[row], strict=True):
            gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
            expected[row] += weight * (down[expert].double() @ (F.silu(gate) * up))
    # One rounding of the dtype per product and one of the result, on values around 1.
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-7, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=0)


def test_grouped_linear_takes_empty_groups():
    x, weight = torch.randn(3, 8), torch.randn(4, 5, 8)
    ends = torch.tensor([0, 2, 2, 3])
    expected = torch.cat((x[:2] @ weight[1].T, x[2:] @ weight[3].T))
    torch.testing.assert_close(grouped_linear(x, weight, ends), expected)
    torch.testing.assert_close(grouped_linear(x.double(), weight.double(), ends), expected.double(), atol=1e-5, rtol=0)
