"""Targets and drafts that pad one vocabulary differently: ids that one of the two has no row for.

Whole engines, built from checkpoints. The reference is transformers' model of the target, without drafts and without a
cache, and for seeded samples plain decoding in the same engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import tiny
from tests.engines.test_methods import run_config
from tests.runtime.head_cases import IDS
from trt_spec.engines.builder import build
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.loading import load_engine
from trt_spec.runtime.request import Request, SamplingParams

FEW, MANY = 320, 352  # the tokenizer has 320 ids
PROMPTS = ((5, 330, 7), (9, 8, 7, 9, 8), (351,) * 6, (*range(40, 60), 320, 41, 42, 43))
METHODS = ["draft_model", "draft_model, lookup first", "medusa", "eagle", "eagle3", "eagle3, reduced", "ngram"]


def draft_of(method: str, path: Path, rows: int) -> Path | None:
    """A draft whose embedding and head have `rows` rows."""
    if method == "ngram":
        return None
    if method == "draft_model":
        return tiny.llama_checkpoint(path, seed=1, vocab_size=rows, num_hidden_layers=1)
    if method == "medusa":
        return tiny.save_draft(path, tiny.medusa_shapes(vocab=rows))
    if method == "eagle":
        return tiny.save_draft(path, tiny.eagle_shapes(vocab=rows) | {"lm_head.weight": (rows, 32)})
    if method == "eagle3":
        return tiny.save_draft(path, tiny.eagle3_shapes(vocab=rows, draft_vocab=rows), **IDS)
    maps = tiny.vocabulary_maps(vocab=FEW)
    return tiny.save_draft(path, tiny.eagle3_shapes(vocab=rows), tensors={"d2t": maps["d2t"]}, **IDS)


def built(root: Path, method: str, target_rows: int, draft_rows: int, rule: str = "exact_match") -> Engine:
    name, _, variant = method.partition(", ")
    target = tiny.llama_checkpoint(root / "target", vocab_size=target_rows)
    draft = draft_of(name if variant != "reduced" else variant, root / "draft", draft_rows)
    lookup = {"ngram_first": {"min_ngram": 1, "max_ngram": 3}} if variant == "lookup first" else {}
    config = run_config(root, name, target, draft, acceptance=rule, max_draft_len=3, **lookup)
    return load_engine(build(config, engines_dir=root / "engines", run=config.name).engine_dir)


def requests(prompts: Sequence[Sequence[int]], *, speculation: bool = True, **params) -> list[Request]:
    """Greedy and sampled in turn; `speculation` off is plain decoding in the same engine."""
    return [
        Request(
            str(index),
            tuple(tokens),
            SamplingParams(
                **{"max_tokens": 24, "ignore_eos": True, "temperature": 0.9 * (index % 2), "seed": 10 + index} | params
            ),
            speculation,
        )
        for index, tokens in enumerate(prompts)
    ]


def reference(root: Path, prompt: Sequence[int], num_tokens: int, num_ids: int, bias: dict[int, float]) -> list[int]:
    """transformers' greedy continuation among the first `num_ids` ids."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(root / "target", dtype=torch.float32).eval()
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1, :num_ids].clone()
            for token, value in bias.items():
                logits[token] += value
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def ids(answers) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


@pytest.mark.parametrize("method", METHODS)
def test_ids_of_a_prompt_that_the_draft_lacks(tmp_path, method):
    engine = built(tmp_path, method, MANY, FEW)
    got = engine.generate(requests(PROMPTS))
    assert ids(got) == ids(engine.generate(requests(PROMPTS, speculation=False)))
    for index in (0, 2):
        assert got[index].token_ids == reference(tmp_path, PROMPTS[index], 24, FEW, {})
    assert method == "ngram" or all(answer.completion.num_drafts > 0 for answer in got)
    assert engine.stats.num_drafter_errors == 0


@pytest.mark.parametrize("method", METHODS)
def test_ids_of_the_target_that_the_draft_lacks(tmp_path, method):
    """The target is made to say them: some of the text, and then all of it."""
    engine = built(tmp_path, method, MANY, FEW)
    engine.num_valid_tokens = MANY
    prompts = [*PROMPTS, (3, 4, 5)]
    for bias in ({token: 1.0 for token in range(FEW, MANY)}, {token: 50.0 for token in range(FEW, MANY)}):
        got = engine.generate(requests(prompts, logit_bias=bias))
        assert ids(got) == ids(engine.generate(requests(prompts, speculation=False, logit_bias=bias)))
        assert got[4].token_ids == reference(tmp_path, prompts[4], 24, MANY, bias)
        assert sum(token >= FEW for answer in got for token in answer.token_ids) > 10
    assert engine.stats.num_drafts > 0
    assert engine.stats.num_drafter_errors == 0


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("method", METHODS)
def test_a_neighbour_with_unknown_ids_changes_nothing(tmp_path, method, rule):
    """Seeded outputs that depend on the drafts are those of an engine in which the neighbours never were."""
    engine = built(tmp_path, method, MANY, FEW, rule)
    alone = [engine.generate([request])[0] for request in requests(PROMPTS)]
    together = engine.generate(requests(PROMPTS))
    assert ids(together) == ids(alone)
    assert [a.completion.num_drafts for a in together] == [a.completion.num_drafts for a in alone]


@pytest.mark.parametrize("method", [method for method in METHODS if method != "ngram"])
def test_ids_of_the_draft_that_the_target_lacks_are_never_drafted(tmp_path, method, monkeypatch):
    """The draft's head is made to prefer them by far."""
    engine = built(tmp_path, method, FEW, MANY)
    draft = tmp_path / "engines" / engine.config.name / "draft"
    for path in draft.glob("*.safetensors"):
        tensors = load_file(path)
        for name, tensor in tensors.items():
            is_head = name.endswith("lm_head.weight") or (name[1:4] == ".1." and tensor.shape == (MANY, 32))
            if is_head and len(tensor) == MANY:
                tensor[FEW:] *= 100
        save_file(tensors, path, metadata={"format": "pt"})
    engine, drafts = load_engine(draft.parent), []
    propose = engine.drafter.propose

    def recorded(*args):
        drafts.extend(proposed := propose(*args))
        return proposed

    monkeypatch.setattr(engine.drafter, "propose", recorded)
    prompts = [(5, 6, 7), (9, 8, 7, 9, 8), (1,) * 6, tuple(range(40, 60))]
    got = engine.generate(requests(prompts, temperature=1.5))
    assert ids(got) == ids(engine.generate(requests(prompts, speculation=False, temperature=1.5)))
    assert engine.stats.num_drafts > 10
    assert engine.stats.num_drafter_errors == 0
    for draft in drafts:
        assert all(token < FEW for token in draft.token_ids.tolist())
        if draft.probs is not None:
            assert draft.probs.shape[1] == FEW
            torch.testing.assert_close(draft.probs.sum(-1), torch.ones(len(draft.probs)))
