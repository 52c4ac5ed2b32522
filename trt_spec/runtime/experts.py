"""Mixture of experts on packed rows: a router that works in groups, and experts that each see their rows at once.

Source of the routing: DeepSeek-V3 (2024), section 2.1.2, as `transformers/models/deepseek_v3` computes it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class GroupedRouter:
    """Chooses experts by sigmoid score, from the best groups of experts only.

    The bias, which training moves to balance the load, decides who is chosen; it is no part of the weights.

    Args:
        weight: [E, H], float32 or wider.
        bias: [E], added to the scores for choosing.
        num_groups, num_chosen_groups: experts are in that many equal groups; a group scores the sum of its best two.
        num_chosen: K, experts per row.
        is_normalised: whether the weights of a row sum to one before scaling.
        scale: factor on the weights.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        *,
        num_groups: int,
        num_chosen_groups: int,
        num_chosen: int,
        is_normalised: bool,
        scale: float,
    ):
        self.weight, self.bias, self.scale, self.is_normalised = weight, bias, scale, is_normalised
        self.num_groups, self.num_chosen_groups, self.num_chosen = num_groups, num_chosen_groups, num_chosen

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, H] -> (experts [N, K] int64, weights [N, K] in the router's type)."""
        scores = F.linear(x.to(self.weight.dtype), self.weight).sigmoid()
        choice = (scores + self.bias).unflatten(-1, (self.num_groups, -1))  # [N, groups, E / groups]
        if self.num_chosen_groups < self.num_groups:
            group_scores = choice.topk(2, dim=-1).values.sum(-1)
            chosen_groups = group_scores.topk(self.num_chosen_groups, dim=-1).indices
            is_out = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, chosen_groups, False)
            choice = choice.masked_fill(is_out[..., None], float("-inf"))
        experts = choice.flatten(1).topk(self.num_chosen, dim=-1).indices
        weights = scores.gather(1, experts)
        if self.is_normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return experts, weights * self.scale


class RoutedExperts:
    """Gated SiLU MLPs of one size, of which each row uses a few.

    Args:
        gate_up: [E, 2 · I, H], gate above up.
        down: [E, H, I].
    """

    def __init__(self, gate_up: Tensor, down: Tensor):
        self.gate_up, self.down = gate_up, down

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of the chosen experts' outputs: x [N, H], experts and weights [N, K] -> [N, H].

        Rows are sorted by expert, so that each expert that is used is read once, and put back into their own order
        before they are summed: a row's result does not depend on the order in which the others arrive.
        """
        num_rows, num_chosen = experts.shape
        by_expert, order = experts.flatten().sort(stable=True)
        ends = torch.searchsorted(by_expert, torch.arange(len(self.down), device=x.device), right=True)
        sorted_rows = x.to(self.gate_up.dtype)[order // num_chosen]
        gate, up = grouped_linear(sorted_rows, self.gate_up, ends).chunk(2, dim=-1)
        outputs = grouped_linear(F.silu(gate).mul_(up), self.down, ends)
        unsorted = torch.empty_like(outputs).index_copy_(0, order, outputs).view(num_rows, num_chosen, -1)
        return (unsorted * weights[..., None]).sum(1).to(x.dtype)


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows [ends[e − 1], ends[e]) of x [M, in] times weight[e]ᵀ, for weight [E, out, in] -> [M, out].

    torch's grouped product takes neither float64 nor rows that do not start at multiples of 16 bytes; those go expert
    by expert.
    """
    is_aligned = x.shape[-1] * x.element_size() % 16 == 0
    if is_aligned and x.dtype is not torch.float64:
        return F.grouped_mm(x, weight.transpose(1, 2), offs=ends.int())
    bounds = [0, *ends.tolist()]
    used = [expert for expert in range(len(weight)) if bounds[expert] < bounds[expert + 1]]
    return torch.cat([F.linear(x[bounds[expert] : bounds[expert + 1]], weight[expert]) for expert in used])
