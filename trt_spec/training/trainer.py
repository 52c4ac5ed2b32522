"""The training loop: AdamW on float32 weights, forwards in the target's dtype, resumable after any step.

Everything that happens in a step follows from the seed and the step's number, so a run that was killed goes on as if
it had not been.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from trt_spec.atomic import replacing
from trt_spec.errors import MachineError
from trt_spec.training.feature_cache import FeatureCache, Sample, batches
from trt_spec.training.losses import PositionLoss
from trt_spec.training.padded import Padded
from trt_spec.training.recipe import Recipe

SMOOTHING = 0.98  # of the figures that progress shows
SAVE_EVERY_S = 60.0


@dataclass(frozen=True)
class TrainSettings:
    """How long and how fast.

    Attributes:
        num_steps: optimiser steps.
        batch_tokens: tokens of one step, padding included.
        learning_rate: at its peak.
        warmup: share of the steps in which the rate rises; then it falls as a cosine to `final_rate` of the peak.
        position_decay: each draft position counts this much of the one before it.
        betas, weight_decay, max_grad_norm: of AdamW, and where gradients are clipped.
        seed: of the order of the data.
    """

    num_steps: int
    batch_tokens: int = 4096
    learning_rate: float = 1e-3
    warmup: float = 0.05
    final_rate: float = 0.05
    position_decay: float = 0.8
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    seed: int = 0

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        rising = max(int(self.warmup * self.num_steps), 1)
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        part = (step - rising) / max(self.num_steps - rising, 1)
        return self.learning_rate * (self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * part)) / 2)


@dataclass
class Figures:
    """What a run has seen so far. Losses (nats) and accuracies are smoothed over the last steps, by draft position.

    Attributes:
        step: steps done.
        num_visits: tokens gone through, without padding; a token counts each time.
        losses: cross-entropy against the target's law.
        accuracies: share of rows where draft and target have the same likeliest token.
        seconds: time spent in steps, over all runs.
    """

    step: int = 0
    num_visits: int = 0
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, found: Sequence[PositionLoss]) -> None:
        """Counts one batch."""
        for index, one in enumerate(found):
            if one.num_rows == 0:
                continue
            values = (float(one.loss.detach()) / one.num_rows, int(one.num_right) / one.num_rows)
            for figures, value in zip((self.losses, self.accuracies), values, strict=True):
                if index == len(figures):
                    figures.append(value)
                elif index < len(figures):
                    figures[index] += (1 - SMOOTHING) * (value - figures[index])

    def text(self, num_steps: int) -> str:
        """One line for the progress display."""
        shares = " / ".join(f"{100 * value:.0f}" for value in self.accuracies)
        loss = self.losses[0] if self.losses else math.nan
        left = self.seconds / max(self.step, 1) * (num_steps - self.step)
        return f"step {self.step} of {num_steps}, loss {loss:.3f}, accuracy {shares} %, {_duration(left)} left"


def _duration(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


Progress = Callable[[Figures], None]


class Trainer:
    """Trains one recipe on one feature cache.

    Args:
        initial: the weights to start from, by stored name, in float32.
        num_shards: shards of the cache to train on, from the first.
        state_path: where the state is kept; a run that finds one goes on from it.
        key: says what the state belongs to; another one's is not taken.
        dtype, device: of the forwards.
    """

    def __init__(
        self,
        recipe: Recipe,
        initial: Mapping[str, Tensor],
        settings: TrainSettings,
        cache: FeatureCache,
        num_shards: int,
        state_path: Path,
        key: str,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.recipe, self.settings, self.cache, self.num_shards = recipe, settings, cache, num_shards
        self.state_path, self.key, self.dtype, self.device = state_path, key, dtype, device
        self.figures = Figures()
        self.weights = {name: tensor.clone().to(device).requires_grad_() for name, tensor in initial.items()}
        groups = [
            {"params": [tensor], "scale": recipe.rate_scales.get(name, 1.0)} for name, tensor in self.weights.items()
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
        )
        self._restore()

    def run(self, progress: Progress) -> dict[str, Tensor]:
        """Trains to the last step and returns the weights, in float32 on the CPU."""
        saved = time.monotonic()
        for samples in self._batches():
            if self.figures.step >= self.settings.num_steps:
                break
            self.step(samples)
            progress(self.figures)
            if time.monotonic() - saved > SAVE_EVERY_S:
                self.save()
                saved = time.monotonic()
        self.save()
        return {name: tensor.detach().cpu() for name, tensor in self.weights.items()}

    def step(self, samples: Sequence[Sample]) -> None:
        """One optimiser step on one batch.

        Raises:
            MachineError: the loss is not finite; the state of the last save is kept.
        """
        started = time.monotonic()
        rate = self.settings.rate(self.figures.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        batch = Padded.of(samples, self.dtype, self.device)
        placed = {name: tensor.to(self.dtype) for name, tensor in self.weights.items()}
        found = self.recipe.losses(placed, batch)
        total = sum(
            (self.settings.position_decay**index * one.loss / one.num_rows for index, one in enumerate(found)
             if one.num_rows),
            start=torch.zeros((), device=self.device),
        )  # fmt: skip
        if not bool(total.isfinite()):
            raise MachineError(
                "the loss is not finite any more",
                where=f"step {self.figures.step}",
                remedy="train with a lower --learning-rate, or with --set target.dtype=float32",
            )
        if total.requires_grad:
            self.optimizer.zero_grad(set_to_none=True)
            total.backward()
            torch.nn.utils.clip_grad_norm_(self.weights.values(), self.settings.max_grad_norm)
            self.optimizer.step()
        self.figures.add(found)
        self.figures.step += 1
        self.figures.num_visits += sum(map(len, samples))
        self.figures.seconds += time.monotonic() - started

    def _batches(self) -> Iterator[list[Sample]]:
        """Batches from where the run stands, epoch after epoch."""
        skipped, epoch = self.figures.step, 0
        while True:
            shards = range(self.num_shards)
            is_empty = True
            for samples in batches(self.cache, shards, self.settings.batch_tokens, f"{self.settings.seed}/{epoch}"):
                is_empty = False
                if skipped:
                    skipped -= 1
                else:
                    yield samples
            if is_empty:
                return
            epoch += 1

    # ---- the state on disk ----

    def save(self) -> None:
        """Keeps weights, moments and counts; the file before it stays until this one is whole."""
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.weights.items():
            tensors[f"weight/{name}"] = tensor.detach().cpu().contiguous()
            for part, value in self.optimizer.state.get(tensor, {}).items():
                tensors[f"{part}/{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
        metadata = {"key": self.key, "figures": json.dumps(asdict(self.figures))}
        self.state_path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.state_path) as temporary:
            save_file(tensors, temporary, metadata=metadata)

    def _restore(self) -> None:
        if not self.state_path.is_file():
            return
        with safe_open(self.state_path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("key") != self.key:
                return
            for name, tensor in self.weights.items():
                with torch.no_grad():
                    tensor.copy_(file.get_tensor(f"weight/{name}"))
                names = [part for part in ("step", "exp_avg", "exp_avg_sq") if f"{part}/{name}" in file.keys()]  # noqa: SIM118
                if names:
                    moments = {part: file.get_tensor(f"{part}/{name}") for part in names}
                    self.optimizer.state[tensor] = {
                        part: value if part == "step" else value.to(self.device) for part, value in moments.items()
                    }
            self.figures = Figures(**json.loads(metadata["figures"]))
