"""Serve, score, decide: rounds of requests until the verdict is certain or the budget is spent.

Both arms go to the same server with the same prompts and seeds of their own: speculation on, and off (the A/A arm,
which shows whether the reference describes this engine at all).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from trt_spec.equivalence.arm import Arm
from trt_spec.equivalence.greedy import GreedyFindings, check_greedy
from trt_spec.equivalence.ledger import Ledger, new_evidence
from trt_spec.equivalence.scoring import Scorer, Served, Vocabulary
from trt_spec.runtime.request import Completion, Request, SamplingParams

VerdictName = Literal["equivalent", "different", "inconclusive", "lossy by configuration"]
PLAIN_SHARE = 4  # one plain output for so many speculative ones
SHORT_SHARE = 4  # one with drafts of one token in so many speculative ones
_GREEDY_TOKENS = 40
Advance = Callable[[float | None, str], None]


class Answer(Protocol):
    """What a server gives back for one request."""

    token_ids: list[int]
    logprobs: list[float] | None
    token_origins: list[int]
    completion: Completion


Serve = Callable[[Sequence[Request]], Sequence[Answer]]


@dataclass(frozen=True)
class Prompt:
    """One prompt, and its name in the report."""

    label: str
    input_ids: tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """What is to be shown and what it may cost.

    Attributes:
        params: of every request but its seed; temperature > 0.
        tau, alpha, tolerance: see `sequential` and `deviation`.
        max_tokens: speculative tokens of this run, at most. max_seconds: of this run; None for any.
        batch_size: requests of one round.
        greedy_tolerance: largest gap of a tie, logits.
        logprob_noise: mean and largest change of a token's log-probability by rounding, nats.
        has_roles: keep evidence per role; for acceptance rules that judge token by token.
        varies_draft_len: every fourth request drafts one token a step, so that bonus tokens, which follow a draft that
            was accepted to its end, are not too rare to be judged.
        first_seed: seeds count up from here.
    """

    params: SamplingParams
    tau: float
    alpha: float
    tolerance: float
    max_tokens: int
    max_seconds: float | None = None
    batch_size: int = 16
    greedy_tolerance: float = 1e-4
    logprob_noise: tuple[float, float] = (0.0, 0.0)
    has_roles: bool = True
    varies_draft_len: bool = False
    first_seed: int = 1

    @property
    def arm_alpha(self) -> float:
        """Chance of a false alarm that each of the two arms may use up."""
        return self.alpha / 2


@dataclass
class Finding:
    """What a run found.

    Attributes:
        verdict: see docs/equivalence.md.
        reason: one sentence.
        num_tokens_needed: speculative tokens in all until a certificate, as it looks now; None where unknown.
    """

    verdict: VerdictName
    reason: str
    num_tokens_needed: int | None = None


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
        self._check_greedy(advance)
        finding = self.judge()
        if finding.verdict == "different":
            return finding
        return Finding("equivalent", f"all {self.greedy.num_tokens} greedy tokens are the target's best or tie with it")

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
        if self.greedy is not None and not self.greedy.is_right:
            fault = self.greedy.faults[0]
            return Finding(
                "different",
                f"greedy output has {len(self.greedy.faults)} tokens below the best one by more than a tie; the first "
                f"by {fault.gap:.3g} logits",
            )
        for arm in (speculative, plain):
            if arm.violations:
                return Finding("different", f"{arm.name}: {arm.violations[0][1]}")
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
        if evidence.is_certified(settings.alpha):
            return Finding(
                "equivalent", f"a deviation of {settings.tau:g} per token or more is excluded in every direction"
            )
        so_far = evidence.deviations.smallest_bound(settings.alpha)
        seen = f"excluded so far: {so_far:g}" if so_far else "no tracked bound is excluded yet"
        return Finding("inconclusive", f"neither a deviation was shown nor {settings.tau:g} excluded; {seen}", needed)

    def _reported_fault(self) -> str | None:
        """What the reported log-probabilities show: speculation on against off, and off against rounding."""
        speculative, plain = self.arms["speculation"].reported, self.arms["plain"].reported
        mean, largest = self.settings.logprob_noise
        if found := plain.fault(mean, largest):
            return f"plain: {found}"
        found = speculative.fault(max(mean, plain.mean), max(largest, plain.largest[0]))
        return f"speculation: {found}" if found else None

    def _round(self, arm_name: str, count: int) -> None:
        is_speculative = arm_name == "speculation"
        requests, indices = [], []
        for _ in range(count):
            index = self._next_prompt % len(self.prompts)
            params = replace(self.settings.params, seed=self._next_seed, logprobs=True)
            request_id = f"verify-{arm_name}-{self._next_seed}"
            is_short = is_speculative and self.settings.varies_draft_len and self._next_seed % SHORT_SHARE == 0
            requests.append(
                Request(request_id, self.prompts[index].input_ids, params, is_speculative, 1 if is_short else None)
            )
            indices.append(index)
            self._next_seed += 1
            self._next_prompt += 1
        started = time.monotonic()
        answers = self.serve(requests)
        middle = time.monotonic()
        served = [
            Served(
                request.input_ids,
                tuple(answer.token_ids),
                request.params,
                index,
                tuple(answer.logprobs or ()),
                tuple(answer.token_origins),
            )
            for request, answer, index in zip(requests, answers, indices, strict=True)
        ]
        arm = self.arms[arm_name]
        arm.take(arm.ledger.add(served), [answer.completion for answer in answers])
        self.serving_seconds += middle - started
        self.scoring_seconds += time.monotonic() - middle

    def _check_greedy(self, advance: Advance) -> None:
        """Serves every prompt once at temperature 0 with speculation, and judges the tokens."""
        advance(0.0, "greedy outputs")
        params = replace(
            self.settings.params, temperature=0.0, max_tokens=min(_GREEDY_TOKENS, self.settings.params.max_tokens)
        )
        requests = [Request(f"verify-greedy-{i}", p.input_ids, params) for i, p in enumerate(self.prompts)]
        answers = self.serve(requests)
        served = [
            Served(request.input_ids, tuple(answer.token_ids), params, index)
            for index, (request, answer) in enumerate(zip(requests, answers, strict=True))
            if answer.token_ids
        ]
        logits = self.scorer.logits(served)
        self.greedy = check_greedy(served, logits, self.vocabulary, self.settings.greedy_tolerance)

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
