"""The test of the tests: how many tokens each mutant needs before it is caught, beside the information bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil, log

import numpy as np
import torch

from trt_spec.equivalence.ledger import Ledger, new_evidence
from trt_spec.equivalence.reference.scoring import NativeScorer, Served
from trt_spec.equivalence.self_check.exact import outcomes
from trt_spec.equivalence.self_check.mutants import CONTROLS, MUTANTS, Mutant
from trt_spec.equivalence.self_check.outcome import Outcome
from trt_spec.equivalence.self_check.toys import VOCABULARY, toy_engine
from trt_spec.runtime.acceptance import ACCEPTANCE_RULES, Draft, TargetProbs
from trt_spec.runtime.randomness import Role, Stream
from trt_spec.runtime.request import Request
from trt_spec.runtime.sampling import logits_to_probs

MAX_TOKENS = 60_000
CONTROL_TOKENS = 6_000
_BATCH = 48
_NUM_CONTEXTS = 60
_PATIENCE = 4  # the omnibus alone is watched until so many times the tokens that all bets needed


def run(alpha: float, seed: int = 0, advance: Callable[[float, str], None] = lambda part, name: None) -> list[Outcome]:
    """Every mutant and every control on toy engines.

    Args:
        advance: told the part done and what runs now.
    """
    cases = (*MUTANTS, *CONTROLS)
    found = []
    for index, mutant in enumerate(cases):
        advance(index / len(cases), f"self-check: {mutant.name}")
        found.append(run_one(mutant, alpha, seed))
    return found


def run_one(mutant: Mutant, alpha: float, seed: int = 0, max_tokens: int | None = None) -> Outcome:
    """Serves from one wrong engine until it is caught, or for `max_tokens`."""
    limit = max_tokens or (CONTROL_TOKENS if mutant.is_control else MAX_TOKENS)
    bound = information_bound(mutant, alpha, seed) if mutant.has_exact_law and not mutant.is_control else None
    needed, num_tokens = log(1 / alpha), 0
    caught = omnibus = caught_by = ledger = None
    for outputs, reference in _served(mutant, seed):
        if ledger is None:
            target, draft = reference
            evidence = new_evidence(mutant.params, VOCABULARY, has_draft=True, tau=0.05, tolerance=0.0)
            ledger = Ledger(evidence, VOCABULARY, NativeScorer(target), NativeScorer(draft), has_deviations=False)
        for item in ledger.add(outputs):
            if omnibus is None and (hits := np.flatnonzero(item.log_e_omnibus >= needed)).size:
                omnibus = num_tokens + int(hits[0]) + 1
            over = np.flatnonzero(item.log_e >= needed)
            if caught is None and (over.size or item.violation):
                caught = num_tokens + (int(over[0]) + 1 if over.size else len(item.positions))
                caught_by = ledger.evidence.bets()[0][0] if over.size else item.violation
            num_tokens += len(item.positions)
        if num_tokens >= limit or (caught and (omnibus or num_tokens >= _PATIENCE * max(bound or 0, caught))):
            break
    is_caught, is_control = caught is not None, mutant.is_control
    is_right = is_caught != is_control
    return Outcome(mutant.name, is_control, is_caught, is_right, caught or num_tokens, omnibus, bound, caught_by)


def _served(mutant: Mutant, seed: int) -> Iterator[tuple[list[Served], tuple]]:
    """Outputs of the wrong engine, a batch at a time, and the models to judge them with."""
    engine, right = toy_engine(mutant.shape, seed=seed), toy_engine(mutant.shape, seed=seed)
    mutant.apply(engine)
    generator = np.random.default_rng(seed)
    count = 0
    while True:
        requests = []
        for index in range(_BATCH):
            prompt = (1, 2, index % 4) if mutant.is_repeated else tuple(generator.integers(0, 9, 5).tolist())
            params = replace(mutant.params, seed=count + 1_000_003 * seed + 1)
            requests.append(Request(str(count), prompt, params))
            count += 1
        answers = engine.generate(requests)
        served = [
            Served(request.input_ids, tuple(answer.token_ids), request.params)
            for request, answer in zip(requests, answers, strict=True)
        ]
        yield served, (right.target, right.drafter.model)


# ---- the information bound ----


def information_bound(mutant: Mutant, alpha: float, seed: int = 0) -> int | None:
    """log(1/α)/KL in tokens, with KL the mean information of a step of the wrong rule per token that it serves.

    Blocks are taken as seen whole and drafts of one token as always made, so the bound is below what any test of the
    served tokens can reach. None where the wrong law is the right one for all that can be seen in one step.
    """
    engine = toy_engine(mutant.shape, "rejection", seed)
    generator = np.random.default_rng(seed + 1)
    to_probs = partial(logits_to_probs, params=mutant.params)
    rule = mutant.rule or ACCEPTANCE_RULES["rejection"].decide
    information, num_tokens = 0.0, 0.0
    for _ in range(_NUM_CONTEXTS):
        context = tuple(generator.integers(0, 9, 8).tolist())
        logits, draft_probs = _probs_after(engine, context, mutant)
        blocks: dict[tuple[int, ...], float] = {}

        def step(source, logits=logits, draft_probs=draft_probs):
            stream = Stream(source, 0, 0)
            draft = Draft.chain([stream.choose(draft_probs[0], Role.DRAFT)], draft_probs)
            draft = mutant.remake(draft) if mutant.remake else draft
            [token] = draft.token_ids.tolist()
            verdict = rule(TargetProbs(logits[[0, 1 + token]], to_probs), draft, stream)
            return (token, verdict.next_token) if len(verdict.path) else (verdict.next_token,)

        try:
            for weight, block in outcomes(step):
                blocks[block] = blocks.get(block, 0.0) + weight
        except AssertionError:  # the fault is in the random numbers, which the walk refuses
            return None
        probs = to_probs(logits).double()
        served = _two_tokens(blocks, probs)
        right = probs[0][:, None] * probs[1:]
        mask = served > 0
        information += float((served[mask] * (served[mask] / right[mask].clamp(min=1e-12)).log()).sum())
        num_tokens += sum(weight * len(block) for block, weight in blocks.items())
    rate = information / num_tokens
    return ceil(log(1 / alpha) / rate) if rate > 1e-9 else None


def _two_tokens(blocks: dict[tuple[int, ...], float], probs: torch.Tensor) -> torch.Tensor:
    """The law [V, V] of two tokens when blocks of one are continued by the target."""
    size = probs.shape[1]
    served = torch.zeros(size, size, dtype=torch.float64)
    for block, weight in blocks.items():
        if len(block) == 2:
            served[block] += weight
        else:
            served[block[0]] += weight * probs[1 + block[0]]
    return served


@torch.inference_mode()
def _probs_after(engine, context: tuple[int, ...], mutant: Mutant) -> tuple[torch.Tensor, torch.Tensor]:
    """Target logits [1 + V, V] after the context and after each token more; the draft's law [1, V]."""
    size = engine.target.vocab_size
    scored = NativeScorer(engine.target).logits([Served(context, (token, 0), mutant.params) for token in range(size)])
    drafted = NativeScorer(engine.drafter.model).logits([Served(context, (0,), mutant.params)])[0]
    logits = torch.stack([scored[0][0], *(rows[1] for rows in scored)])
    return logits, logits_to_probs(drafted, mutant.params)
