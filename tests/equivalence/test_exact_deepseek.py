"""MTP on a DeepSeek-V3 target, latent attention and routed experts included: exact law, greedy tokens, rollback."""

from __future__ import annotations

import pytest
import torch

from tests.equivalence.step_probs import extended_probs, target_probs, total_variation
from tests.equivalence.test_exact import GREEDY, NUCLEUS, PENALISED, V, reference_law
from tests.runtime.head_cases import deepseek_target
from tests.runtime.models import prompts
from trt_spec.equivalence.self_check.exact import outcomes
from trt_spec.runtime.acceptance import ACCEPTANCE_RULES
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.drafters.draft_shapes import Chain, DynamicTree, StaticTree
from trt_spec.runtime.drafters.feature import FeatureDrafter
from trt_spec.runtime.drafters.mtp import MultiLayerMtpDrafter
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.heads import load_feature_head
from trt_spec.runtime.models import load_model
from trt_spec.runtime.request import Request, SamplingParams

MAX_SEQ_LEN, NUM_POSITIONS = 96, 112
SHAPES = {
    "chain": Chain(2),
    "static": StaticTree([[0], [1], [0, 0]]),
    "dynamic": DynamicTree(max_depth=2, top_k=2, max_total_draft_tokens=4),
    "multi-layer": Chain(2),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """(target, head) by (number of MTP layers, vocabulary, dtype)."""
    found = {}

    def load(num_layers, vocab_size, dtype):
        key = (num_layers, vocab_size, dtype)
        if key not in found:
            directory = tmp_path_factory.mktemp("deepseek") / "target"
            sizes = {"vocab_size": vocab_size, "num_hidden_layers": 2}
            deepseek_target(directory, num_layers=num_layers, copies="absent", **sizes)
            target = load_model(directory, dtype, torch.device("cpu"), NUM_POSITIONS)
            found[key] = target, load_feature_head("mtp", None, target, directory, NUM_POSITIONS)
        return found[key]

    return load


def make_engine(target, head, shape, batch=3, source=None) -> Engine:
    if shape == "plain":
        drafter, limits = None, EngineLimits(batch, MAX_SEQ_LEN, 64)
    else:
        draft_shape = SHAPES[shape]
        drafter_type = MultiLayerMtpDrafter if shape == "multi-layer" else FeatureDrafter
        drafter = drafter_type(head, draft_shape, batch, MAX_SEQ_LEN)
        limits = EngineLimits(batch, MAX_SEQ_LEN, 64, 256, draft_shape.max_depth, draft_shape.max_nodes)
    return Engine(target, drafter, ACCEPTANCE_RULES["rejection"], limits, source=source)


@pytest.mark.parametrize("texts", [[(1, 2, 1, 2)], [(1, 2, 1, 2), (3,), (0, 2, 0)]], ids=["batch 1", "batch 3 ragged"])
@pytest.mark.parametrize("params", [GREEDY, NUCLEUS, PENALISED], ids=["greedy", "nucleus", "penalties"])
@pytest.mark.parametrize("shape", SHAPES)
def test_step_law_is_the_targets(loaded, shape, params, texts):
    target, head = loaded(2 if shape == "multi-layer" else 1, V, torch.float64)

    def run(source):
        engine = make_engine(target, head, shape, source=source)
        for index, text in enumerate(texts):
            engine.add(Request(str(index), text, params if index == 0 else GREEDY))
        chunks = [*engine.step(), *engine.step()]
        return tuple(token for chunk in chunks if chunk.request_id == "0" for token in chunk.token_ids)

    law = reference_law(target, texts[0], params)
    assert total_variation(extended_probs(outcomes(run), law, 3), target_probs(law, 3)) < 1e-10


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_equals_plain_and_rollback_equals_a_cold_prefill(loaded, shape):
    target, head = loaded(2 if shape == "multi-layer" else 1, 24, torch.float32)
    requests = [Request(str(i), ids, SamplingParams(max_tokens=24)) for i, ids in enumerate(prompts(12, 24))]
    engine = make_engine(target, head, shape)
    plain = make_engine(target, head, "plain", batch=1).generate(requests)
    assert [answer.token_ids for answer in engine.generate(requests)] == [answer.token_ids for answer in plain]
    assert 0 < engine.stats.num_accepted_tokens < engine.stats.num_draft_tokens
    for request in requests[:3]:
        engine.add(request)
    for _ in range(8):
        engine.step()
    assert engine.scheduler.running
    for sequence in engine.scheduler.running:
        cached, cold = sequence.token_ids[: sequence.num_cached_tokens], target.make_cache(1, engine.slot_len)
        with torch.inference_mode():
            target.forward(pack([Rows(0, 0, cached)], engine.slot_len, torch.float32, target.device), cold)
        for layer in range(len(cold.layers)):
            ours = engine.cache.slots(layer, sequence.slot, sequence.slot + 1, len(cached))
            torch.testing.assert_close(ours, cold.slots(layer, 0, 1, len(cached)), atol=1e-4, rtol=1e-3)
