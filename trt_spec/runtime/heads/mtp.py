"""MTP layers of a target: a decoder layer on a projection of the normed embedding and the normed feature.

    DeepSeek-V3: x = layer(eh_proj([enorm(embed), hnorm(feature)])),       out = shared_head.norm(x)
    MiMo:        x = layer(input_proj([hidden_layernorm(feature), token_layernorm(embed)])), out = final_layernorm(x)
    both:        logits = head(out),  next feature = out

The first feature is the target's hidden state behind its final norm, and `out` is the same kind of state. Feeding `out`
to the next depth is what TensorRT-LLM (modeling_deepseekv3.py, DeepseekV3MTP), SGLang (deepseek_nextn.py) and MiMo's
own modeling_mimo.py do; vLLM (deepseek_mtp.py) feeds x, and masks the embedding at position 0, which the others do not.

Sources: DeepSeek-V3 (2024, arXiv:2412.19437), section 2.2; MiMo (2025, arXiv:2505.07608).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trt_spec.checkpoints import deepseek_v3, llama
from trt_spec.runtime.batch import Batch
from trt_spec.runtime.heads.base import FeatureHead, output_head, own_or_shared
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.linear import Linear
from trt_spec.runtime.models.base import Model, embed
from trt_spec.runtime.norm import RmsNorm


class MtpLayer:
    """One MTP layer of either layout. Embedding and head are the target's where it has no differing copy.

    Args:
        tensors: by stored name, in the target's dtype.
        prefix: of this layer's names.
    """

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str, target: Model):
        def norm(name: str):
            return RmsNorm(tensors[f"{prefix}{name}.weight"], target.config.rms_norm_eps)

        self.is_mimo = f"{prefix}input_proj.weight" in tensors
        names = ("token_layernorm", "hidden_layernorm", "final_layernorm") if self.is_mimo else _DEEPSEEK_NORMS
        self.embedding_norm, self.feature_norm, self.out_norm = (norm(name) for name in names)
        self.project = Linear(tensors[f"{prefix}{'input_proj' if self.is_mimo else 'eh_proj'}.weight"])
        self.layer = target.make_layer(tensors, prefix)
        self.embedding = own_or_shared(tensors.get(f"{prefix}embed_tokens.weight"), target.embedding)
        self.head = output_head(tensors.get(f"{prefix}shared_head.head.weight"), target)

    def join(self, features: Tensor, token_ids: Tensor) -> Tensor:
        """The layer's input [N, H] from features [N, H] and the tokens that follow them [N]."""
        embedded = self.embedding_norm(embed(token_ids, self.embedding))
        normed = self.feature_norm(features)
        return self.project(torch.cat((normed, embedded) if self.is_mimo else (embedded, normed), dim=-1))


_DEEPSEEK_NORMS = ("enorm", "hnorm", "shared_head.norm")


class MtpHead(FeatureHead):
    """The MTP layers of a target: one applied again and again, or several of which layer j drafts at depth j.

    Attention, rotary table and cache geometry are the target's.

    Args:
        tensors: by stored name, in the target's dtype: the layers' tensors and nothing else.
        num_layers: J.
    """

    def __init__(self, tensors: Mapping[str, Tensor], num_layers: int, target: Model):
        super().__init__(target, target.attention)
        self.num_layers, config = num_layers, target.config
        is_llama = isinstance(config, llama.LlamaConfig)
        prefixes = [
            llama.mtp_layer_prefix(index) if is_llama else deepseek_v3.mtp_layer_prefix(config, index)
            for index in range(num_layers)
        ]
        self.layers = [MtpLayer(tensors, prefix, target) for prefix in prefixes]

    def forward(self, features: Tensor, batch: Batch, cache: KVCache, layer: int = 0) -> Tensor:
        """See `FeatureHead`."""
        mtp = self.layers[layer]
        x = mtp.join(features, batch.token_ids)
        return mtp.out_norm(mtp.layer(x, layer, self.attention.context(batch, cache)))

    def logits(self, features: Tensor, layer: int = 0) -> Tensor:
        """See `FeatureHead`."""
        return self.layers[layer].head(features)
