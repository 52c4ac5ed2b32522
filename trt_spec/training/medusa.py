"""Medusa heads: residual blocks that start as the identity, in front of the target's own output.

The heads have no output to the vocabulary of their own: Hugging Face's text-generation-inference reads this layout
(layers/medusa.py, MedusaHeadV2: `{head}.0.linear` and the target's lm_head). Source: Medusa (Cai et al. 2024,
arXiv:2401.10774), section 2.2.1, where each head has an output that starts as the target's.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.runtime.models import Model
from trt_spec.training.files import save_checkpoint
from trt_spec.training.losses import PositionLoss, head_loss, target_probs
from trt_spec.training.modules import Weights
from trt_spec.training.padded import Padded
from trt_spec.training.recipe import Recipe

NUM_OTHERS = 2048  # ids of a step beside the frequent ones, so that no row of the output is free to grow


class MedusaRecipe(Recipe):
    """A `Recipe` for Medusa heads.

    Args:
        target: what is drafted for.
        num_heads: tokens guessed, one by each head.
        num_blocks: residual blocks of a head.
        row_share: share of a batch's rows that a step looks at; outputs over a large vocabulary are what costs.
        frequent_ids: ids that every step computes, beside `NUM_OTHERS` drawn from the rest; None computes all.
    """

    method = "medusa"

    def __init__(
        self,
        target: Model,
        num_heads: int,
        num_blocks: int = 1,
        row_share: float = 1.0,
        frequent_ids: Tensor | None = None,
    ):
        self.target, self.num_heads, self.num_blocks, self.row_share = target, num_heads, num_blocks, row_share
        self.frequent_ids = frequent_ids
        is_rare = torch.ones(target.vocab_size, dtype=torch.bool)
        is_rare[[] if frequent_ids is None else frequent_ids] = False
        self._rare_ids = is_rare.nonzero().flatten()
        self.notes = {"num_heads": num_heads, "num_blocks": num_blocks, "row_share": row_share, "output": "target's"}
        if frequent_ids is not None:
            self.notes |= {"frequent_ids": len(frequent_ids), "others_drawn": min(NUM_OTHERS, len(self._rare_ids))}

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """See `Recipe`. Zeros: silu(0) adds nothing, so every head starts as the target's own guess."""
        hidden = self.target.config.hidden_size
        start = {}
        for head in range(self.num_heads):
            for block in range(self.num_blocks):
                start[f"{head}.{block}.linear.weight"] = torch.zeros(hidden, hidden)
                start[f"{head}.{block}.linear.bias"] = torch.zeros(hidden)
        return start

    def losses(self, weights: Weights, batch: Padded) -> list[PositionLoss]:
        """See `Recipe`. Head i reads the state of t and guesses token t + 2 + i."""
        found = []
        generator = torch.Generator().manual_seed(int(batch.token_ids.sum()))  # what is drawn follows from the batch
        head_weight = self._head_rows(generator)
        for head in range(self.num_heads):
            places = batch.predicts_reply(2 + head, head).nonzero()
            places = self._some(places, batch)
            rows, columns = places[:, 0], places[:, 1]
            target = target_probs(batch.last[rows, columns + 1 + head], head_weight)
            x = batch.last[rows, columns]
            for block in range(self.num_blocks):
                name = f"{head}.{block}.linear"
                x = x + F.silu(F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"]))
            found.append(head_loss(x, head_weight, target))
        return found

    def _head_rows(self, generator: torch.Generator) -> Tensor:
        """Rows of the target's head that this step computes, [D, H]."""
        if self.frequent_ids is None:
            return self.target.head_weight
        drawn = torch.randperm(len(self._rare_ids), generator=generator)[:NUM_OTHERS]
        ids = torch.cat((self.frequent_ids, self._rare_ids[drawn]))
        return self.target.head_weight[ids.to(self.target.device)]

    def _some(self, places: Tensor, batch: Padded) -> Tensor:
        """Every n-th row, from a place that the batch's tokens decide."""
        stride = max(round(1 / self.row_share), 1)
        return places[int(batch.token_ids.sum()) % stride :: stride]

    def save(self, directory: Path, weights: Weights) -> None:
        """See `Recipe`. Names as Medusa's trainer saves them."""
        config = {
            "medusa_num_heads": self.num_heads,
            "medusa_num_layers": self.num_blocks,
            "hidden_size": self.target.config.hidden_size,
            "vocab_size": self.target.vocab_size,
            "torch_dtype": "bfloat16",
        }
        save_checkpoint(directory / "medusa_lm_head.safetensors", weights, config)
