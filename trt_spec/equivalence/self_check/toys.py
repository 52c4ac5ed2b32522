"""Tiny engines in memory: the production engine on random models, for testing the tests."""

from __future__ import annotations

import torch

from trt_spec.checkpoints.llama import LlamaConfig, expected_tensors
from trt_spec.equivalence.reference.scoring import Vocabulary
from trt_spec.runtime.acceptance import ACCEPTANCE_RULES
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.drafters.draft_model import DraftModelDrafter
from trt_spec.runtime.drafters.draft_shapes import Chain, DraftShape, StaticTree
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.models import LlamaModel

VOCAB_SIZE = 10
EOS = 9
SEQ_LEN = 64
DRAFT_SHAPES: dict[str, DraftShape] = {
    "chain 1": Chain(1),
    "chain 3": Chain(3),
    "siblings": StaticTree([[0], [1]], siblings="without_replacement"),
    "top tokens": StaticTree([[0], [1], [0, 0]]),
}
VOCABULARY = Vocabulary(VOCAB_SIZE, (EOS,))
_SCALE = 0.45
_DRAFT_NOISE = 0.2


def toy_model(seed: int = 0, noise: float = 0.0) -> LlamaModel:
    """A random model of one layer; with `noise` a twin of it that is right now and then."""
    config = LlamaConfig("llama", VOCAB_SIZE, 16, 32, 1, 4, 2, 8, SEQ_LEN + 16, tied_head=False)
    tensors = _tensors(config, seed)
    if noise:
        other = _tensors(config, seed + 1000)
        tensors = {name: tensor + noise * other[name] * (tensor.dim() > 1) for name, tensor in tensors.items()}
    return LlamaModel(config, tensors, SEQ_LEN + 16)


def _tensors(config: LlamaConfig, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * _SCALE
        for name, shape in expected_tensors(config).items()
    }


def toy_engine(shape: str = "chain 1", rule: str = "rejection", seed: int = 0, batch_size: int = 16) -> Engine:
    """The production engine with a draft model; `shape` is a name of `DRAFT_SHAPES`."""
    target, draft, draft_shape = toy_model(seed), toy_model(seed, _DRAFT_NOISE), DRAFT_SHAPES[shape]
    limits = EngineLimits(batch_size, SEQ_LEN, 128, 4 * batch_size, draft_shape.max_depth, draft_shape.max_nodes)
    drafter = DraftModelDrafter(draft, draft_shape, batch_size, SEQ_LEN, VOCAB_SIZE)
    return Engine(target, drafter, ACCEPTANCE_RULES[rule], limits, eos_token_ids=(EOS,))
