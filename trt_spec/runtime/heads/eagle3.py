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
import torch.nn.functional as F
from torch import Tensor

from trt_spec.checkpoints.eagle_config import LAYER, NUM_CAPTURED_LAYERS, EagleConfig, default_captured_layers
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.heads.base import DraftLayer, OutputHead, fit_embedding, own_or_shared
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.linear import Linear
from trt_spec.runtime.models.base import Hidden, Model
from trt_spec.runtime.models.llama import DecoderLayer
from trt_spec.runtime.norm import make_rms_norm


class Eagle3Head:
    """A `FeatureHead` of EAGLE-3.

    Args:
        tensors: by canonical name, in the target's dtype (d2t as integers). Embedding and head are the target's where
            absent.
        num_positions: length of the rotary table.
    """

    num_turns = 1

    def __init__(self, config: EagleConfig, tensors: Mapping[str, Tensor], target: Model, num_positions: int):
        def norm(name: str):
            return make_rms_norm(tensors[f"{name}.weight"], config.layer.rms_norm_eps)

        self.config, self.dtype, self.device = config, target.dtype, target.device
        self.capture = config.captured_layers or default_captured_layers(target.config.num_hidden_layers)
        self.max_positions = config.layer.max_position_embeddings
        self.embedding = fit_embedding(own_or_shared(tensors.get("embed_tokens.weight"), target.embedding), target)
        self.fc = Linear(tensors["fc.weight"], tensors.get("fc.bias"))
        self.input_norm = norm("input_norm") if "input_norm.weight" in tensors else None
        self.fc_norms = [
            norm(f"fc_norm.{index}") for index in range(NUM_CAPTURED_LAYERS) if "fc_norm.0.weight" in tensors
        ]
        self.draft = DraftLayer(config.layer, num_positions, self.dtype, self.device)
        self.layer = DecoderLayer(config.layer, tensors, LAYER, self.draft.attention)
        self.hidden_norm, self.norm = norm(f"{LAYER}hidden_norm"), norm("norm")
        self.head = _output_head(tensors, target)

    def make_cache(self, num_slots: int, slot_len: int) -> KVCache:
        """See `FeatureHead`."""
        return self.draft.make_cache(num_slots, slot_len)

    def target_features(self, hidden: Hidden) -> Tensor:
        """The captured states [N, 3 · target's H], fused to [N, H]."""
        states = hidden.aux
        if self.fc_norms:
            parts = states.chunk(NUM_CAPTURED_LAYERS, dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norms, parts, strict=True)], dim=-1)
        elif self.input_norm is not None:
            states = self.input_norm(states)
        return self.fc(states)

    def forward(self, features: Tensor, batch: Batch, cache: KVCache, turn: int = 0) -> Tensor:
        """See `FeatureHead`."""
        embedded = self.layer.input_norm(F.embedding(batch.token_ids, self.embedding))
        normed = self.hidden_norm(features)
        residual = normed if self.config.has_norm_before_residual else features
        rope, masks = self.draft.rope, self.draft.attention.folded_masks(batch)
        x = self.layer.from_normed(
            residual, torch.cat((embedded, normed), dim=-1), cache, turn, batch, masks, rope, rope.at(batch.positions)
        )
        return self.norm(x) if self.config.recurs_on_norm else x

    def logits(self, features: Tensor, turn: int = 0) -> Tensor:
        """See `FeatureHead`."""
        return self.head(features if self.config.recurs_on_norm else self.norm(features))


def _output_head(tensors: Mapping[str, Tensor], target: Model):
    """The draft's own head, placed by d2t where its vocabulary is reduced, or the target's."""
    own, d2t = tensors.get("lm_head.weight"), tensors.get("d2t")
    if d2t is not None:
        target_ids = torch.arange(len(d2t), device=d2t.device) + d2t.long()
        return OutputHead(own, target.vocab_size, target_ids)
    head = own_or_shared(own, target.head_weight)
    return target.logits if head is target.head_weight else OutputHead(head, target.vocab_size)
