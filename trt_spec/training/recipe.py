"""What the trainer needs of a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from trt_spec.training.losses import PositionLoss
from trt_spec.training.modules import Weights
from trt_spec.training.padded import Padded


class Recipe(ABC):
    """How one method is trained.

    Attributes:
        method: as in the run config.
        capture: target layers whose input the method reads, see `Model.forward`.
        rate_scales: factors on the learning rate, by stored name; 1 where there is none.
        notes: what the model card tells of the recipe.
    """

    method: str
    capture: tuple[int, ...] = ()
    rate_scales: ClassVar[Mapping[str, float]] = {}
    notes: dict[str, object]

    @abstractmethod
    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """What is trained, by stored name, in float32."""

    @abstractmethod
    def losses(self, weights: Weights, batch: Padded) -> list[PositionLoss]:
        """The losses of every draft position, first to last, for weights in the dtype of the batch."""

    @abstractmethod
    def save(self, directory: Path, weights: Weights) -> None:
        """Writes the checkpoint's files, but for its card, to an empty directory. `weights` are in float32."""
