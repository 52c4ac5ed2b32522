"""The exact law of whole engine steps: prefill, draft, verification and commit of the production code, in float64."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import torch

from tests.equivalence.step_probs import extended_probs, target_probs, total_variation
from tests.runtime.models import HEAD_METHODS, cold_logits, tiny_engine, tiny_model
from trt_spec.equivalence.self_check.exact import ReusedRandomness, outcomes
from trt_spec.runtime.draft_lengths import DraftLengths, StepCosts
from trt_spec.runtime.drafters.draft_shapes import Chain, DynamicTree, StaticTree
from trt_spec.runtime.drafters.ngram import NgramDrafter
from trt_spec.runtime.drafters.ngram_first import NgramFirstDrafter
from trt_spec.runtime.randomness import Role, Stream
from trt_spec.runtime.request import Request, SamplingParams

V = 4
NUCLEUS = SamplingParams(max_tokens=8, temperature=0.8, top_p=0.95, seed=0)
PENALISED = SamplingParams(max_tokens=8, temperature=1.0, frequency_penalty=0.7, repetition_penalty=1.4, seed=0)
GREEDY = SamplingParams(max_tokens=8, seed=0)
PLAIN = SamplingParams(max_tokens=8, temperature=1.0, seed=0)
FILTERED = SamplingParams(max_tokens=8, temperature=0.7, top_k=50, top_p=0.9, seed=0)
BIASED = SamplingParams(max_tokens=8, temperature=1.2, top_k=3, logit_bias={1: 0.8}, min_p=0.05, seed=0)
PROMPT = (1, 2, 1, 2, 1)


def reference_law(model, prompt, params):
    """Next-token law after `prompt` + tokens, written again from the definitions in numpy."""

    @cache
    def law(tokens):
        logits = cold_logits(model, (*prompt, *tokens))[-1].numpy().astype(np.float64)
        for token in range(V):
            count = tokens.count(token)
            if count or token in prompt:
                logits[token] *= params.repetition_penalty if logits[token] < 0 else 1 / params.repetition_penalty
            logits[token] -= count * params.frequency_penalty + (count > 0) * params.presence_penalty
            logits[token] += params.logit_bias.get(token, 0.0)
        if params.temperature == 0:
            return np.eye(V)[logits.argmax()].tolist()
        p = np.exp((logits - logits.max()) / params.temperature)
        order = sorted(range(V), key=lambda token: -p[token])
        if params.top_k:
            p[order[params.top_k :]] = 0
        p /= p.sum()
        mass = 0.0
        for token in order:
            if mass >= params.top_p:
                p[token] = 0
            mass += p[token]
        p[p < params.min_p * p.max()] = 0
        return (p / p.sum()).tolist()

    return law


def step_law(engine_args, params, prompts, length):
    """Exact law of the first request's tokens over two steps: the one that ends the prompt, and a drafted one."""

    def run(source):
        engine = tiny_engine(source=source, **engine_args)
        for index, prompt in enumerate(prompts):
            engine.add(Request(str(index), prompt, params if index == 0 else SamplingParams(max_tokens=8)))
        chunks = [*engine.step(), *engine.step()]
        return tuple(token for chunk in chunks if chunk.request_id == "0" for token in chunk.token_ids)

    return extended_probs(outcomes(run), reference_law(engine_args["target"], prompts[0], params), length)


METHODS = ["ngram", "draft_model", *HEAD_METHODS]
SHAPES = {
    "chain": Chain(2),
    "static": StaticTree([[0], [1], [0, 0]]),
    "dynamic": DynamicTree(max_depth=2, top_k=2, max_total_draft_tokens=4),
    "without replacement": StaticTree([[0], [1]], siblings="without_replacement"),
    "with replacement": StaticTree([[0], [1]], siblings="with_replacement"),
}
SAMPLERS = {
    "greedy": GREEDY,
    "T=1": PLAIN,
    "nucleus": NUCLEUS,
    "top-k top-p": FILTERED,
    "penalties": PENALISED,
    "bias": BIASED,
}
BATCHES = {"batch 1": [PROMPT], "batch 3 ragged": [PROMPT, (3,), (0, 2, 0, 2, 0, 2)]}


@cache
def models():
    """A target, and a draft model that is its perturbed twin."""
    return (
        tiny_model(V, seed=3, dtype=torch.float64, num_layers=2),
        tiny_model(V, seed=3, dtype=torch.float64, num_layers=2, noise=0.8),
    )


