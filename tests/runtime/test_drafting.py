"""What drafters propose in the middle of a run is what they would propose from nothing: caches and features line up."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.models import HEAD_METHODS, prompts, tiny_engine, tiny_head, tiny_model
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.drafters.draft_shapes import DynamicTree, StaticTree
from trt_spec.runtime.request import Request, SamplingParams

CPU = torch.device("cpu")
DEPTH = 3
SLOT_LEN = 128
STATIC = StaticTree([[0], [2], [0, 0], [0, 1], [2, 0], [0, 1, 3]])  # with gaps: a rank need not have those before it


def cold_hidden(target, tokens, capture=()):
    cache = target.make_cache(1, SLOT_LEN)
    return target.forward(pack([Rows(0, 0, tokens)], SLOT_LEN, torch.float32, CPU), cache, capture)


def cold_head_logits(head, target, tokens, drafted):
    """Next-token logits of a head that reads everything in one go, its own features below the target's."""
    features = head.target_features(cold_hidden(target, tokens[:-1], head.capture))
    pairs = list(tokens[1:])
    for token in [*drafted, None]:
        cache = head.make_cache(1, SLOT_LEN)
        outputs = head.forward(features, pack([Rows(0, 0, pairs)], SLOT_LEN, torch.float32, CPU), cache)
        if token is not None:
            features, pairs = torch.cat((features, outputs[-1:])), [*pairs, token]
    return head.logits(outputs[-1:])[0]


def cold_layer_logits(head, target, tokens, drafted):
    """The same for several layers: layer j reads the whole of layer j − 1, shifted by one more token."""
    features = head.target_features(cold_hidden(target, tokens[:-1], head.capture))
    text = [*tokens, *drafted]
    for layer in range(len(drafted) + 1):
        rows = Rows(0, 0, text[1 + layer : len(tokens) + layer])
        batch = pack([rows], SLOT_LEN, torch.float32, CPU)
        features = head.forward(features, batch, head.make_cache(1, SLOT_LEN), layer)
    return head.logits(features[-1:], layer)[0]


def cold_next_logits(method, engine, tokens, drafted):
    target = engine.target
    if method == "draft_model":
        model = engine.drafter.model
        return model.logits(cold_hidden(model, [*tokens, *drafted]).last[-1:])[0]
    if method == "medusa":
        return tiny_head(method, target).logits(cold_hidden(target, tokens[:-1]).last[-1:])[len(drafted), 0]
    cold = cold_layer_logits if method == "multi-layer mtp" else cold_head_logits
    return cold(tiny_head(method, target), target, tokens, drafted)


def ranks(logits, token):
    """How many tokens are clearly more likely."""
    return int((logits > logits[token] + 1e-4).sum())


def drafting_engine(method, draft_shape=None, **kwargs):
    """An engine in the middle of ragged sequences, with drafts accepted and rejected behind it."""
    engine = tiny_engine(method, tiny_model(), max_draft_len=DEPTH, draft_shape=draft_shape, **kwargs)
    for index, tokens in enumerate(prompts(4, 32)):
        engine.add(
            Request(str(index), tokens, SamplingParams(max_tokens=60, temperature=0.9 * (index % 2), seed=index))
        )
    for _ in range(14):
        engine.step()
    return engine


@pytest.mark.parametrize("method", ["draft_model", *HEAD_METHODS])
def test_chain_in_the_middle_equals_one_from_nothing(method):
    engine = drafting_engine(method)
    greedy = [s for s in engine.scheduler.running if s.request.params.temperature == 0]
    assert greedy
    assert engine.stats.num_drafts > 10
    with torch.inference_mode():
        drafts = engine.drafter.propose(
            engine.scheduler.running, [DEPTH] * len(engine.scheduler.running), engine.source
        )
        for sequence, draft in zip(engine.scheduler.running, drafts, strict=True):
            tokens = draft.token_ids.tolist()
            assert len(tokens) == DEPTH
            for depth, token in enumerate(tokens):
                logits = cold_next_logits(method, engine, sequence.token_ids, tokens[:depth])
                if sequence in greedy:
                    assert ranks(logits, token) == 0
                else:
                    law = (logits / sequence.request.params.temperature).softmax(-1)
                    torch.testing.assert_close(draft.probs[depth], law, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("method", ["draft_model", "medusa", "eagle", "eagle3", "mtp"])
def test_static_tree_takes_the_ranks_it_was_told(method):
    engine = drafting_engine(method, STATIC)
    with torch.inference_mode():
        [draft, *_] = engine.drafter.propose(engine.scheduler.running, [DEPTH] * 4, engine.source)
        sequence, tokens = engine.scheduler.running[0], draft.token_ids.tolist()
        assert draft.parents.tolist() == [-1, -1, 0, 0, 1, 3]
        for node, rank in enumerate([0, 2, 0, 1, 0, 3]):
            path = [tokens[other] for other in draft.tree.path(node)]
            logits = cold_next_logits(method, engine, sequence.token_ids, path[:-1])
            assert ranks(logits, tokens[node]) == rank


@pytest.mark.parametrize("method", ["draft_model", "medusa", "eagle", "eagle3", "mtp"])
def test_dynamic_tree_keeps_the_most_probable_paths(method):
    """Against a brute-force EAGLE-2: expand the best top_k nodes of each level, keep the best of all."""
    top_k, budget = 3, 7
    engine = drafting_engine(method, DynamicTree(DEPTH, top_k, budget))
    with torch.inference_mode():
        [draft, *_] = engine.drafter.propose(engine.scheduler.running, [DEPTH] * 4, engine.source)
        sequence, tokens = engine.scheduler.running[0], draft.token_ids.tolist()
        level, nodes = [((), 0.0)], {}
        for _ in range(DEPTH):
            found = []
            for path, value in level:
                logprobs = cold_next_logits(method, engine, sequence.token_ids, list(path)).log_softmax(-1)
                found += [((*path, t), value + float(logprobs[t])) for t in logprobs.topk(top_k).indices.tolist()]
            nodes |= dict(found)
            level = sorted(found, key=lambda item: -item[1])[:top_k]
    want = sorted(nodes.values(), reverse=True)[:budget]
    got = [nodes[tuple(tokens[other] for other in draft.tree.path(node))] for node in range(len(tokens))]
    assert len(got) == budget
    torch.testing.assert_close(torch.tensor(sorted(got, reverse=True)), torch.tensor(want), atol=1e-3, rtol=1e-3)
