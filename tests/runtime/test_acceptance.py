"""Acceptance rules by exact enumeration: the law of an emitted block, continued by the target, is the target's."""

from __future__ import annotations

import math
from functools import cache, partial

import pytest
import torch

from tests.equivalence.step_probs import extended_probs, target_probs, total_variation
from trt_spec.equivalence.self_check.exact import outcomes
from trt_spec.runtime import acceptance
from trt_spec.runtime.acceptance import ACCEPTANCE_RULES, Draft, TargetProbs
from trt_spec.runtime.randomness import PhiloxRandomness, Role, Stream
from trt_spec.runtime.request import SamplingParams
from trt_spec.runtime.sampling import logits_to_probs
from trt_spec.runtime.tree import DraftTree

V = 4  # with 3 tokens a wrong sibling rule hides: after one rejection the residual has one token left
SAMPLERS = {
    "T=1": SamplingParams(temperature=1.0),
    "T=0.3": SamplingParams(temperature=0.3),
    "T=1.5": SamplingParams(temperature=1.5),
    "top_k": SamplingParams(temperature=0.7, top_k=2),
    "top_p": SamplingParams(temperature=0.8, top_p=0.95),
    "min_p": SamplingParams(temperature=1.0, min_p=0.2),
    "greedy": SamplingParams(temperature=0.0),
}
TREES = {
    "empty": [],
    "chain 1": [-1],
    "chain 3": [-1, 0, 1],
    "two siblings": [-1, -1],
    "three siblings": [-1, -1, -1],
    "two levels": [-1, -1, 0, 0],
    "binary 6": [-1, -1, 0, 0, 1, 1],
    "lopsided 7": [-1, -1, 0, 0, 1, 2, 5],
}
LARGE_TREES = ("binary 6", "lopsided 7")


def table_logits(seed: int, scale: float = 1.0):
    """A toy model: logits [V] as a function of the emitted tokens."""

    @cache
    def logits(tokens: tuple[int, ...]) -> torch.Tensor:
        key = seed * 7919 + sum((token + 1) * 31**place for place, token in enumerate(tokens))
        return torch.randn(V, dtype=torch.float64, generator=torch.Generator().manual_seed(key)) * scale

    return logits


def draw_draft(
    parents: list[int],
    q,
    stream: Stream,
    *,
    deterministic: bool,
    params: SamplingParams,
    with_replacement: bool = False,
) -> Draft:
    """A tree whose children are drawn from q without replacement, or are its most likely tokens in turn."""
    tokens: list[int] = []
    laws: list[torch.Tensor] = []
    paths: list[tuple[int, ...]] = []
    for node, parent in enumerate(parents):
        prefix = () if parent < 0 else paths[parent]
        law = logits_to_probs(q(prefix)[None], params)[0]
        siblings = [tokens[other] for other in range(node) if parents[other] == parent]
        left = law.clone()
        if not with_replacement:
            left[siblings] = 0
        if deterministic:
            token = int(left.argmax())
        elif left.sum() == 0:  # q has fewer tokens than the tree has children
            raise NoDraft
        else:
            token = stream.choose(left / left.sum(), Role.DRAFT, node)
        tokens.append(token)
        laws.append(law)
        paths.append((*prefix, token))
    probs = None if deterministic or not laws else torch.stack(laws)
    parents_tensor = torch.tensor(parents, dtype=torch.int64)
    return Draft(torch.tensor(tokens, dtype=torch.int64), parents_tensor, probs, with_replacement)


class NoDraft(Exception):
    pass


