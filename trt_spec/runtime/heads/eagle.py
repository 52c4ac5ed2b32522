"""EAGLE-1 and EAGLE-2: one decoder layer on [embedding, feature]; the two differ in the trees drawn, not in the layer.

    x = layer(fc([embed(token t + 1), feature t])),  logits = target's head(x),  next feature = x

The feature is the target's hidden state behind its final norm, which is what its head reads.
Sources: EAGLE (Li et al. 2024, arXiv:2401.15077), EAGLE-2 (arXiv:2406.16858), SafeAILab/EAGLE model/cnets1.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trt_spec.checkpoints.eagle_config import LAYER, EagleConfig
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.heads.base import FeatureHead, fit_embedding, output_head, own_or_shared
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.linear import linear_of
from trt_spec.runtime.models.base import Model, embed
from trt_spec.runtime.models.llama import LlamaLayer, LlamaModel
from trt_spec.runtime.norm import RmsNorm


class EagleHead(FeatureHead):
    """EAGLE-1 or 2.

    A `norm` among the tensors, as ModelOpt trains it, stands before the head; the recursion takes its input, or, with
    `recurs_on_norm`, its output.

    Args:
        tensors: by canonical name, in the target's dtype (d2t as integers). Embedding and head are the target's where
            absent.
        num_positions: length of the rotary table.
    """

    def __init__(self, config: EagleConfig, tensors: Mapping[str, Tensor], target: Model, num_positions: int):
        attention = LlamaModel.make_attention(config.layer, num_positions, target.dtype, target.device)
        super().__init__(target, attention)
        self.config, self.max_positions = config, config.layer.max_position_embeddings
        self.embedding = fit_embedding(own_or_shared(tensors.get("embed_tokens.weight"), target.embedding), target)
        self.fc = linear_of(tensors, "fc")
        self.layer = LlamaLayer(config.layer, tensors, LAYER, attention)
        self.norm = self.make_norm(tensors, "norm")
        d2t = tensors.get("d2t")
        target_ids = None if d2t is None else torch.arange(len(d2t), device=d2t.device) + d2t.long()
        self.head = output_head(tensors.get("lm_head.weight"), target, target_ids)

    def make_norm(self, tensors: Mapping[str, Tensor], name: str) -> RmsNorm | None:
        """The norm of this name, None where there is none."""
        weight = tensors.get(f"{name}.weight")
        return None if weight is None else RmsNorm(weight, self.config.layer.rms_norm_eps)

    def forward(self, features: Tensor, batch: Batch, cache: KVCache, layer: int = 0) -> Tensor:
        """See `FeatureHead`."""
        x = self.fc(torch.cat((embed(batch.token_ids, self.embedding), features), dim=-1))
        return self.recursed(self.layer(x, layer, self.attention.context(batch, cache)))

    def recursed(self, x: Tensor) -> Tensor:
        """The next features, from the layer's output [N, H]."""
        return self.norm(x) if self.norm is not None and self.config.recurs_on_norm else x

    def logits(self, features: Tensor, layer: int = 0) -> Tensor:
        """See `FeatureHead`."""
        return self.head(features if self.norm is None or self.config.recurs_on_norm else self.norm(features))
