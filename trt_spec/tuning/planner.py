"""How long drafts should be at each batch size, and what that gives. Pure arithmetic on costs and acceptance.

    S(B, k) = E_k · T_plain(B) / T_step(B, k),   E_k = 1 + Σ_{i ≤ k} s_i

Position k + 1 pays where s_{k+1} · T_step / E_k > ΔT_step, that is where S rises. S is looked at for every k and not
only up to its first fall, because drafting has a price of its own that short drafts may not earn. What is compared is
S on the lower bound of E_k; where that is under `MIN_GAIN` nothing is drafted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trt_spec.tuning.cost_model import CostModel, step_ms
from trt_spec.tuning.survival import AcceptanceProfile

MAX_MIXED = 16  # sequences of a step whose drafts are looked at one by one
MIN_GAIN = 1.03  # below it, speculation is off: the gain would be within what a machine varies


@dataclass(frozen=True)
class Forecast:
    """One batch size and draft length.

    Attributes:
        speedup, speedup_low: S(B, k), and with the lower bound of E_k; both 1 for plain decoding.
        step_ms, tokens_per_s: of a step, and of all sequences together while they only decode.
    """

    batch: int
    draft_len: int
    speedup: float
    speedup_low: float
    step_ms: float
    tokens_per_s: float


class Planner:
    """Args:
    costs: of the machine that is planned for.
    acceptance: of the drafts that are planned with.
    """

    def __init__(self, costs: CostModel, acceptance: AcceptanceProfile):
        self.costs, self.acceptance = costs, acceptance

    def step_ms(self, batch: float, draft_len: int) -> float:
        """T_step(B, k). Where not every step has a draft, the mean over how many sequences of a step have one.

        A staircase at the mean number of rows is not the mean of the staircase; in larger batches the two are close.
        """
        drafted, share = self.acceptance.drafted_tokens[draft_len], self.acceptance.draft_share
        if draft_len == 0 or share >= 1 or share == 0 or batch > MAX_MIXED:
            return step_ms(self.costs, batch, draft_len, 1 + drafted)
        num = max(1, round(batch))
        costs = [step_ms(self.costs, batch, draft_len, 1 + count * drafted / share / num) for count in range(num + 1)]
        chances = [math.comb(num, count) * share**count * (1 - share) ** (num - count) for count in range(num + 1)]
        return sum(chance * cost for chance, cost in zip(chances, costs, strict=True))

    def forecast(self, batch: int, draft_len: int) -> Forecast:
        """What drafts of this length give at this batch size."""
        plain, spent = self.step_ms(batch, 0), self.step_ms(batch, draft_len)
        gain = self.acceptance.expected_tokens[draft_len]
        return Forecast(
            batch,
            draft_len,
            speedup=gain.estimate * plain / spent,
            speedup_low=gain.low * plain / spent,
            step_ms=spent,
            tokens_per_s=1e3 * batch * gain.estimate / spent,
        )

    def forecasts(self, batch: int) -> list[Forecast]:
        """By draft length, from 0."""
        return [self.forecast(batch, length) for length in range(self.acceptance.max_draft_len + 1)]

    def best(self, forecasts: Sequence[Forecast]) -> Forecast:
        """The one with the largest S on the lower bound; the first, plain decoding, where that does not pay."""
        found = max(forecasts, key=lambda one: one.speedup_low)
        return found if found.speedup_low >= MIN_GAIN else forecasts[0]

    def plan(self, batches: Sequence[int]) -> list[Forecast]:
        """The best schedule over these batch sizes, rising from 1.

        A schedule begins with its longest drafts (`speculation.max_draft_len`, for which buffers are made). So every
        length is tried for the first batch size, with the best of at most that length for the others, and the plan with
        the largest product of gains is taken; where none is above plain decoding, nothing is drafted at any size.
        """
        found = [self.forecasts(batch) for batch in batches]
        plans = [[one[0] for one in found]]
        for first in range(1, self.acceptance.max_draft_len + 1):
            plans.append([found[0][first], *(self.best(one[: first + 1]) for one in found[1:])])
        return max(plans, key=self._worth)

    def plan_one_length(self, batches: Sequence[int], *, can_be_off: bool) -> list[Forecast]:
        """The best plan for an engine that knows one draft length.

        Args:
            can_be_off: it drafts nothing from some number of requests on; otherwise it drafts always.
        """
        found = [self.forecasts(batch) for batch in batches]
        plans = [[one[0] for one in found]]
        for length in range(1, self.acceptance.max_draft_len + 1):
            ends = range(1, len(batches) + 1) if can_be_off else [len(batches)]
            plans += [[one[length if index < end else 0] for index, one in enumerate(found)] for end in ends]
        return max(plans, key=self._worth)

    def _worth(self, plan: Sequence[Forecast]) -> float:
        """Sum of log gains; the first batch size has to pay by itself, unless a later one does."""
        if plan[0].draft_len and max(one.speedup_low for one in plan) < MIN_GAIN:
            return -math.inf
        return sum(math.log(one.speedup_low) for one in plan)


def as_schedule(plan: Sequence[Forecast]) -> dict[int, int]:
    """`speculation.draft_len_schedule`: from this number of requests on, this length. Empty for no drafts."""
    if not any(one.draft_len for one in plan):
        return {}
    before = [None, *(one.draft_len for one in plan)]
    return {one.batch: one.draft_len for one, length in zip(plan, before, strict=False) if one.draft_len != length}


def draft_len_at(schedule: Mapping[int, int], batch: float) -> int:
    """What a schedule says for a batch size."""
    return next((length for start, length in sorted(schedule.items(), reverse=True) if start <= batch), 0)