def law_error(rule, parents, *, deterministic, target_params, draft_params, seed=0, padding=False, draft=draw_draft):
    """TV between the law of one step, extended to depth + 1 tokens, and the product of target laws."""
    p, q = table_logits(seed, 2.0), table_logits(seed + 1)
    if padding:
        p = partial(lambda f, t: torch.cat((f(t)[:-1], torch.tensor([float("-inf")], dtype=torch.float64))), p)
    length = 1 + max((depth for depth in DraftTree.of(parents).depths), default=-1) + 1
    to_probs = partial(logits_to_probs, params=target_params) if target_params.temperature > 0 else None

    def run(source):
        stream = Stream(source, seed=0, step=0)
        proposal = draft(parents, q, stream, deterministic=deterministic, params=draft_params)
        tokens = proposal.token_ids.tolist()
        prefixes = [tuple(tokens[n] for n in DraftTree.of(parents).path(row - 1)) for row in range(1 + len(parents))]
        target = TargetProbs(torch.stack([p(prefix) for prefix in prefixes]), to_probs)
        verdict = rule(target, proposal, stream)
        return (*(tokens[node] for node in verdict.path.tolist()), verdict.next_token)

    @cache
    def law(tokens):
        return logits_to_probs(p(tokens)[None], target_params)[0].tolist()

    return total_variation(extended_probs(outcomes(run), law, length), target_probs(law, length))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "stochastic"])
@pytest.mark.parametrize("rule", ["rejection", "exact_match"])
def test_step_law_is_the_targets(rule, tree, deterministic, sampler):
    if tree in LARGE_TREES and not deterministic:
        pytest.skip("the walk grows with V to the power of the nodes; large trees are walked with deterministic drafts")
    # A draft law with its own parameters: it need not know the target's filters.
    draft_params = SamplingParams(temperature=1.0)
    error = law_error(
        ACCEPTANCE_RULES[rule].decide,
        TREES[tree],
        deterministic=deterministic,
        target_params=SAMPLERS[sampler],
        draft_params=draft_params,
    )
    assert error < 1e-10


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("tree", ["empty", "chain 1", "chain 3"])
@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "stochastic"])
def test_block_verification_is_lossless_on_chains(deterministic, tree, sampler):
    error = law_error(
        acceptance.block,
        TREES[tree],
        deterministic=deterministic,
        target_params=SAMPLERS[sampler],
        draft_params=SamplingParams(temperature=1.0),
    )
    assert error < 1e-10


def accepted(rule, parents, seed):
    """Expected number of accepted tokens of a stochastic chain."""
    p, q, params = table_logits(seed, 2.0), table_logits(seed + 1), SamplingParams(temperature=1.0)

    def run(source):
        stream = Stream(source, 0, 0)
        draft = draw_draft(parents, q, stream, deterministic=False, params=params)
        tokens = draft.token_ids.tolist()
        logits = torch.stack([p(tuple(tokens[:row])) for row in range(len(tokens) + 1)])
        return len(rule(TargetProbs(logits, partial(logits_to_probs, params=params)), draft, stream).path)

    return sum(weight * count for weight, count in outcomes(run))


def test_block_verification_accepts_more():
    """Its point: never fewer accepted tokens than token by token, and really more on some laws."""
    gains = [
        accepted(acceptance.block, [-1, 0, 1], s) - accepted(acceptance.rejection, [-1, 0, 1], s) for s in range(4)
    ]
    assert min(gains) > -1e-12
    assert max(gains) > 1e-3


@pytest.mark.parametrize("tree", ["two siblings", "three siblings", "two levels"])
def test_siblings_drawn_with_replacement(tree):
    params = SamplingParams(temperature=1.0)
    error = law_error(
        acceptance.rejection,
        TREES[tree],
        deterministic=False,
        target_params=params,
        draft_params=params,
        draft=partial(draw_draft, with_replacement=True),
    )
    assert error < 1e-10


def test_typical_is_lossy_and_says_so():
    rule = ACCEPTANCE_RULES["typical"]
    params = SamplingParams(temperature=1.0)
    error = law_error(rule.decide, [-1, 0], deterministic=False, target_params=params, draft_params=params)
    assert error > 0.01
    assert not rule.is_lossless
    assert all(other.is_lossless for name, other in ACCEPTANCE_RULES.items() if name != "typical")


