"""One way of serving under test, and what was seen of it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from trt_spec.clients.trace import Trace
from trt_spec.equivalence.certificate import ArmSummary, Bet, Frequency, Profile, Role, Surprise, Suspect, Violation
from trt_spec.equivalence.ledger import Ledger, Scored
from trt_spec.equivalence.reference.reported import Reported
from trt_spec.equivalence.statistics.evidence import Evidence
from trt_spec.equivalence.statistics.sequential import LAMBDAS
from trt_spec.runtime.stats import DraftCounts

NUM_VIOLATIONS = 10  # that are told
_NUM_SUSPECTS = 12
_NUM_PATH_POINTS = 400
_DEPTH = 3  # outputs of one prompt share contexts this far, so tokens can be counted against their probability there
_MIN_SAMPLES = 10  # below, a frequency says little
_BET = LAMBDAS.index(0.4)


@dataclass
class Arm:
    """Evidence of one arm, with what the report shows of it.

    Attributes:
        drafts: what drafts gave, as far as the server tells.
        path: (tokens, log e, log e of the directed bets, log e of the omnibus) after each round.
        violations: what no law allows.
    """

    name: str
    ledger: Ledger
    num_requests: int = 0
    num_served_tokens: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    path: list[tuple[int, float, float, float]] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    num_earlier_tokens: int = 0
    reported: Reported = field(default_factory=Reported)
    _prompts: dict[int, np.ndarray] = field(default_factory=dict)  # tokens, surprise, its expectation and variance
    _contexts: dict[tuple[int, tuple[int, ...]], Counter] = field(default_factory=dict)
    _probs: dict[tuple[int, tuple[int, ...]], dict[int, float]] = field(default_factory=dict)
    _suspects: list[Suspect] = field(default_factory=list)

    @property
    def evidence(self) -> Evidence:
        return self.ledger.evidence

    def take(self, found: Sequence[Scored], traces: Sequence[Trace]) -> None:
        """Takes in what the ledger made of a round of outputs."""
        self.num_requests += len(traces)
        for trace in traces:
            self.num_served_tokens += trace.num_output_tokens
            if trace.drafts is not None:
                self.drafts.add(trace.drafts)
        for item in found:
            self.reported.add(item.served, item.logprob_errors)
            if item.violation:
                self.violations.append(Violation(item.served.prompt_index, item.violation))
            self._add_surprise(item)
            self._count(item)
            self._add_suspects(item)
        evidence = self.evidence
        self.path.append((evidence.num_tokens, evidence.log_e, evidence.log_e_directed, evidence.log_e_omnibus))
        if len(self.path) > _NUM_PATH_POINTS:
            self.path = self.path[:-1:2] + self.path[-1:]

    def _add_surprise(self, item: Scored) -> None:
        probs = item.positions.target_probs
        surprises = -np.log(np.maximum(probs, 1e-300))
        entropy = (probs * surprises).sum(-1)
        variance = (probs * (surprises - entropy[:, None]) ** 2).sum(-1)
        surprise = -np.log(np.maximum(item.positions.served_probs, 1e-300)).sum()
        sums = self._prompts.setdefault(item.served.prompt_index, np.zeros(4))
        sums += (len(item.positions), surprise, entropy.sum(), variance.sum())

    def _count(self, item: Scored) -> None:
        output, probs = item.served.output_ids, item.positions.served_probs
        for position in range(min(_DEPTH, len(output))):
            key = (item.served.prompt_index, output[:position])
            self._contexts.setdefault(key, Counter())[output[position]] += 1
            self._probs.setdefault(key, {})[output[position]] = float(probs[position])

    def _add_suspects(self, item: Scored) -> None:
        served, probs, gains = item.served, item.positions.served_probs, item.directed[:, :, _BET]
        for position in np.argsort(-gains.max(-1))[:2]:
            bet = int(gains[position].argmax())
            suspect = Suspect(
                float(gains[position, bet]),
                served.prompt_index,
                int(position),
                int(served.output_ids[position]),
                float(probs[position]),
                self.evidence.alternatives[bet],
            )
            push = heapq.heappush if len(self._suspects) < _NUM_SUSPECTS else heapq.heappushpop
            push(self._suspects, suspect)

    # ---- keeping it ----

    def kept(self) -> dict[str, Any]:
        """JSON-ready: what later runs go on from. A broken contract stays broken."""
        return {
            "evidence": self.evidence.as_dict(),
            "reported": self.reported.kept(),
            "violations": [asdict(violation) for violation in self.violations[:NUM_VIOLATIONS]],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Goes on from `kept` of an earlier run of the same thing."""
        self.ledger.evidence = Evidence.from_dict(saved["evidence"])
        self.reported = Reported.of(saved["reported"])
        self.violations = [Violation(**violation) for violation in saved["violations"]]
        self.num_earlier_tokens = self.evidence.num_tokens

    # ---- what it says ----

    def frequencies(self, limit: int = 5) -> list[Frequency]:
        """Tokens whose frequency in a repeated context is furthest from their probability, in deviations.

        Where no context came often enough, the tokens that carry most evidence, each served once in its context.
        """
        rows = []
        for (prompt, prefix), counts in self._contexts.items():
            if (total := sum(counts.values())) < _MIN_SAMPLES:
                continue
            for token, count in counts.items():
                p = self._probs[prompt, prefix][token]
                z = (count - total * p) / max(total * p * (1 - p), 0.25) ** 0.5
                rows.append(Frequency(prompt, len(prefix), token, p, count / total, total, prefix, z))
        once = [Frequency(s.prompt, s.position, s.token, s.target_probability, 1.0, 1) for s in self.suspects()]
        return (sorted(rows, key=lambda row: -abs(row.z)) or once)[:limit]

    def suspects(self) -> list[Suspect]:
        """Single tokens that a bet gained most on."""
        return sorted(self._suspects, reverse=True)

    def summary(self, alpha: float) -> ArmSummary:
        """For the certificate."""
        evidence = self.evidence
        return ArmSummary(
            evidence.num_tokens,
            self.num_earlier_tokens,
            evidence.log_e,
            evidence.peak,
            self.path,
            [Bet(*bet) for bet in evidence.bets()],
            dict(zip(evidence.orderings, evidence.counts.tolist(), strict=True)),
            evidence.deviations.table(alpha) if evidence.deviations.num_tokens else [],
            self.violations[:NUM_VIOLATIONS],
            Profile.of(self.num_requests, self.num_served_tokens, self.drafts),
            self._roles(alpha),
            self.reported.summary(),
            [self._surprise(index) for index in sorted(self._prompts)],
        )

    def _surprise(self, prompt: int) -> Surprise:
        count, surprise, expected, variance = self._prompts[prompt].tolist()
        z = (surprise - expected) / variance**0.5 if variance > 0 else 0.0
        return Surprise(prompt, int(count), surprise / count, expected / count, z)

    def _roles(self, alpha: float) -> list[Role]:
        demanded = {name: bound for name, _, bound in self.evidence.demands()}
        return [
            Role(name, part.num_tokens, part.log_e, part.deviations.smallest_bound(alpha), demanded.get(name))
            for name, part in self.evidence.parts.items()
        ]
