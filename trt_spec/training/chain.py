"""Training-time test: a head that reads features learns on its own outputs, as far ahead as it will draft.

Step 0 reads the target's features; step j reads what step j − 1 gave one position earlier, and attends as the runtime
does behind j drafts (`chain_attention`). Source: EAGLE-3 (Li et al. 2025, arXiv:2503.01840), section 3.1.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.training.losses import PositionLoss, TargetProbs, head_loss, target_probs
from trt_spec.training.modules import KeysValues, LayerTwin, Weights, causal_attention, chain_attention
from trt_spec.training.padded import Padded
from trt_spec.training.recipe import Recipe


class ChainRecipe(Recipe):
    """A `Recipe` of one layer that is applied again and again.

    The pair of position t holds the feature of t and the token t + 1; from it the token t + 2 is predicted.

    Args:
        layer: the draft layer.
        embedding: [V, H] of the target, frozen.
        target_head: [D, H] rows of the target's head that its probabilities are taken over.
        num_steps: draft positions to train.
    """

    def __init__(self, layer: LayerTwin, embedding: Tensor, target_head: Tensor, num_steps: int):
        self.layer, self.embedding, self.target_head, self.num_steps = layer, embedding, target_head, num_steps

    @abstractmethod
    def features(self, weights: Weights, batch: Padded) -> Tensor:
        """The target's features [B, L, F]."""

    @abstractmethod
    def enter(self, weights: Weights, features: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """(residual [.., H], normed input of attention) of pairs."""

    @abstractmethod
    def leave(self, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        """(features of the next step, what the head reads) from the layer's output [.., H]."""

    @abstractmethod
    def head(self, weights: Weights) -> Tensor:
        """The draft's head [D, H]."""

    def losses(self, weights: Weights, batch: Padded) -> list[PositionLoss]:
        """See `Recipe`."""
        num_pairs = batch.token_ids.shape[1] - 1
        embedded = F.embedding(batch.token_ids[:, 1:], self.embedding)
        target, entries = self._target_probs(batch)
        found, steps = [], []
        features, start = self.features(weights, batch)[:, :num_pairs], 0
        for step in range(self.num_steps):
            if step == 1:
                # Drafts start behind the first token of a reply: rows of the prompt are needed in step 0 alone.
                start = max(batch.first_reply - 1, 0)
                features = features[:, start:]
            if step:
                features, start = features[:, :-1], start + 1
            if features.shape[1] == 0:
                break
            features, states = self._step(weights, features, embedded[:, start:], start, steps)
            mask = batch.predicts_reply(2, step)[:, start:num_pairs]
            rows = entries[:, start:num_pairs][mask]
            found.append(head_loss(states[mask], self.head(weights), target, rows))
        return found

    def _step(
        self, weights: Weights, features: Tensor, embedded: Tensor, start: int, steps: list[KeysValues]
    ) -> tuple[Tensor, Tensor]:
        """One pass of the layer over pairs from position `start` on; appends its keys and values to `steps`."""
        residual, normed = self.enter(weights, features, embedded)
        q, own = self.layer.project(weights, normed, start)
        steps.append(own)
        attended = causal_attention(q, own) if len(steps) == 1 else chain_attention(q, start, steps)
        return self.leave(weights, self.layer.finish(weights, residual, attended))

    def _target_probs(self, batch: Padded) -> tuple[TargetProbs, Tensor]:
        """The target's probabilities of token t + 2 for the rows t that need them, and [B, L] the entry of each row."""
        mask = batch.predicts_reply(2)
        states = batch.last.roll(-1, 1)[mask]  # token t + 2 is chosen from the state of t + 1
        entries = torch.zeros(mask.shape, dtype=torch.int64, device=mask.device)
        entries[mask] = torch.arange(len(states), device=mask.device)
        return target_probs(states, self.target_head), entries