def test_typical_takes_what_medusa_takes():
    """p(x) ≥ min(0.3, 0.09 · exp(−H(p))) for every token of laws from flat to peaked; and the deepest such path."""
    takes = ACCEPTANCE_RULES["typical"].decide
    to_probs = partial(logits_to_probs, params=SamplingParams(temperature=1.0))
    taken = []
    for scale in (0.0, 1.0, 2.0, 5.0):
        logits = table_logits(5, scale)(()).expand(2, V)
        law = logits[0].softmax(-1)
        threshold = min(0.3, 0.09 * math.exp(sum(p * math.log(p) for p in law.tolist())))
        for token in range(V):
            verdict = takes(TargetProbs(logits, to_probs), Draft.chain([token]), Stream(PhiloxRandomness(), 1, 1))
            assert verdict.path.tolist() == ([0] if law[token] >= threshold else [])
            taken.append((len(verdict.path), float(law[token]) < 0.3))
    assert {(1, True), (0, True), (1, False)} <= set(taken)
    flat = torch.zeros(5, V, dtype=torch.float64)
    flat[1, 0] = -99.0  # below node 0 token 0 is unlikely, below node 1 everything may stand
    draft = Draft(torch.tensor([0, 1, 0, 2]), torch.tensor([-1, -1, 0, 1]))
    verdict = takes(TargetProbs(flat, to_probs), draft, Stream(PhiloxRandomness(), 1, 1))
    assert verdict.path.tolist() == [1, 3]


@pytest.mark.parametrize("seed", range(4))
def test_draft_with_the_targets_filters(seed):
    params = SamplingParams(temperature=0.8, top_p=0.95)
    for tree in ("chain 3", "chain 1"):
        error = law_error(
            acceptance.rejection, TREES[tree], deterministic=False, target_params=params, draft_params=params, seed=seed
        )
        assert error < 1e-10


def test_masked_padding_id_is_never_emitted():
    params = SamplingParams(temperature=1.0)
    error = law_error(
        acceptance.rejection, [-1, 0], deterministic=False, target_params=params, draft_params=params, padding=True
    )
    assert error < 1e-10


def test_greedy_rule_is_the_one_hot_case():
    for tree in TREES.values():
        error = law_error(
            acceptance.greedy,
            tree,
            deterministic=True,
            target_params=SamplingParams(),
            draft_params=SamplingParams(temperature=1.0),
        )
        assert error == 0


def test_equal_laws_accept_everything():
    """p = q leaves an empty residual; the draft token is then accepted for sure and nothing divides by zero."""
    logits = torch.zeros(1, V, dtype=torch.float64)
    probs = logits.softmax(-1)

    def run(source):
        draft = Draft.chain([2], probs)
        target = TargetProbs(logits.repeat(2, 1), partial(logits_to_probs, params=SamplingParams(temperature=1.0)))
        return acceptance.rejection(target, draft, Stream(source, 0, 0)).path.tolist()

    assert all(path == [0] for _, path in outcomes(run))
    assert torch.equal(acceptance.residual(probs[0], 2, probs[0]), probs[0])


def test_token_with_no_target_mass_is_always_rejected():
    logits = torch.tensor([[float("-inf"), *[0.0] * (V - 1)]], dtype=torch.float64)
    target = TargetProbs(logits.repeat(2, 1), partial(logits_to_probs, params=SamplingParams(temperature=1.0)))
    for probs in (None, torch.full((1, V), 1 / V, dtype=torch.float64)):
        draft = Draft.chain([0], probs)
        for _, verdict in outcomes(lambda source, d=draft: acceptance.rejection(target, d, Stream(source, 0, 0))):
            assert verdict.path.tolist() == []
            assert verdict.next_token != 0


# ---- mutants: each wrong rule must be seen by the very test that passes the right one ----


def mutant_always_accept(target, draft, stream):
    path = list(range(len(draft.token_ids)))
    return acceptance.Verdict(
        torch.tensor(path, dtype=torch.int64), stream.choose(target.probs[-1], Role.TARGET, ahead=len(path))
    )


def mutant_residual_is_p(target, draft, stream):
    return with_residual(lambda law, token, q: law)(target, draft, stream)


