"""Attention of a packed batch over the KV cache, one fused call per segment.

Query heads that share a key head are folded into the row axis: a group of G query heads on R rows becomes G · R rows
on one key head. That is grouped-query attention without repeating keys, and several times faster on CPU than
`enable_gqa`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.runtime.batch import Batch, Segment
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.rope import RotaryTable, rotate_

# Slots · rows · cached tokens of a segment up to which torch's fused kernel wins on CPU in bfloat16. Beyond, what it
# spends per slot and head is more than copies of keys and values cost. Measured with 3 query heads per key head.
MAX_FUSED_SCORES = 1600


@dataclass(frozen=True)
class ForwardContext:
    """What all layers share in one forward of N packed rows.

    Attributes:
        attention: whose masks these are.
        cos, sin: [N, 1, rotary columns], for the rows' positions.
    """

    batch: Batch
    cache: KVCache
    attention: GroupedQueryAttention
    cos: Tensor
    sin: Tensor

    @cached_property
    def masks(self) -> list[Tensor | None]:
        """Of the batch's segments [slots, 1, R · G, L], made once for all layers, where torch attends."""
        return [self.attention.folded_mask(segment, self.cos.dtype) for segment in self.batch.segments]

    def rotate_(self, heads: Tensor) -> None:
        """Rotates queries or keys [N, heads, rotary columns] by their positions, in place."""
        rotate_(heads, self.cos, self.sin)

    def write(self, layer: int, rows: Tensor) -> None:
        """Caches the rows [N, cache width] of a layer."""
        self.cache.layers[layer].index_copy_(0, self.batch.cache_rows, rows.to(self.cache.rows.dtype))


class GroupedQueryAttention:
    """softmax(q · kᵀ · scale + mask) · v; each key head serves `num_heads / num_kv_heads` query heads.

    All layers of a model share one, with the rotary table and the kind of cache that their geometry needs.
    """

    has_equal_widths = True  # of keys and values

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, rope: RotaryTable, scale: float | None = None):
        self.num_heads, self.num_kv_heads, self.head_dim, self.rope = num_heads, num_kv_heads, head_dim, rope
        self.scale = scale or head_dim**-0.5
        self.group = num_heads // num_kv_heads
        self.cache_width = (2 if self.has_equal_widths else 1) * num_kv_heads * head_dim

    def make_cache(self, num_layers: int, num_slots: int, slot_len: int) -> KVCache:
        """An empty cache of as many layers."""
        rope = self.rope
        return KVCache(num_layers, num_slots, slot_len, self.cache_width, rope.dtype, rope.cos.device)

    def context(self, batch: Batch, cache: KVCache) -> ForwardContext:
        """What the layers need for a forward."""
        return ForwardContext(batch, cache, self, *self.rope.at(batch.positions))

    def keys_values(self, cache: KVCache, layer: int, segment: Segment) -> tuple[Tensor, Tensor]:
        """Views [slots, num_kv_heads, L, key or value width] of a segment's cached rows."""
        heads, dim, width = self.num_kv_heads, self.head_dim, self.cache_width
        shape = (segment.num_slots, heads, segment.length, dim)
        stride = (cache.slot_len * width, dim, width, 1)
        start, rows = segment.slot_start * cache.slot_len * width, cache.layers[layer]
        start += rows.storage_offset()
        return rows.as_strided(shape, stride, start), rows.as_strided(shape, stride, start + heads * dim)

    def folded_mask(self, segment: Segment, dtype: torch.dtype) -> Tensor | None:
        """A segment's mask for queries of `dtype`, a row for each query head of a key head.

        torch's fused kernel on CPU computes in float32 and would convert a mask in every layer: it gets one.
        """
        if segment.mask is None:
            return None
        device = segment.mask.device
        if device.type == "cpu" and not self._prefers_bmm(segment, dtype, device):
            dtype = torch.promote_types(dtype, torch.float32)
        return segment.mask.to(dtype).repeat_interleave(self.group, dim=2)

    def __call__(self, q: Tensor, layer: int, context: ForwardContext) -> Tensor:
        """Attends q [N, num_heads · head_dim] to a layer's cached rows; returns [N, num_heads · value width]."""
        parts = [
            self._attend(q, context.cache, layer, segment, mask)
            for segment, mask in zip(context.batch.segments, context.masks, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend(self, q: Tensor, cache: KVCache, layer: int, segment: Segment, mask: Tensor | None) -> Tensor:
        slots, rows, kv_heads, group = segment.num_slots, segment.num_rows, self.num_kv_heads, self.group
        q = q[segment.row_start : segment.row_end] if segment.pad is None else q[segment.pad]
        if rows > 1:
            q = q.reshape(slots, rows, kv_heads, group, -1).transpose(1, 2)
        q = q.reshape(slots, kv_heads, rows * group, -1)
        k, v = (rows.to(q.dtype) for rows in self.keys_values(cache, layer, segment))
        if self._prefers_bmm(segment, q.dtype, q.device):
            out = _bmm_attention(q, k, v, mask, self.scale)
        else:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        if rows > 1:
            out = out.view(slots, kv_heads, rows, group, -1).transpose(1, 2)
        out = out.reshape(slots * rows, -1)
        return out if segment.unpad is None else out[segment.unpad]

    def _prefers_bmm(self, segment: Segment, dtype: torch.dtype, device: torch.device) -> bool:
        """torch's fused CPU kernel is the faster one only for a handful of rows in bfloat16, and needs equal widths."""
        if device.type != "cpu":
            return False
        is_large = segment.num_slots * segment.num_rows * segment.length > MAX_FUSED_SCORES
        return (is_large and dtype is torch.bfloat16) or not self.has_equal_widths


class LatentAttention(GroupedQueryAttention):
    """Absorbed multi-head latent attention: all query heads share one key, the cached row [latent | rotated key], and
    one value, its latent.

    Queries are [N, num_heads · (rank + rope_dim)], already in latent space; outputs [N, num_heads · rank] are latents
    too. Source: DeepSeek-V2 (2024), section 2.1, with the up-projections absorbed into query and output.
    """

    has_equal_widths = False

    def __init__(self, num_heads: int, rank: int, rope: RotaryTable, scale: float):
        super().__init__(num_heads, 1, rank + 2 * rope.half, rope, scale)
        self.rank = rank

    def keys_values(self, cache: KVCache, layer: int, segment: Segment) -> tuple[Tensor, Tensor]:
        keys = cache.slots(layer, segment.slot_start, segment.slot_end, segment.length)[:, None]
        return keys, keys[..., : self.rank]


def _bmm_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The same attention as two batched matrix products over contiguous copies of k and v [slots, heads, L, D]."""
    slots, heads, rows, _ = q.shape
    queries, keys = q.flatten(0, 1), k.contiguous().flatten(0, 1).transpose(1, 2)
    if mask is None:
        scores = torch.bmm(queries, keys).mul_(scale)
    else:
        mask = mask.expand(slots, heads, rows, -1).flatten(0, 1)
        scores = torch.baddbmm(mask, queries, keys, alpha=scale)
    return torch.bmm(scores.softmax(-1), v.contiguous().flatten(0, 1)).view(slots, heads, rows, -1)
