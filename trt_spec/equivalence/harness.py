"""Serve, score, decide: rounds of requests until the verdict is certain or the budget is spent.

Both arms go to the same server with the same prompts and seeds of their own: speculation on, and off (the A/A arm,
which shows whether the reference describes this engine at all).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from trt_spec.equivalence.arm import Arm
from trt_spec.equivalence.greedy import GreedyFindings, check_greedy
from trt_spec.equivalence.ledger import Ledger, new_evidence, scorable
from trt_spec.equivalence.reference.scoring import Scorer, Served, Vocabulary
from trt_spec.equivalence.roles import DRAFTED, FULL_SHARE
from trt_spec.equivalence.settings import Finding, Prompt, Settings
from trt_spec.runtime.request import Completion, Request

PLAIN_SHARE = 4  # one plain output for so many speculative ones
SHORT_SHARE = 4  # one with drafts of one token in so many speculative ones
_GREEDY_TOKENS = 40
DOUBT = 0.01  # no certificate while the evidence against equal laws would reject at this level
Advance = Callable[[float | None, str], None]


class Answer(Protocol):
    """What a server gives back for one request."""

    token_ids: list[int]
    logprobs: list[float] | None
    token_origins: list[int]
    completion: Completion


Serve = Callable[[Sequence[Request]], Sequence[Answer]]


@dataclass
class Harness:
    """One run of the equivalence check.

    Attributes:
        serve: the server under test. scorer: the reference. draft_scorer: the draft model, where bets may use it.
    """

    settings: Settings
    prompts: Sequence[Prompt]
    serve: Serve
    scorer: Scorer
    vocabulary: Vocabulary
    draft_scorer: Scorer | None = None
    greedy: GreedyFindings | None = None
    serving_seconds: float = 0.0
    scoring_seconds: float = 0.0
    arms: dict[str, Arm] = field(default_factory=dict)
    _next_seed: int = 0
    _next_prompt: int = 0

    def __post_init__(self) -> None:
        self._next_seed = self.settings.first_seed
        for name in ("speculation", "plain"):
            evidence = new_evidence(
                self.settings.params,
                self.vocabulary,
                has_draft=self.draft_scorer is not None,
                tau=self.settings.tau,
                tolerance=self.settings.tolerance,
                has_roles=self.settings.has_roles and name == "speculation",
            )
            self.arms[name] = Arm(name, Ledger(evidence, self.vocabulary, self.scorer, self.draft_scorer))

    @property
    def next_seed(self) -> int:
        """The first seed that has not been used."""
        return self._next_seed

    def skip_seeds(self, first: int) -> None:
        """Goes on from this seed: earlier ones belong to evidence that is kept."""
        self._next_seed = max(self._next_seed, first)

    def run_greedy(self, advance: Advance = lambda part, text: None) -> Finding:
        """Judges greedy outputs alone, for engines that serve nothing else."""
        self._check_greedy(advance, self.settings.params.max_tokens)
        finding = self.judge()
        if finding.verdict == "different":
            return finding
        reason = f"all {self.greedy.num_tokens} greedy tokens are the target's best or tie with it"
        places = ", ".join(f"{name} {count}" for name, count in self.greedy.places.items())
        return Finding("equivalent", f"{reason}; places in a step: {places}" if places else reason)

    def run(self, advance: Advance = lambda part, text: None) -> Finding:
        """Runs until the verdict is certain or the budget is spent."""
        started = time.monotonic()
        settings, fresh = self.settings, 0
        self._check_greedy(advance)
        while True:
            before = self.arms["speculation"].ledger.evidence.num_tokens
            self._round("speculation", settings.batch_size)
            self._round("plain", max(1, settings.batch_size // PLAIN_SHARE))
            fresh += self.arms["speculation"].ledger.evidence.num_tokens - before
            finding = self.judge()
            advance(self._part_done(fresh), self._progress())
            seconds = time.monotonic() - started
            is_over = fresh >= settings.max_tokens or (settings.max_seconds or seconds) < seconds
            if finding.verdict != "inconclusive" or is_over:
                return finding

    def judge(self) -> Finding:
        """The verdict on what has been seen so far."""
        settings = self.settings
        speculative, plain = self.arms["speculation"], self.arms["plain"]
        evidence = speculative.ledger.evidence
        if self.greedy is not None and self.greedy.faults:
            fault = self.greedy.faults[0]
            return Finding(
                "different",
                f"greedy output has {len(self.greedy.faults)} tokens below the best one by more than a tie; the first "
                f"by {fault.gap:.3g} logits",
            )
        broken = [(arm.name, arm.violations) for arm in (speculative, plain)]
        if self.greedy is not None:
            broken.insert(0, ("greedy", self.greedy.violations))
        for name, violations in broken:
            if violations:
                return Finding("different", f"{name}: {violations[0][1]}")
        if fault := self._reported_fault():
            return Finding("different", fault)
        if plain.ledger.evidence.is_rejected(settings.arm_alpha):
            return Finding(
                "different",
                "speculation off deviates from the reference too: it is the engine or the reference, not the drafts",
            )
        if evidence.is_rejected(settings.arm_alpha):
            role = evidence.loudest_part()
            return Finding(
                "different",
                "served tokens with speculation do not follow the target's law"
                + (f"; the evidence is in one role: {role}" if role else ""),
            )
        needed = evidence.num_tokens_needed(settings.alpha)
        missing = evidence.missing(settings.alpha)
        if not missing and evidence.log_e >= -np.log(DOUBT):
            return Finding(
                "inconclusive",
                f"a deviation of {settings.tau:g} is excluded, but log e {evidence.log_e:.1f} speaks of a smaller one: "
                "more tokens have to tell",
            )
        if not missing:
            return Finding(
                "equivalent",
                f"a deviation of {settings.tau:g} per token or more is excluded in every direction"
                + self._few_drafts(),
            )
        places = [f"{bound:g} for {name}" for name, bound in missing]
        so_far = evidence.deviations.smallest_bound(settings.alpha)
        seen = f"excluded so far over all tokens: {so_far:g}" if so_far else "no tracked bound is excluded yet"
        reason = f"no deviation was shown, and not yet excluded is {', '.join(places)}; {seen}"
        return Finding("inconclusive", reason, needed)

    def _few_drafts(self) -> str:
        """A warning where so little was drafted that the certificate says next to nothing about drafts."""
        parts = self.arms["speculation"].ledger.evidence.parts
        num_placed = sum(part.num_tokens for part in parts.values())
        num_drafted = sum(part.num_tokens for name, part in parts.items() if name in DRAFTED)
        if num_drafted >= num_placed * FULL_SHARE:
            return ""
        return f"; only {num_drafted:,} of {num_placed:,} tokens had a draft, so it says little about drafts"

    def _reported_fault(self) -> str | None:
        """What the reported log-probabilities show: speculation on against off, and off against rounding."""
        speculative, plain = self.arms["speculation"].reported, self.arms["plain"].reported
        mean, largest = self.settings.logprob_noise
        if found := plain.fault(mean, largest):
            return f"plain: {found}"
        arms = [("speculation", speculative)] + ([("greedy", self.greedy.reported)] if self.greedy else [])
        for name, reported in arms:
            if found := reported.fault(max(mean, plain.mean), max(largest, plain.largest[0])):
                return f"{name}: {found}"
        return None

    def _round(self, arm_name: str, count: int) -> None:
        is_speculative = arm_name == "speculation"
        requests, indices = [], []
        for _ in range(count):
            turn, index = divmod(self._next_prompt, len(self.prompts))
            params = replace(self.settings.params, seed=self._next_seed, logprobs=True)
            request_id = f"verify-{arm_name}-{self._next_seed}"
            # By turn too, or a number of prompts that SHORT_SHARE divides would give the same prompts every time.
            is_short = is_speculative and self.settings.varies_draft_len and (turn + index) % SHORT_SHARE == 0
            requests.append(
                Request(request_id, self.prompts[index].input_ids, params, is_speculative, 1 if is_short else None)
            )
            indices.append(index)
            self._next_seed += 1
            self._next_prompt += 1
        started = time.monotonic()
        answers = self.serve(requests)
        middle = time.monotonic()
        arm = self.arms[arm_name]
        served, broken = scorable(map(_served, requests, answers, indices), self.vocabulary)
        arm.violations += broken
        arm.take(arm.ledger.add(served), [answer.completion for answer in answers])
        self.serving_seconds += middle - started
        self.scoring_seconds += time.monotonic() - middle

    def _check_greedy(self, advance: Advance, max_tokens: int = _GREEDY_TOKENS) -> None:
        """Serves every prompt once at temperature 0 with speculation, and judges the tokens."""
        advance(0.0, "greedy outputs")
        max_tokens = min(max_tokens, self.settings.params.max_tokens)
        min_tokens = min(max_tokens, self.settings.params.min_tokens)
        params = replace(
            self.settings.params, temperature=0.0, max_tokens=max_tokens, min_tokens=min_tokens, logprobs=True
        )
        requests = [Request(f"verify-greedy-{i}", p.input_ids, params) for i, p in enumerate(self.prompts)]
        served, violations = scorable(
            map(_served, requests, self.serve(requests), range(len(requests))), self.vocabulary
        )
        logits = self.scorer.logits(served) if served else []
        self.greedy = check_greedy(served, logits, self.vocabulary, self.settings.greedy_tolerance, violations)

    def _part_done(self, fresh: int) -> float:
        """Of the budget, or of the way to a certificate where that is nearer."""
        evidence, settings = self.arms["speculation"].ledger.evidence, self.settings
        needed = evidence.num_tokens_needed(settings.alpha)
        return min(1.0, max(fresh / settings.max_tokens, evidence.num_tokens / needed if needed else 0.0))

    def _progress(self) -> str:
        arms = (self.arms["speculation"], self.arms["plain"])
        evidence, plain = (arm.ledger.evidence for arm in arms)
        limit = -np.log(self.settings.arm_alpha)
        bound = evidence.deviations.smallest_bound(self.settings.alpha)
        needed = evidence.num_tokens_needed(self.settings.alpha)
        return (
            f"{evidence.num_tokens:,} tokens{f' of {needed:,}' if needed else ''} · log e {evidence.log_e:.1f}, "
            f"plain {plain.log_e:.1f}, limit {limit:.1f} · excluded > {f'{bound:g}' if bound else '-'}"
        )

    def as_dict(self, finding: Finding) -> dict[str, Any]:
        """JSON-ready: verdict, evidence of both arms, and a counter-example where they differ."""
        settings = self.settings
        found: dict[str, Any] = {
            "verdict": finding.verdict,
            "reason": finding.reason,
            "tau": settings.tau,
            "alpha": settings.alpha,
            "tolerance": settings.tolerance,
            "log_e_limit": float(-np.log(settings.arm_alpha)),
            "num_tokens_needed": finding.num_tokens_needed,
            "reference": self.scorer.name,
            "excluded_above": self.arms["speculation"].ledger.evidence.deviations.smallest_bound(settings.alpha),
            "sampling": {k: v for k, v in vars(settings.params).items() if k != "seed"},
            "prompts": [{"label": p.label, "num_tokens": len(p.input_ids)} for p in self.prompts],
            "arms": {name: arm.as_dict(settings.alpha) for name, arm in self.arms.items()},
            "greedy": self.greedy.as_dict() if self.greedy else None,
            "seconds": {"serving": round(self.serving_seconds, 2), "scoring": round(self.scoring_seconds, 2)},
        }
        if finding.verdict == "different":
            culprit = self.arms["plain" if "off deviates" in finding.reason else "speculation"]
            found["counter_example"] = {"frequencies": culprit.frequencies(), "tokens": culprit.suspects()}
        return found


def _served(request: Request, answer: Answer, prompt_index: int) -> Served:
    return Served(
        request.input_ids,
        tuple(answer.token_ids),
        request.params,
        prompt_index,
        tuple(answer.logprobs or ()),
        tuple(answer.token_origins),
        answer.completion.finish_reason,
    )
