"""The verdict on what has been seen so far. Pure: evidence in, a finding out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trt_spec.equivalence.arm import Arm
from trt_spec.equivalence.certificate import ArmName, Layer, VerdictName
from trt_spec.equivalence.greedy import GreedyFindings
from trt_spec.equivalence.roles import DRAFTED, FULL_SHARE
from trt_spec.equivalence.settings import Settings

DOUBT = 0.01  # no certificate while the evidence against equal laws would reject at this level


@dataclass(frozen=True)
class Finding:
    """What a run found.

    Attributes:
        verdict: see docs/equivalence.md.
        reason: one sentence. warning: its last part, where it limits what an `equivalent` says.
        layer: what the verdict rests on. arm: the outputs that gave it away.
        num_tokens_needed: speculative tokens in all until a certificate, as it looks now; None where unknown.
    """

    verdict: VerdictName
    reason: str
    layer: Layer | None = None
    arm: ArmName | None = None
    warning: str | None = None
    num_tokens_needed: int | None = None


def judge(settings: Settings, arms: Mapping[str, Arm], greedy: GreedyFindings | None) -> Finding:
    """The verdict on both arms and the greedy outputs."""
    return _fault(settings, arms, greedy) or _certified(settings, arms["speculation"])


def judge_greedy(greedy: GreedyFindings) -> Finding:
    """`equivalent`, for an engine that serves nothing but greedy outputs, where `judge` found no fault."""
    places = ", ".join(f"{name} {count}" for name, count in greedy.places.items())
    reason = f"all {greedy.num_tokens} greedy tokens are the target's best or tie with it"
    return Finding("equivalent", f"{reason}; places in a step: {places}" if places else reason)


def _fault(settings: Settings, arms: Mapping[str, Arm], greedy: GreedyFindings | None) -> Finding | None:
    if greedy is not None and greedy.faults:
        reason = f"greedy output has {len(greedy.faults)} tokens below the best one by more than a tie; the first by "
        return Finding("different", f"{reason}{greedy.faults[0].gap:.3g} logits", "greedy", "greedy")
    for name, source in (("greedy", greedy), *arms.items()):
        if source is not None and source.violations:
            return Finding("different", f"{name}: {source.violations[0].what}", "contract", name)
    if found := _reported_fault(settings, arms, greedy):
        return found
    if arms["plain"].evidence.is_rejected(settings.arm_alpha):
        reason = "speculation off deviates from the reference too: it is the engine or the reference, not the drafts"
        return Finding("different", reason, "bets", "plain")
    evidence = arms["speculation"].evidence
    if evidence.is_rejected(settings.arm_alpha):
        reason = "served tokens with speculation do not follow the target's law"
        if role := evidence.loudest_part():
            reason = f"{reason}; the evidence is in one role: {role}"
            return Finding("different", reason, "bets within a role", "speculation")
        return Finding("different", reason, "bets", "speculation")
    return None


def _reported_fault(settings: Settings, arms: Mapping[str, Arm], greedy: GreedyFindings | None) -> Finding | None:
    """What the reported log-probabilities show: speculation on against off, and off against rounding."""
    plain = arms["plain"].reported
    mean, largest = settings.logprob_noise
    seen = (max(mean, plain.mean), max(largest, plain.largest[0]))
    for name, source, noise in (
        ("plain", arms["plain"], (mean, largest)),
        ("speculation", arms["speculation"], seen),
        ("greedy", greedy, seen),
    ):
        if source is not None and (words := source.reported.fault(*noise)):
            return Finding("different", f"{name}: {words}", "reported log-probabilities", name)
    return None


def _certified(settings: Settings, arm: Arm) -> Finding:
    """A certificate, or what it still lacks."""
    evidence = arm.evidence
    missing = evidence.missing(settings.alpha)
    if missing:
        places = ", ".join(f"{bound:g} for {name}" for name, bound in missing)
        so_far = evidence.deviations.smallest_bound(settings.alpha)
        seen = f"excluded so far over all tokens: {so_far:g}" if so_far else "no tracked bound is excluded yet"
        reason = f"no deviation was shown, and not yet excluded is {places}; {seen}"
        needed = evidence.num_tokens_needed(settings.alpha)
        return Finding("inconclusive", reason, "deviations", "speculation", num_tokens_needed=needed)
    if evidence.log_e >= -np.log(DOUBT):
        reason = (
            f"a deviation of {settings.tau:g} is excluded, but log e {evidence.log_e:.1f} speaks of a smaller one: "
        )
        return Finding("inconclusive", f"{reason}more tokens have to tell", "bets", "speculation")
    reason = f"a deviation of {settings.tau:g} per token or more is excluded in every direction"
    warning = _few_drafts(arm)
    return Finding("equivalent", f"{reason}; {warning}" if warning else reason, warning=warning)


def _few_drafts(arm: Arm) -> str | None:
    """A warning where so little was drafted that the certificate says next to nothing about drafts."""
    parts = arm.evidence.parts
    num_placed = sum(part.num_tokens for part in parts.values())
    num_drafted = sum(part.num_tokens for name, part in parts.items() if name in DRAFTED)
    if num_drafted >= num_placed * FULL_SHARE:
        return None
    return f"only {num_drafted:,} of {num_placed:,} tokens had a draft, so it says little about drafts"