CHAINS_ONLY = ("ngram", "multi-layer mtp")
FULL = (
    "draft_model",
    "ngram",
)  # the sampler stands apart from who drafts: all of them with one drafted law, and with none


def cases():
    """Every method in every shape it takes; every sampler in every shape; neighbours of other lengths with each method
    and, for one drafter of each kind, each shape."""
    for method, shape, batch, sampler in itertools.product(METHODS, SHAPES, BATCHES, SAMPLERS):
        if shape != "chain" and method in CHAINS_ONLY:
            continue
        if sampler != "nucleus" and not (
            batch == "batch 1" and (method in FULL or (method == "eagle3" and sampler in ("penalties", "greedy")))
        ):
            continue
        if batch != "batch 1" and shape != "chain" and method not in ("draft_model", "eagle3"):
            continue
        yield pytest.param(method, shape, "rejection", sampler, batch, id=f"{method}-{shape}-{sampler}-{batch}")
        if shape == "chain" and batch == "batch 1" and sampler == "nucleus":
            for exact in ("nucleus", "penalties"):
                yield pytest.param(method, shape, "exact_match", exact, batch, id=f"{method}-exact_match-{exact}")


@pytest.mark.parametrize(("method", "shape", "rule", "sampler", "batch"), list(cases()))
def test_step_law_is_the_targets(method, shape, rule, sampler, batch):
    target, draft = models()
    params, prompts, length = SAMPLERS[sampler], BATCHES[batch], SHAPES[shape].max_depth + 1
    args = {
        "method": method,
        "target": target,
        "draft": draft,
        "rule": rule,
        "max_draft_len": 2,
        "draft_shape": SHAPES[shape],
    }
    law = step_law(args, params, prompts, length)
    assert sum(law.values()) == pytest.approx(1)
    assert total_variation(law, target_probs(reference_law(target, prompts[0], params), length)) < 1e-10


@pytest.mark.parametrize("sampler", ["T=1", "penalties", "bias"])
@pytest.mark.parametrize(
    ("rule", "shape"), [("rejection", "chain"), ("block", "chain"), ("rejection", "with replacement")]
)
@pytest.mark.parametrize("num_rows", [2, 3, 6])
def test_step_law_of_a_draft_model_with_other_rows(num_rows, rule, shape, sampler):
    """Ids that it lacks, in the prompt and from the target itself; and ids that the target lacks."""
    target, _ = models()
    draft = tiny_model(num_rows, seed=5, dtype=torch.float64)
    args = {"target": target, "draft": draft, "rule": rule, "draft_shape": SHAPES[shape], "max_draft_len": 2}
    prompts, length = [(1, 3, 1, 2), (3, 3)], SHAPES[shape].max_depth + 1
    law = step_law({"method": "draft_model", **args}, SAMPLERS[sampler], prompts, length)
    reference = reference_law(target, prompts[0], SAMPLERS[sampler])
    assert total_variation(law, target_probs(reference, length)) < 1e-10


@pytest.mark.parametrize("sampler", ["nucleus", "penalties"])
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "medusa"])
def test_step_law_with_lookup_first(method, sampler):
    """Prompts that repeat themselves are drafted by lookup, others by the drafter, in one batch."""
    target, draft = models()
    params = SAMPLERS[sampler]
    for prompts in ([PROMPT, (3,)], [(3, 0), PROMPT]):

        def run(source, prompts=prompts):
            engine = tiny_engine(method, target, draft, max_draft_len=2, source=source)
            engine.drafter = NgramFirstDrafter(NgramDrafter(2, 3), engine.drafter)
            for index, prompt in enumerate(prompts):
                engine.add(Request(str(index), prompt, params if index == 0 else GREEDY))
            chunks = [*engine.step(), *engine.step()]
            return tuple(token for chunk in chunks if chunk.request_id == "0" for token in chunk.token_ids)

        reference = reference_law(target, prompts[0], params)
        assert total_variation(extended_probs(outcomes(run), reference, 3), target_probs(reference, 3)) < 1e-10


