"""EAGLE-3: one decoder layer whose attention reads [embedding, feature], on features fused from three target layers.

    feature t (of the target) = fc([a, b, c]),  a, b, c = the residual stream before three of the target's layers
    x = layer with residual = feature and attention input [input_layernorm(embed(token t + 1)), hidden_norm(feature)]
    logits = lm_head(norm(x)) at the target's ids draft id + d2t[draft id],  next feature = x

Sources: EAGLE-3 (Li et al. 2025, arXiv:2503.01840), SafeAILab/EAGLE model/cnets.py, and for the variants
TensorRT-LLM's _torch/models/modeling_speculative.py and vLLM's llama_eagle3.py (norm_before_residual).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trt_spec.checkpoints.eagle_config import LAYER, NUM_CAPTURED_LAYERS, EagleConfig, default_captured_layers
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.heads.eagle import EagleHead
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.models.base import Hidden, Model, embed


class Eagle3Head(EagleHead):
    """EAGLE-3; arguments as for `EagleHead`."""

    def __init__(self, config: EagleConfig, tensors: Mapping[str, Tensor], target: Model, num_positions: int):
        super().__init__(config, tensors, target, num_positions)
        self.capture = config.captured_layers or default_captured_layers(target.config.num_hidden_layers)
        self.input_norm, self.hidden_norm = (
            self.make_norm(tensors, name) for name in ("input_norm", f"{LAYER}hidden_norm")
        )
        self.fc_norms = [
            self.make_norm(tensors, f"fc_norm.{index}")
            for index in range(NUM_CAPTURED_LAYERS)
            if "fc_norm.0.weight" in tensors
        ]

    def target_features(self, hidden: Hidden) -> Tensor:
        """The captured states [N, 3 · target's H], fused to [N, H]."""
        states = hidden.aux
        if self.fc_norms:
            parts = states.chunk(NUM_CAPTURED_LAYERS, dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norms, parts, strict=True)], dim=-1)
        elif self.input_norm is not None:
            states = self.input_norm(states)
        return self.fc(states)

    def forward(self, features: Tensor, batch: Batch, cache: KVCache, layer: int = 0) -> Tensor:
        """See `FeatureHead`."""
        embedded = self.layer.input_norm(embed(batch.token_ids, self.embedding))
        normed = self.hidden_norm(features)
        residual = normed if self.config.has_norm_before_residual else features
        joined = torch.cat((embedded, normed), dim=-1)
        return self.recursed(self.layer.from_normed(residual, joined, layer, self.attention.context(batch, cache)))
