"""Engines that are wrong on purpose, and equivalent ones that look odd: what every self-check runs.

Each one changes the production engine through its own interfaces: the acceptance rule, the drafter, the source of
randomness, the model's forward, the cache, the sequence. The faults come from public reports of serving systems; the
ones marked "own" are this project's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trt_spec.equivalence.self_check.faulty_rules import Rejection, dropped, flip, normalised, right_ratio, sample
from trt_spec.equivalence.self_check.toys import EOS
from trt_spec.runtime import acceptance
from trt_spec.runtime.acceptance import AcceptanceRule, Draft, RuleFn, TargetProbs, Verdict
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.randomness import Draw, PhiloxRandomness, Role, Stream
from trt_spec.runtime.request import ACCEPTED, SamplingParams

SAMPLED = SamplingParams(max_tokens=40, temperature=0.8, ignore_eos=True)
ENDING = replace(SAMPLED, ignore_eos=False)
PENALISED = replace(SAMPLED, frequency_penalty=0.8, presence_penalty=0.5, repetition_penalty=1.2)
TRUNCATED = replace(SAMPLED, temperature=1.0, top_p=0.8)
Remake = Callable[[Draft], Draft]


@dataclass(frozen=True)
class Mutant:
    """One wrong engine, or a control.

    Attributes:
        name: for the table.
        shape: the toy engine's drafts, a name of `toys.GROWTHS`.
        rule: acceptance rule; None keeps rejection.
        remake: what the drafter hands over instead of its draft.
        change: any other change to the engine.
        is_control: lossless; must not be flagged.
        is_repeated: requests share prompts, as a fault between requests needs.
    """

    name: str
    shape: str = "chain 1"
    rule: RuleFn | None = None
    remake: Remake | None = None
    change: Callable[[Engine], None] | None = None
    params: SamplingParams = SAMPLED
    is_control: bool = False
    is_repeated: bool = False

    def apply(self, engine: Engine) -> None:
        """Makes the engine wrong, in place."""
        if self.rule is not None:
            engine.rule = AcceptanceRule(self.name, True, True, self.rule)
        if self.remake is not None:
            propose, remake = engine.drafter.propose, self.remake
            engine.drafter.propose = lambda *args: [remake(draft) for draft in propose(*args)]
        if self.change is not None:
            self.change(engine)

    @property
    def has_exact_law(self) -> bool:
        """Whether rule and drafts alone make the fault, so that the law of a step can be walked."""
        return self.change is None and self.shape == "chain 1" and self.params is SAMPLED


# ---- rules ----


def always_accept(target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
    path = torch.arange(len(draft.token_ids))
    return Verdict(path, stream.choose(target.probs[-1], Role.TARGET, ahead=len(path)))


def verify_at(factor: float) -> RuleFn:
    """Rejection against the target at another temperature."""

    def rule(target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
        sharper = lambda logits: normalised(target.to_probs(logits) ** (1 / factor))  # noqa: E731
        return acceptance.rejection(TargetProbs(target.logits, sharper), draft, stream)

    return rule


def untruncated(target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
    return acceptance.rejection(TargetProbs(target.logits, lambda logits: logits.softmax(-1)), draft, stream)


def one_hot_ratio(target: TargetProbs, draft: Draft, stream: Stream) -> Verdict:
    """Accepts p(x), whatever x was drawn from, and recovers from p without x: lossless for any proposal."""
    return acceptance.rejection(target, draft._replace(probs=None), stream)


def certain_coin(stream: Stream, ratio: float, node: int) -> bool:
    return ratio >= 0.5


def reused_coin(stream: Stream, ratio: float, node: int) -> bool:
    return stream.flip(ratio, Role.ACCEPT, 0)


def coin_of_the_draft(stream: Stream, ratio: float, node: int) -> bool:
    return stream.source.flip([ratio], [stream.draw(Role.DRAFT, node)])[0]


def recovered_with_draft_noise(probs: Tensor, stream: Stream, depth: int, node: int) -> int:
    return stream.source.choose(probs[None], [stream.draw(Role.DRAFT, node)])[0]


def tempered(exponent: float, where: Callable[[bool], bool]) -> Callable[[Tensor, bool], Tensor]:
    return lambda probs, is_bonus: normalised(probs**exponent) if where(is_bonus) else probs


# ---- drafts ----


def recorded(change: Callable[[Tensor], Tensor]) -> Remake:
    """A q that is not the one that was drawn from."""
    return lambda draft: draft if draft.probs is None else draft._replace(probs=normalised(change(draft.probs)))


def top(count: int) -> Callable[[Tensor], Tensor]:
    return lambda q: torch.where(q >= q.topk(count, dim=-1).values[:, -1:], q, 1e-6)


def in_bfloat16(q: Tensor) -> Tensor:
    """q from bfloat16 logits near 100, where they are 0.5 apart."""
    return (q.clamp(min=1e-9).log() + 100).bfloat16().float().softmax(-1)


def argmax_tokens(draft: Draft) -> Draft:
    return draft if draft.probs is None else draft._replace(token_ids=draft.probs.argmax(-1))


def argmax_draft(draft: Draft) -> Draft:
    return argmax_tokens(draft)._replace(probs=None)


# ---- sources ----


def repeated(**same: int) -> Callable[[Engine], None]:
    """The same number for all keys that differ in these fields alone."""

    class Repeated(PhiloxRandomness):
        def uniform(self, draw: Draw) -> float:
            return super().uniform(draw._replace(**same))

    return lambda engine: setattr(engine, "source", Repeated())


# ---- engine ----


def on_sequences(change: Callable[[Any], None]) -> Callable[[Engine], None]:
    """Changes every sequence when it is added."""

    def apply(engine: Engine) -> None:
        add = engine.add

        def added(request) -> None:
            add(request)
            change(engine._in_flight[request.request_id])

        engine.add = added

    return apply


def blind_to_drafts(sequence) -> None:
    """Penalties that see committed tokens only."""
    right = sequence.processor

    class Blind:
        needs_history, is_identity = right.needs_history, right.is_identity

        def __call__(self, logits, history, num_output, drafted):
            return right(logits, history, num_output, [[] for _ in drafted])

    sequence.processor = Blind()


def ends_only_last(sequence) -> None:
    """EOS ends the output only as the last token of a step."""
    append = sequence.append

    def appended(tokens, logprobs, last_origin, num_drafted=0):
        tokens, eos = list(tokens), sequence._eos
        if EOS not in tokens[:-1]:
            return append(tokens, logprobs, last_origin, num_drafted)
        sequence._eos = frozenset()
        first = append(tokens[:-1], logprobs, ACCEPTED, num_drafted)
        sequence._eos = eos
        if first.completion is not None:
            return first
        last = append(tokens[-1:], logprobs[-1:] if logprobs else None, last_origin)
        last.token_ids[:0], last.token_origins[:0] = first.token_ids, first.token_origins
        if logprobs:
            last.logprobs[:0] = first.logprobs
        return last

    sequence.append = appended


def stale_cache(engine: Engine) -> None:
    """The key and value of the first draft token stay where the token after them belongs."""
    forward, cache = engine.target.forward, engine.cache

    def forwarded(batch, used, capture=()):
        rows = used.rows.clone()
        hidden = forward(batch, used, capture)
        for item in batch.rows:
            place = item.slot * cache.slot_len + item.start
            if item.parents and rows[:, place].any():  # a draft of the step before lay here: it stays
                used.rows[:, place] = rows[:, place]
        return hidden

    engine.target.forward = forwarded


def shifted_positions(engine: Engine) -> None:
    """Draft rows turn one position too far."""
    forward = engine.target.forward

    def forwarded(batch, used, capture=()):
        positions = batch.positions.clone()
        for item, end in zip(batch.rows, batch.offsets[1:], strict=True):
            positions[end - len(item.parents) : end] += 1 if item.parents else 0
        return forward(replace(batch, positions=positions), used, capture)

    engine.target.forward = forwarded


def swapped_slots(engine: Engine) -> None:
    """Every eighth step with a draft, the last logits of the step come from a neighbour's row."""
    logits, calls = engine.target.logits, [0]

    def computed(hidden):
        found = logits(hidden)
        calls[0] += 1
        return found.roll(1, 0) if calls[0] % 8 == 0 else found

    engine.target.logits = computed


