"""EAGLE-1 and EAGLE-2: one decoder layer on [embedding, feature]; the two differ in the trees drawn, not in the layer.

    x = layer(fc([embed(token t + 1), feature t])),  logits = target's head(x),  next feature = x

The feature is the target's hidden state behind its final norm, which is what its head reads.
Sources: EAGLE (Li et al. 2024, arXiv:2401.15077), EAGLE-2 (arXiv:2406.16858), SafeAILab/EAGLE model/cnets1.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.checkpoints.eagle_config import LAYER, EagleConfig
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.heads.base import DraftLayer, OutputHead, fit_embedding, own_or_shared
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.linear import Linear
from trt_spec.runtime.models.base import Hidden, Model
from trt_spec.runtime.models.llama import DecoderLayer
from trt_spec.runtime.norm import make_rms_norm


class EagleHead:
    """A `FeatureHead` of EAGLE-1 or 2.

    A `norm` among the tensors, as ModelOpt trains it, stands before the head; the recursion takes its input, or, with
    `recurs_on_norm`, its output.

    Args:
        tensors: by canonical name, in the target's dtype. Embedding and head are the target's where absent.
        num_positions: length of the rotary table.
    """

    capture = ()
    num_turns = 1

    def __init__(self, config: EagleConfig, tensors: Mapping[str, Tensor], target: Model, num_positions: int):
        self.dtype, self.device = target.dtype, target.device
        self.max_positions = config.layer.max_position_embeddings
        self.embedding = fit_embedding(own_or_shared(tensors.get("embed_tokens.weight"), target.embedding), target)
        self.fc = Linear(tensors["fc.weight"], tensors.get("fc.bias"))
        self.draft = DraftLayer(config.layer, num_positions, self.dtype, self.device)
        self.layer = DecoderLayer(config.layer, tensors, LAYER, self.draft.attention)
        norm = tensors.get("norm.weight")
        self.norm = None if norm is None else make_rms_norm(norm, config.layer.rms_norm_eps)
        self.recurs_on_norm = config.recurs_on_norm
        head = own_or_shared(tensors.get("lm_head.weight"), target.head_weight)
        self.head = target.logits if head is target.head_weight else OutputHead(head, target.vocab_size)

    def make_cache(self, num_slots: int, slot_len: int) -> KVCache:
        """See `FeatureHead`."""
        return self.draft.make_cache(num_slots, slot_len)

    def target_features(self, hidden: Hidden) -> Tensor:
        """The state behind the final norm [N, H]."""
        return hidden.last

    def forward(self, features: Tensor, batch: Batch, cache: KVCache, turn: int = 0) -> Tensor:
        """See `FeatureHead`."""
        x = self.fc(torch.cat((F.embedding(batch.token_ids, self.embedding), features), dim=-1))
        rope, masks = self.draft.rope, self.draft.attention.folded_masks(batch)
        x = self.layer(x, cache, turn, batch, masks, rope, rope.at(batch.positions))
        return self.norm(x) if self.norm is not None and self.recurs_on_norm else x

    def logits(self, features: Tensor, turn: int = 0) -> Tensor:
        """See `FeatureHead`."""
        return self.head(features if self.norm is None or self.recurs_on_norm else self.norm(features))