@pytest.mark.parametrize("rule", ["rejection", "exact_match", "block"])
def test_law_of_several_steps_with_adapted_lengths(rule):
    """Whether a draft stood decides how long the next one is; the law of five tokens does not notice."""
    target, _ = models()
    lengths = set()

    def run(source):
        adaptive = DraftLengths(None, StepCosts({1: 1.0, 2: 1.3, 3: 1.65}))  # two only after one stood
        engine = tiny_engine("ngram", target, rule=rule, max_draft_len=2, source=source, draft_lengths=adaptive)
        propose = engine.drafter.propose
        engine.drafter.propose = lambda sequences, max_lens, *rest: (
            lengths.add((len(sequences[0].token_ids), *max_lens)) or propose(sequences, max_lens, *rest)
        )
        engine.add(Request("0", PROMPT, NUCLEUS))
        return tuple(token for _ in range(4) for chunk in engine.step() for token in chunk.token_ids)

    reference = reference_law(target, PROMPT, NUCLEUS)
    assert total_variation(extended_probs(outcomes(run), reference, 5), target_probs(reference, 5)) < 1e-10
    after_seven = {length for num_tokens, length in lengths if num_tokens == 7}
    assert len(after_seven) > 1, "the same number of tokens, more or fewer of them accepted"


@pytest.mark.parametrize("params", [NUCLEUS, PENALISED], ids=["nucleus", "penalties"])
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_block_verification_step_law(method, params):
    target, draft = models()
    args = {"method": method, "target": target, "draft": draft, "rule": "block", "max_draft_len": 2}
    law = step_law(args, params, [PROMPT], 3)
    assert total_variation(law, target_probs(reference_law(target, PROMPT, params), 3)) < 1e-10


def test_a_wrong_engine_is_seen():
    """The same test on an engine whose draft model records a law that it did not sample from."""
    target, draft = models()

    def run(source):
        engine = tiny_engine("draft_model", target, draft, max_draft_len=1, source=source)
        propose = engine.drafter.propose
        engine.drafter.propose = lambda *args: [d._replace(probs=d.probs.sqrt()) for d in propose(*args)]
        engine.add(Request("0", PROMPT, NUCLEUS))
        return tuple(token for _ in range(2) for chunk in engine.step() for token in chunk.token_ids)

    law = reference_law(target, PROMPT, NUCLEUS)
    assert total_variation(extended_probs(outcomes(run), law, 2), target_probs(law, 2)) > 1e-3


@pytest.mark.drafter_raises
def test_randomness_that_a_drafter_uses_twice_is_seen_through_the_engine():
    """The engine goes on without the draft of a drafter that raises, whatever that is."""
    target, draft = models()

    def run(source):
        engine = tiny_engine("draft_model", target, draft, max_draft_len=1, source=source)
        propose = engine.drafter.propose
        engine.drafter.propose = lambda *args: propose(*args) and propose(*args)
        engine.add(Request("0", PROMPT, NUCLEUS))
        return tuple(token for _ in range(2) for chunk in engine.step() for token in chunk.token_ids)

    with pytest.raises(ReusedRandomness):
        list(outcomes(run))


def test_outcomes_of_a_small_tree():
    """Two coins and a die whose side count depends on them: every leaf once, weights sum to one."""

    def run(source):
        stream = Stream(source, 0, 0)
        heads = [stream.flip(0.25, Role.ACCEPT, index) for index in range(2)]
        sides = 2 + sum(heads)
        return (*heads, stream.choose(torch.ones(sides), Role.TARGET))

    walked = list(outcomes(run))
    assert sum(weight for weight, _ in walked) == pytest.approx(1)
    assert len({result for _, result in walked}) == len(walked) == 2 + 3 + 3 + 4
    both = sum(weight for weight, result in walked if result[:2] == (True, True))
    assert both == pytest.approx(1 / 16)


def test_reused_randomness_is_an_error():
    def run(source):
        stream = Stream(source, 0, 0)
        return stream.flip(0.5, Role.ACCEPT), stream.flip(0.5, Role.ACCEPT)

    with pytest.raises(ReusedRandomness):
        list(outcomes(run))


def test_extended_probs_of_the_target_itself():
    def law(tokens):
        return [0.5, 0.3, 0.2] if not tokens or tokens[-1] else [0.1, 0.9, 0.0]

    blocks = [(p, (token,)) for token, p in enumerate(law(()))]
    assert total_variation(extended_probs(blocks, law, 3), target_probs(law, 3)) < 1e-15
    assert len(target_probs(law, 2)) == len(list(itertools.product(range(3), repeat=2))) - 1