MUTANTS: tuple[Mutant, ...] = (
    Mutant("always accept", rule=always_accept),
    Mutant("residual = p", rule=Rejection(leftover=lambda probs, token, q: probs)),
    Mutant(
        "residual = p without the drafted token",
        rule=Rejection(leftover=lambda probs, token, q: dropped(probs, token)),
    ),
    Mutant("recorded q: raw logits", remake=recorded(lambda q: q**SAMPLED.temperature)),
    Mutant("recorded q: temperature 0.5", remake=recorded(lambda q: q ** (SAMPLED.temperature / 0.5))),
    Mutant("recorded q: top-k 2", rule=Rejection(), remake=recorded(top(2))),
    Mutant("argmax draft with softmax q", remake=argmax_tokens),
    Mutant("recorded q: bfloat16 logits", remake=recorded(in_bfloat16)),
    Mutant("accept p/(0.9 q)", rule=Rejection(ratio=lambda probs, token, q: right_ratio(probs, token, q) / 0.9)),
    Mutant("verify at T × 0.9", rule=verify_at(0.9)),
    Mutant(
        "greedy fallback after rejection",
        rule=Rejection(recover=lambda probs, stream, depth, node: int(probs.argmax())),
    ),
    Mutant(
        "bonus token untempered",
        rule=Rejection(reshape=tempered(SAMPLED.temperature, lambda is_bonus: is_bonus)),
    ),
    Mutant("bonus token from the wrong node", rule=Rejection(bonus_row=lambda node, parent: parent + 1)),
    Mutant("draft noise reused for recovery", rule=Rejection(recover=recovered_with_draft_noise)),
    Mutant("one seed re-used every step", change=repeated(step=0)),
    Mutant("one stream shared by requests", change=repeated(seed=0), is_repeated=True),
    Mutant("siblings tried without updating p", shape="siblings", rule=Rejection(updates_target=False)),
    Mutant("penalties do not see earlier drafts", change=on_sequences(blind_to_drafts), params=PENALISED),
    Mutant("stale KV after rejection", change=stale_cache),
    Mutant(
        "EOS accepted in mid-block and ignored", shape="chain 3", change=on_sequences(ends_only_last), params=ENDING
    ),
    Mutant("own: siblings tried without updating q", shape="siblings", rule=Rejection(updates_draft=False)),
    Mutant("own: residual max(q − p, 0)", rule=Rejection(leftover=lambda p, x, q: acceptance.residual(q, x, p))),
    Mutant("own: accepts where p ≥ q/2, no coin", rule=Rejection(coin=certain_coin)),
    Mutant("own: one coin for all draft tokens", shape="chain 3", rule=Rejection(coin=reused_coin)),
    Mutant("own: the draft's number as the coin", rule=Rejection(coin=coin_of_the_draft)),
    Mutant("own: verification forgets top-p", rule=untruncated, params=TRUNCATED),
    Mutant("own: draft rows at shifted positions", change=shifted_positions),
    Mutant("own: logits of a neighbour now and then", change=swapped_slots),
    Mutant("own: recovered token untempered", rule=Rejection(reshape=tempered(0.8, lambda is_bonus: not is_bonus))),
)

CONTROLS: tuple[Mutant, ...] = (
    Mutant("rejection", shape="chain 3", params=ENDING, is_control=True),
    Mutant("rejection in pieces", rule=Rejection(coin=flip, recover=sample), is_control=True),
    Mutant("exact match, argmax draft", rule=acceptance.exact_match, remake=argmax_draft, is_control=True),
    Mutant("exact match, stochastic draft", rule=acceptance.exact_match, is_control=True),
    Mutant("accept p(x), residual p without x, argmax draft", remake=argmax_draft, is_control=True),
    Mutant("accept p(x), residual p without x, stochastic draft", rule=one_hot_ratio, is_control=True),
    Mutant("block verification", shape="chain 3", rule=acceptance.block, is_control=True),
    Mutant("siblings without replacement", shape="siblings", is_control=True),
    Mutant("tree of top tokens", shape="top tokens", is_control=True),
    Mutant("penalties", shape="chain 3", params=PENALISED, is_control=True),
    Mutant("top-p", shape="chain 3", params=TRUNCATED, is_control=True),
    Mutant("repeated prompts", is_repeated=True, is_control=True),
)
