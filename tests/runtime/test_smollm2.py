"""The runtime on a real model: SmolLM2-135M in float32, against transformers and against itself without drafts."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.runtime.test_engine import first_divergence, run
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.runtime.acceptance import ACCEPTANCE_RULES
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.drafters.draft_model import DraftModelDrafter
from trt_spec.runtime.drafters.draft_shapes import Chain
from trt_spec.runtime.drafters.ngram import NgramDrafter
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.models import LlamaModel, load_model
from trt_spec.runtime.request import SamplingParams

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "smollm2-135m"
MAX_SEQ_LEN, MAX_DRAFT_LEN = 256, 4
pytestmark = [
    pytest.mark.demo_model,
    pytest.mark.skipif(not CHECKPOINT.is_dir(), reason="run: trt-spec fetch smollm2-135m"),
]

TOPICS = ("rivers", "bread", "compilers", "the moon", "glass", "bees", "bridges", "salt", "maps", "clocks")
TASKS = (
    "Explain {0} in two sentences.",
    "Repeat exactly, three times: {0} are older than most of us think, and {0} will be here after us.",
    "def describe_{1}(kind):\n    return kind + ' {0}'\n\ndef describe_{1}_twice(kind):\n    return",
    "List five facts about {0}:\n1.",
    "{0}",
)


@cache
def target() -> LlamaModel:
    return load_model(CHECKPOINT, torch.float32, torch.device("cpu"), MAX_SEQ_LEN + MAX_DRAFT_LEN)


@cache
def first_layers(num_layers: int = 10) -> LlamaModel:
    """A draft model that is right now and then: the target's own first layers under its head."""
    checkpoint, config = CheckpointDir.open(CHECKPOINT), replace(target().config, num_hidden_layers=num_layers)
    tensors = {name: checkpoint.read(name).float() for name in checkpoint.tensors}
    return LlamaModel(config, tensors, MAX_SEQ_LEN + MAX_DRAFT_LEN)


@cache
def prompts() -> list[tuple[int, ...]]:
    """50 ragged prompts: chat, copying, code, lists, and single words."""
    tokenizer = Tokenizer.load(CHECKPOINT)
    texts = [task.format(topic, topic.split()[-1]) for topic in TOPICS for task in TASKS]
    return [tuple(tokenizer.encode(text)) for text in texts]


def engine(method: str, batch: int) -> Engine:
    limits = EngineLimits(batch, MAX_SEQ_LEN, 128, 256, 0 if method == "none" else MAX_DRAFT_LEN)
    drafters = {
        "none": lambda: None,
        "ngram": lambda: NgramDrafter(2, 4),
        "draft_model": lambda: DraftModelDrafter(
            first_layers(), Chain(MAX_DRAFT_LEN), batch, MAX_SEQ_LEN, target().vocab_size
        ),
    }
    return Engine(target(), drafters[method](), ACCEPTANCE_RULES["rejection"], limits)


@cache
def plain(count: int, num_tokens: int):
    return run(engine("none", 1), prompts()[:count], SamplingParams(max_tokens=num_tokens))


def check_greedy(method: str, batch: int, count: int, num_tokens: int) -> None:
    """Asserts equality up to ties, and reports ties as a warning."""
    drafting = engine(method, batch)
    answers = run(drafting, prompts()[:count], SamplingParams(max_tokens=num_tokens))
    found = [
        first_divergence(target(), prompt, a.token_ids, b.token_ids)
        for prompt, a, b in zip(prompts()[:count], plain(count, num_tokens), answers, strict=True)
    ]
    assert "different" not in found
    assert 0 < drafting.stats.num_accepted_tokens < drafting.stats.num_draft_tokens
    if ties := found.count("tie"):
        warnings.warn(f"{method}, batch {batch}: {ties} of {count} outputs part at a tie", stacklevel=2)


def test_logits_equal_transformers():
    """float32 over 30 layers; logits reach 30, so 1e-4 is the rounding of a few sums in another order."""
    from transformers import AutoModelForCausalLM

    ids = list(prompts()[1] + prompts()[2])
    reference = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    with torch.inference_mode():
        want = reference(torch.tensor([ids])).logits[0]
        cut, model = len(ids) // 3, target()
        cache = model.make_cache(2, MAX_SEQ_LEN)
        found = []
        for rows in (Rows(1, 0, ids[:cut]), Rows(1, cut, ids[cut:])):
            batch = pack([Rows(0, 0, [1, 2, 3]), rows], MAX_SEQ_LEN, torch.float32, model.device)
            found.append(model.logits(model.forward(batch, cache).last)[3:])
    assert (torch.cat(found) - want).abs().max() <= 1e-4


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_greedy_equals_plain(method):
    check_greedy(method, batch=4, count=4, num_tokens=12)


@pytest.mark.nightly
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_greedy_equals_plain_on_fifty_prompts(method, batch):
    check_greedy(method, batch, count=50, num_tokens=32)
