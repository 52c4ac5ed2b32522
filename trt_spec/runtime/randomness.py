"""All randomness of drafting and acceptance: `choose` an index, `flip` a coin.

The engine answers both with counter-based random numbers, keyed by (request seed, step, role, index), so that no two
uses share a number and no request shares a stream with another. The exact tests answer them by walking every
outcome, through the same production code.
Source of the generator: Philox (Salmon et al. 2011), as in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


class Role(IntEnum):
    """What a random number is used for."""

    TARGET = 0  # the token that ends a step: sampled, recovered or bonus
    DRAFT = 1  # a draft token
    ACCEPT = 2  # the acceptance coin of a draft token


class Draw(NamedTuple):
    """The key of one random number. `step` is the number of tokens that the request had when the step began."""

    seed: int
    step: int
    role: Role
    index: int


class Randomness(Protocol):
    def choose(self, probs: Tensor, draws: Sequence[Draw]) -> list[int]:
        """One index per row of probs [R, V], distributed as that row. A row need not be normalised."""

    def flip(self, probs: Sequence[float], draws: Sequence[Draw]) -> list[bool]:
        """One coin per entry, True with that probability (values above 1 count as 1)."""


class PhiloxRandomness:
    """The production source: a pure function of the key."""

    def uniform(self, draw: Draw) -> float:
        """The number in [0, 1) that belongs to this key, with 53 random bits."""
        bits = np.random.Philox(key=draw.seed, counter=(draw.index, int(draw.role), draw.step, 0)).random_raw()
        return (bits >> 11) * 2.0**-53

    def choose(self, probs: Tensor, draws: Sequence[Draw]) -> list[int]:
        """Inverts the cumulative distribution; a zero-probability index is never returned."""
        cdf = probs.cumsum(-1, dtype=torch.float64)
        uniform = torch.tensor([[self.uniform(draw)] for draw in draws], dtype=torch.float64, device=probs.device)
        return torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True)[:, 0].tolist()

    def flip(self, probs: Sequence[float], draws: Sequence[Draw]) -> list[bool]:
        return [self.uniform(draw) < prob for prob, draw in zip(probs, draws, strict=True)]


@dataclass(frozen=True)
class Stream:
    """The randomness of one request in one step, as acceptance rules and drafters see it."""

    source: Randomness
    seed: int
    step: int

    def draw(self, role: Role, index: int = 0, ahead: int = 0) -> Draw:
        return Draw(self.seed, self.step + ahead, role, index)

    def choose(self, probs: Tensor, role: Role, index: int = 0, ahead: int = 0) -> int:
        """An index distributed as probs [V]; `ahead` counts the tokens of this step that come before it."""
        return self.source.choose(probs[None], [self.draw(role, index, ahead)])[0]

    def flip(self, prob: float, role: Role, index: int = 0) -> bool:
        return self.source.flip([prob], [self.draw(role, index)])[0]
