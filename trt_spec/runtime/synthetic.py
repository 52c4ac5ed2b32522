"""Synthetic acceptance: a coin decides about every draft token, so that a system's cost shows apart from draft quality.

Everything else runs as always: the drafter, the packed forward, the target's probabilities at every row, the cache.
What comes out is no text of the target's. So it is a mode of an engine that is already loaded, for measurements, and
nothing that a run config can ask for: what is built, emitted or certified never has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import replace

import torch

from trt_spec.config.rates import OPTION, check_rates
from trt_spec.errors import CapabilityError, UsageError
from trt_spec.runtime.acceptance import AcceptanceRule, Draft, TargetProbs, Verdict, follow
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.drafters.base import Drafter, WrappedDrafter
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.randomness import Randomness, Role, Stream
from trt_spec.runtime.sequence import Sequence
from trt_spec.runtime.tree import ROOT

SYNTHETIC = "synthetic"  # name of the rule; none of ACCEPTANCE_RULES


def synthetic_rule(rates: SequenceOf[float]) -> AcceptanceRule:
    """Accepts the first child of each node by coin; below the last rate nothing is accepted.

    The target's probabilities are computed as a real rule would, and the token that ends the step comes from it.
    """

    def decide(target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
        branches, node, path = draft.tree.children, ROOT, []
        rows = target.argmax if target.is_greedy else target.probs
        while branches.get(node) and len(path) < len(rates):
            child = branches[node][0]
            if not stream.flip(rates[len(path)], Role.ACCEPT, child):
                break
            node = child
            path.append(child)
        last = rows[node + 1]
        token = last if target.is_greedy else stream.choose(last, Role.TARGET, ahead=len(path))
        return Verdict(torch.tensor(path, dtype=torch.int64), token)

    return AcceptanceRule(SYNTHETIC, is_lossless=False, serves_sampling=True, decide=decide)


def replay_rule(texts: SequenceOf[SequenceOf[int]]) -> AcceptanceRule:
    """Accepts what agrees with a text that is known beforehand, and ends the step with that text's next token.

    A greedy request of seed i gets text i, prompt first. So engines and arms that round differently still do the same
    work. The target's probabilities are computed as a real rule would.
    """

    def decide(target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
        assert target.argmax
        text = texts[stream.seed]
        return follow(draft, lambda row, depth: text[stream.step + depth])

    return AcceptanceRule(SYNTHETIC, is_lossless=False, serves_sampling=False, decide=decide)


class FreeDrafter(Drafter):
    """Drafts nothing, at no cost: a draft that does not exist yet."""

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        return [Draft.empty() for _ in sequences]


class FullLengthDrafter(WrappedDrafter):
    """Lets a drafter do its work, and fills its chain up to the length that was asked for."""

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        """Drafts of full length; a tree, and tokens that were drawn from probabilities, stay as they are."""
        return [
            _filled(draft, length, sequence.token_ids[-1])
            for draft, length, sequence in zip(
                self.inner.propose(sequences, max_lens, source), max_lens, sequences, strict=True
            )
        ]


def _filled(draft: Draft, length: int, token: int) -> Draft:
    tokens = draft.token_ids.tolist()
    if len(tokens) >= length or draft.probs is not None or not draft.tree.is_chain:
        return draft
    return Draft.chain(tokens + [token] * (length - len(tokens)))


@contextmanager
def synthetic_acceptance(engine: Engine, rates: SequenceOf[float] | None) -> Iterator[None]:
    """While it lasts the engine accepts by coin; it has to be idle at both ends.

    An engine without a drafter gets one that costs nothing and drafts as many tokens as there are rates; contexts are
    shorter by as many, so that the caches suffice.

    Args:
        rates: see `check_rates`; None leaves the engine as it is. Drafts are as long as the list.

    Raises:
        UsageError: no acceptance profile, or one for more positions than the engine drafts.
        CapabilityError: the engine's context has no room for such drafts.
    """
    if rates is None:
        yield
        return
    rates = check_rates(rates)
    assert not engine.has_work, "switched in the middle of a request"
    before = (engine.rule, engine.drafter, engine.limits)
    engine.limits = _limits(engine, len(rates))
    engine.rule, engine.drafter = synthetic_rule(rates), FullLengthDrafter(engine.drafter or FreeDrafter())
    try:
        yield
    finally:
        engine.rule, engine.drafter, engine.limits = before


def _limits(engine: Engine, length: int) -> EngineLimits:
    limits = engine.limits
    if engine.drafter is None:
        left = limits.max_seq_len - length
        if left < length + 2:
            raise CapabilityError(
                "the engine's context has no room for such drafts",
                where="build.max_seq_len",
                got=limits.max_seq_len,
                expected=f"at least {2 * length + 2}",
                remedy="build the engine with a larger build.max_seq_len, or give fewer rates",
            )
        return replace(limits, max_seq_len=left, max_draft_len=length)
    if length > limits.max_draft_len:
        raise UsageError(
            "rates for more positions than the engine drafts",
            where=OPTION,
            got=f"{length} rates",
            expected=f"at most {limits.max_draft_len} (speculation.max_draft_len)",
            remedy="give fewer rates, or build the engine with a larger speculation.max_draft_len",
        )
    return replace(limits, max_draft_len=length)