def mutant_residual_drops_token_only(target, draft, stream, residual=acceptance.residual):
    return with_residual(lambda law, token, q: residual(law, token, None))(target, draft, stream)


def control_one_hot_ratio(target, draft, stream):
    """Treats a stochastic draft as deterministic: lossless for any proposal, but accepts less."""
    return acceptance.rejection(target, draft._replace(probs=None), stream)


def mutant_lenient_ratio(target, draft, stream):
    return acceptance.rejection(target, draft._replace(probs=draft.probs * 0.9), stream)


def mutant_hot_draft_law(target, draft, stream):
    """Records another law than the one that was sampled."""
    sharper = draft.probs**2
    return acceptance.rejection(target, draft._replace(probs=sharper / sharper.sum(-1, keepdim=True)), stream)


def mutant_siblings_with_replacement(target, draft, stream):
    original = acceptance.without
    acceptance.without = lambda law, tokens: law
    try:
        return acceptance.rejection(target, draft, stream)
    finally:
        acceptance.without = original


def mutant_bonus_from_wrong_row(target, draft, stream):
    verdict = acceptance.rejection(target, draft, stream)
    if len(verdict.path) != len(draft.token_ids):
        return verdict
    return verdict._replace(next_token=stream.choose(target.probs[0], Role.TARGET, index=99))


def with_residual(function):
    def rule(target, draft, stream):
        original = acceptance.residual
        acceptance.residual = function
        try:
            return acceptance.rejection(target, draft, stream)
        finally:
            acceptance.residual = original

    return rule


MUTANTS = {
    "always accept": (mutant_always_accept, [-1, 0]),
    "residual = p": (mutant_residual_is_p, [-1]),
    "residual drops the token only": (mutant_residual_drops_token_only, [-1]),
    "accept p/(0.9 q)": (mutant_lenient_ratio, [-1]),
    "recorded q is not sampled q": (mutant_hot_draft_law, [-1]),
    "siblings with replacement": (mutant_siblings_with_replacement, [-1, -1]),
    "bonus from the wrong row": (mutant_bonus_from_wrong_row, [-1, 0]),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name):
    rule, tree = MUTANTS[name]
    params = SamplingParams(temperature=1.0)
    errors = [
        law_error(rule, tree, deterministic=False, target_params=params, draft_params=params, seed=seed)
        for seed in range(8)
    ]
    assert max(errors) > 1e-3, errors


def test_controls_pass():
    """Unusual but lossless: a test that flags these would be too strict."""
    params = SamplingParams(temperature=1.0)
    for tree in ([-1], [-1, 0], [-1, -1]):
        error = law_error(control_one_hot_ratio, tree, deterministic=False, target_params=params, draft_params=params)
        assert error < 1e-10


def test_every_random_number_is_used_once():
    """The enumerator refuses a run that asks twice for one key; siblings, depths and roles must all differ."""
    draws = []

    class Recorder:
        def choose(self, probs, keys):
            draws.extend(keys)
            return [int(row.argmax()) for row in probs]

        def flip(self, probs, keys):
            draws.extend(keys)
            return [False for _ in probs]

    stream = Stream(Recorder(), 7, 12)
    draft = draw_draft(
        TREES["two levels"], table_logits(3), stream, deterministic=False, params=SamplingParams(temperature=1.0)
    )
    target = TargetProbs(
        torch.zeros(5, V, dtype=torch.float64), partial(logits_to_probs, params=SamplingParams(temperature=1.0))
    )
    acceptance.rejection(target, draft, stream)
    assert len(draws) == len(set(draws)) == 4 + 2 + 1


def test_follow_prefers_the_first_child_with_the_token():
    draft = Draft(torch.tensor([3, 3, 1]), torch.tensor([-1, -1, 1]), None)
    logits = torch.full((4, 5), -9.0)
    for row, token in enumerate([3, 4, 1, 0]):
        logits[row, token] = 0
    verdict = acceptance.greedy(TargetProbs(logits), draft, None)
    assert (verdict.path.tolist(), verdict.next_token) == ([0], 4)
