"""Tiny models in memory, so that engine tests read no files and take milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from trt_spec.checkpoints.eagle_config import EagleConfig
from trt_spec.checkpoints.llama import LlamaConfig, decoder_layer_tensors, expected_tensors, mtp_layer_prefix
from trt_spec.runtime.acceptance import ACCEPTANCE_RULES
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.drafters.draft_model import DraftModelDrafter
from trt_spec.runtime.drafters.draft_shapes import Chain
from trt_spec.runtime.drafters.feature import FeatureDrafter
from trt_spec.runtime.drafters.medusa import MedusaDrafter
from trt_spec.runtime.drafters.mtp import MultiLayerMtpDrafter
from trt_spec.runtime.drafters.ngram import NgramDrafter
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.heads import Eagle3Head, EagleHead, MedusaHeads, MtpHead
from trt_spec.runtime.models import LlamaModel


def tiny_tensors(config: LlamaConfig, seed: int, scale: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * scale
        for name, shape in expected_tensors(config).items()
    }


def tiny_model(
    vocab_size: int = 32,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    *,
    scale: float = 0.3,
    noise: float = 0.0,
    num_layers: int = 2,
    num_positions: int = 256,
) -> LlamaModel:
    """A random model. The same seed with `noise` gives a perturbed twin: a draft model that is right now and then."""
    config = LlamaConfig("llama", vocab_size, 16, 32, num_layers, 4, 2, 8, num_positions, tied_head=False)
    tensors = tiny_tensors(config, seed, scale)
    if noise:
        other = tiny_tensors(config, seed + 1000, scale)
        tensors = {name: tensor + noise * other[name] * (tensor.dim() > 1) for name, tensor in tensors.items()}
    return LlamaModel(config, {name: tensor.to(dtype) for name, tensor in tensors.items()}, num_positions)


def tiny_engine(
    method: str = "none",
    target: LlamaModel | None = None,
    draft: LlamaModel | None = None,
    *,
    rule: str = "rejection",
    max_draft_len: int = 4,
    max_batch_size: int = 4,
    max_seq_len: int = 96,
    **kwargs,
) -> Engine:
    target = target or tiny_model()
    max_draft_len = 0 if method == "none" else max_draft_len
    draft_shape = kwargs.pop("draft_shape", None) or Chain(min(max_draft_len, MAX_DEPTH.get(method, max_draft_len)))
    limits = EngineLimits(
        max_batch_size,
        max_seq_len,
        kwargs.pop("max_num_tokens", 64),
        kwargs.pop("max_queue_size", 256),
        max_draft_len if method in ("none", "ngram") else draft_shape.max_depth,
        max_draft_len if method in ("none", "ngram") else draft_shape.max_nodes,
    )
    drafter = None
    if method == "ngram":
        drafter = NgramDrafter(1, 3)
    elif method == "draft_model":
        draft = draft or tiny_model(target.vocab_size, dtype=target.dtype, noise=0.3)
        drafter = DraftModelDrafter(draft, draft_shape, max_batch_size, max_seq_len, target.vocab_size)
    elif method in HEAD_METHODS:
        drafter = head_drafter(method, target, draft_shape, max_batch_size, max_seq_len)
    return Engine(target, drafter, ACCEPTANCE_RULES[rule], limits, **kwargs)


MAX_DEPTH = {"medusa": 3, "multi-layer mtp": 3}  # as many as the tiny checkpoints have heads or layers
HEAD_METHODS = ("medusa", "eagle", "eagle3", "mtp", "multi-layer mtp")


@cache
def tiny_head(method: str, target: LlamaModel, seed: int = 7):
    """Random heads of a method for a tiny target: a FeatureHead, or MedusaHeads of three heads."""
    config, vocab = target.config, target.vocab_size
    hidden = config.hidden_size

    def tensors(shapes):
        generator = torch.Generator().manual_seed(seed)
        return {
            name: (torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.4).to(
                target.dtype
            )
            for name, shape in shapes.items()
        }

    if method == "medusa":
        shapes = {f"heads.{head}.blocks.0.linear.weight": (hidden, hidden) for head in range(3)}
        return MedusaHeads(
            tensors(shapes | {f"heads.{head}.lm_head.weight": (vocab, hidden) for head in range(3)}), vocab
        )
    if method.endswith("mtp"):
        num_layers = 3 if method == "multi-layer mtp" else 1
        shapes = {}
        for prefix in map(mtp_layer_prefix, range(num_layers)):
            norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
            shapes |= decoder_layer_tensors(config, prefix) | {f"{prefix}input_proj.weight": (hidden, 2 * hidden)}
            shapes |= {f"{prefix}{norm}.weight": (hidden,) for norm in norms}
        return MtpHead(tensors(shapes), num_layers, target)
    wide = {"attention_input": 2 * hidden} if method == "eagle3" else {}
    shapes = decoder_layer_tensors(config, "layer.", **wide)
    if method == "eagle":
        del shapes["layer.input_layernorm.weight"]
        shapes["fc.weight"] = (hidden, 2 * hidden)
        return EagleHead(EagleConfig(config, is_eagle3=False), tensors(shapes), target, target.num_positions)
    shapes |= {"fc.weight": (hidden, 3 * hidden), "layer.hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    layers = EagleConfig(config, is_eagle3=True, captured_layers=(0, 1, config.num_hidden_layers))
    return Eagle3Head(layers, tensors(shapes), target, target.num_positions)


def head_drafter(method: str, target: LlamaModel, draft_shape, max_batch_size: int, max_seq_len: int):
    head = tiny_head(method, target)
    if method == "medusa":
        return MedusaDrafter(head, draft_shape)
    drafter_type = MultiLayerMtpDrafter if method == "multi-layer mtp" else FeatureDrafter
    return drafter_type(head, draft_shape, max_batch_size, max_seq_len)


def cold_logits(model: LlamaModel, tokens: Sequence[int]) -> torch.Tensor:
    """Logits [N, V] of a prefill from nothing."""
    slot_len = len(tokens) + 1
    cache = model.make_cache(1, slot_len)
    batch = pack([Rows(0, 0, list(tokens))], slot_len, model.dtype, model.device)
    with torch.inference_mode():
        return model.logits(model.forward(batch, cache).last)


def prompts(count: int, vocab_size: int, seed: int = 0, longest: int = 40) -> list[tuple[int, ...]]:
    """Ragged random prompts, each repeating itself a little so that lookup finds something."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for index in range(count):
        length = 2 + (index * 7) % longest
        half = torch.randint(0, vocab_size, (length,), generator=generator).tolist()
        result.append(tuple((half + half)[: length + length // 3]))
    return result
