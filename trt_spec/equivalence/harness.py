"""Serve, score, decide: rounds of requests until the verdict is certain or the budget is spent.

Both arms go to the same server with the same prompts and seeds of their own: speculation on, and off (the A/A arm,
which shows whether the reference describes this engine at all).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trt_spec.clients.client import Ask, Client, Params
from trt_spec.clients.prompts import Prompt
from trt_spec.equivalence.arm import Arm
from trt_spec.equivalence.certificate import CounterExample, Judged, PromptSize, Seconds
from trt_spec.equivalence.greedy import GreedyFindings, check_greedy
from trt_spec.equivalence.ledger import Ledger, new_evidence, scorable
from trt_spec.equivalence.reference.scoring import Scorer, Served, Vocabulary
from trt_spec.equivalence.settings import Settings
from trt_spec.equivalence.verdict import Finding, judge, judge_greedy

PLAIN_SHARE = 4  # one plain output for so many speculative ones
SHORT_SHARE = 4  # one with drafts of one token in so many speculative ones
_GREEDY_TOKENS = 40
Advance = Callable[[float | None, str], None]


@dataclass
class Harness:
    """One run of the equivalence check.

    Attributes:
        prompts: with their ids.
        client: who is judged. scorer: the reference. draft_scorer: the draft model, where bets may use it.
        next_seed: the first one that has not been used.
    """

    settings: Settings
    prompts: Sequence[Prompt]
    client: Client
    scorer: Scorer
    vocabulary: Vocabulary
    draft_scorer: Scorer | None = None
    greedy: GreedyFindings | None = None
    serving_seconds: float = 0.0
    scoring_seconds: float = 0.0
    arms: dict[str, Arm] = field(default_factory=dict)
    next_seed: int = 0
    _next_prompt: int = 0

    def __post_init__(self) -> None:
        self.next_seed = self.settings.first_seed
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

    def run_greedy(self, advance: Advance = lambda part, text: None) -> Finding:
        """Judges greedy outputs alone, for engines that serve nothing else."""
        self._check_greedy(advance, self.settings.params.max_tokens)
        finding = self.judge()
        return finding if finding.verdict == "different" else judge_greedy(self.greedy)

    def run(self, advance: Advance = lambda part, text: None) -> Finding:
        """Runs until the verdict is certain or the budget is spent."""
        started = time.monotonic()
        settings, fresh = self.settings, 0
        self._check_greedy(advance)
        while True:
            before = self.arms["speculation"].evidence.num_tokens
            self._round("speculation", settings.batch_size)
            self._round("plain", max(1, settings.batch_size // PLAIN_SHARE))
            fresh += self.arms["speculation"].evidence.num_tokens - before
            finding = self.judge()
            advance(self._part_done(fresh), self._progress())
            seconds = time.monotonic() - started
            is_over = fresh >= settings.max_tokens or (settings.max_seconds or seconds) < seconds
            if finding.verdict != "inconclusive" or is_over:
                return finding

    def judge(self) -> Finding:
        """The verdict on what has been seen so far."""
        return judge(self.settings, self.arms, self.greedy)

    def _round(self, arm_name: str, count: int) -> None:
        is_speculative = arm_name == "speculation"
        asks, indices = [], []
        for _ in range(count):
            turn, index = divmod(self._next_prompt, len(self.prompts))
            params = replace(self.settings.params, seed=self.next_seed, logprobs=True)
            # By turn too, or a number of prompts that SHORT_SHARE divides would give the same prompts every time.
            is_short = is_speculative and self.settings.varies_draft_len and (turn + index) % SHORT_SHARE == 0
            asked = Params(params, is_speculative, 1 if is_short else None)
            asks.append(Ask(self.prompts[index], asked, f"verify-{arm_name}-{self.next_seed}"))
            indices.append(index)
            self.next_seed += 1
            self._next_prompt += 1
        started = time.monotonic()
        traces = self.client.ask_all(asks)
        middle = time.monotonic()
        arm = self.arms[arm_name]
        served, broken = scorable(map(Served.of, asks, traces, indices), self.vocabulary)
        arm.violations += broken
        arm.take(arm.ledger.add(served), traces)
        self.serving_seconds += middle - started
        self.scoring_seconds += time.monotonic() - middle

    def _check_greedy(self, advance: Advance, max_tokens: int = _GREEDY_TOKENS) -> None:
        """Serves every prompt once at temperature 0 with speculation, and judges the tokens."""
        advance(0.0, "greedy outputs")
        params = self.settings.params
        max_tokens = min(max_tokens, params.max_tokens)
        min_tokens = min(max_tokens, params.min_tokens)
        params = replace(params, temperature=0.0, max_tokens=max_tokens, min_tokens=min_tokens, logprobs=True)
        asks = [Ask(prompt, Params(params), f"verify-greedy-{i}") for i, prompt in enumerate(self.prompts)]
        served, violations = scorable(
            map(Served.of, asks, self.client.ask_all(asks), range(len(asks))), self.vocabulary
        )
        logits = self.scorer.logits(served) if served else []
        self.greedy = check_greedy(served, logits, self.vocabulary, self.settings.greedy_tolerance, violations)

    def _part_done(self, fresh: int) -> float:
        """Of the budget, or of the way to a certificate where that is nearer."""
        evidence, settings = self.arms["speculation"].evidence, self.settings
        needed = evidence.num_tokens_needed(settings.alpha)
        return min(1.0, max(fresh / settings.max_tokens, evidence.num_tokens / needed if needed else 0.0))

    def _progress(self) -> str:
        evidence, plain = self.arms["speculation"].evidence, self.arms["plain"].evidence
        limit = -np.log(self.settings.arm_alpha)
        bound = evidence.deviations.smallest_bound(self.settings.alpha)
        needed = evidence.num_tokens_needed(self.settings.alpha)
        return (
            f"{evidence.num_tokens:,} tokens{f' of {needed:,}' if needed else ''} · log e {evidence.log_e:.1f}, "
            f"plain {plain.log_e:.1f}, limit {limit:.1f} · excluded > {f'{bound:g}' if bound else '-'}"
        )

    def certificate(self, finding: Finding, decode: Callable[[list[int]], str] | None, **origin: Any) -> Judged:
        """The finding with the evidence of both arms, and a counter-example where they differ.

        Args:
            decode: ids to text, for counter-examples; None leaves texts out.
            origin: the fields of `Certificate` that are not of the finding.
        """
        settings = self.settings
        greedy = self.greedy and self.greedy.summary()
        if greedy and decode:
            named = [
                replace(fault, text=decode([fault.token]), best_text=decode([fault.best_token]))
                for fault in greedy.faults
            ]
            greedy = replace(greedy, faults=named)
        return Judged(
            **origin,
            **vars(finding),
            tau=settings.tau,
            alpha=settings.alpha,
            tolerance=settings.tolerance,
            log_e_limit=float(-np.log(settings.arm_alpha)),
            reference=self.scorer.name,
            excluded_above=self.arms["speculation"].evidence.deviations.smallest_bound(settings.alpha),
            sampling={name: value for name, value in vars(settings.params).items() if name != "seed"},
            prompts=[PromptSize(prompt.name, len(prompt.input_ids)) for prompt in self.prompts],
            arms={name: arm.summary(settings.alpha) for name, arm in self.arms.items()},
            greedy=greedy,
            seconds=Seconds(round(self.serving_seconds, 2), round(self.scoring_seconds, 2)),
            counter_example=self._counter_example(finding, decode) if finding.verdict == "different" else None,
        )

    def _counter_example(self, finding: Finding, decode: Callable[[list[int]], str] | None) -> CounterExample:
        """Of the arm that gave it away."""
        arm = self.arms.get(finding.arm, self.arms["speculation"])
        frequencies, tokens = arm.frequencies(), arm.suspects()
        if decode:
            frequencies, tokens = (
                [replace(row, text=decode([row.token]), prompt_text=self.prompts[row.prompt].name) for row in rows]
                for rows in (frequencies, tokens)
            )
        return CounterExample(frequencies, tokens)
