"""Preallocated KV cache: one row per token, one run of rows per slot.

A row holds everything that attention needs of one token in one layer: keys then values of all heads, or, for multi-head
latent attention, the compressed latent. So one `index_copy_` writes a packed batch, and moving tokens is the same for
every model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVCache:
    """Rows [layers, slots · slot_len, width] for `num_slots` sequences of at most `slot_len` tokens."""

    def __init__(
        self, num_layers: int, num_slots: int, slot_len: int, width: int, dtype: torch.dtype, device: torch.device
    ):
        self.num_slots, self.slot_len = num_slots, slot_len
        self.rows = torch.zeros(num_layers, num_slots * slot_len, width, dtype=dtype, device=device)
        self.layers = list(self.rows)  # views [slots · slot_len, width]
        self.by_slot = self.rows.view(num_layers, num_slots, slot_len, width)

    def slots(self, layer: int, start: int, end: int, length: int) -> Tensor:
        """View [end − start, length, width] of the first `length` tokens in neighbouring slots."""
        return self.by_slot[layer, start:end, :length]

    def keep(self, slot: int, num_cached_tokens: int, path: Sequence[int]) -> None:
        """Compacts the accepted nodes of one step: node `path[j]` becomes token `num_cached_tokens + j`.

        Nodes are stored in draft order right after the committed tokens. What lies behind the kept ones is rolled back
        by being out of reach: later steps overwrite it before they can see it.
        """
        if all(node == index for index, node in enumerate(path)):
            return
        base = slot * self.slot_len + num_cached_tokens
        source = torch.tensor(path, device=self.rows.device) + base
        self.rows[:, base : base + len(path)] = self.rows[:, source]

    def move(self, source: int, destination: int, num_tokens: int) -> None:
        """Moves the first `num_tokens` tokens of a slot to another slot, overwriting what was there."""
        self.by_slot[:, destination, :num_tokens] = self.by_slot[:, source, :num_tokens]

    def wipe(self, slot: int) -> None:
        """Zeroes a slot. Only needed after non-finite values: a mask of −inf does not hide a NaN."""
        self.by_slot[:, slot] = 0
