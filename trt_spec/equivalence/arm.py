"""One way of serving under test, and what was seen of it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trt_spec.equivalence.ledger import Ledger, Scored
from trt_spec.equivalence.reference.reported import Reported
from trt_spec.equivalence.statistics.evidence import Evidence
from trt_spec.equivalence.statistics.sequential import LAMBDAS
from trt_spec.runtime.request import Completion

_NUM_SUSPECTS = 12
_NUM_PATH_POINTS = 400
_NUM_VIOLATIONS = 10
_DEPTH = 3  # outputs of one prompt share contexts this far, so tokens can be counted against their law there
_MIN_SAMPLES = 10  # below, a frequency says little
_BET = LAMBDAS.index(0.4)


@dataclass
class Profile:
    """What drafts gave: `num_accepted_per_pos[i]` counts drafts whose token i stood."""

    num_requests: int = 0
    num_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_per_pos: list[int] = field(default_factory=list)

    def add(self, completion: Completion) -> None:
        self.num_requests += 1
        self.num_tokens += completion.num_output_tokens
        self.num_drafts += completion.num_drafts or 0
        self.num_draft_tokens += completion.total_draft_tokens or 0
        self.num_accepted_tokens += completion.total_accepted_draft_tokens or 0
        for position, count in enumerate(completion.accepted_per_position or ()):
            self.num_accepted_per_pos += [0] * (position + 1 - len(self.num_accepted_per_pos))
            self.num_accepted_per_pos[position] += count

    def as_dict(self) -> dict[str, Any]:
        drafts, drafted = self.num_drafts, self.num_draft_tokens
        return {
            **self.__dict__,
            "acceptance_rate": self.num_accepted_tokens / drafted if drafted else None,
            "mean_acceptance_length": 1 + self.num_accepted_tokens / drafts if drafts else None,
            "rate_per_pos": [count / drafts for count in self.num_accepted_per_pos] if drafts else [],
        }


@dataclass
class Arm:
    """Evidence of one arm, with what the report shows of it.

    Attributes:
        path: (tokens, log e, log e of the directed bets, log e of the omnibus) after each output.
        violations: what no law allows: (prompt, words).
    """

    name: str
    ledger: Ledger
    profile: Profile = field(default_factory=Profile)
    path: list[tuple[int, float, float, float]] = field(default_factory=list)
    violations: list[tuple[int, str]] = field(default_factory=list)
    num_earlier_tokens: int = 0
    reported: Reported = field(default_factory=Reported)
    _prompts: dict[int, list[float]] = field(default_factory=dict)
    _contexts: dict[tuple[int, tuple[int, ...]], Counter] = field(default_factory=dict)
    _laws: dict[tuple[int, tuple[int, ...]], dict[int, float]] = field(default_factory=dict)
    _suspects: list[tuple[float, int, int, int, float, str]] = field(default_factory=list)

    def take(self, found: Sequence[Scored], completions: Sequence[Completion]) -> None:
        """Takes in what the ledger made of a round of outputs."""
        for completion in completions:
            self.profile.add(completion)
        names = self.ledger.evidence.alternatives
        for item in found:
            served, positions = item.served, item.positions
            self.reported.add(served, item.logprob_errors)
            if item.violation:
                self.violations.append((served.prompt_index, item.violation))
            probs = positions.served_probs
            with np.errstate(divide="ignore", invalid="ignore"):
                surprises = -np.log(np.maximum(positions.target_probs, 1e-300))
                entropy = (positions.target_probs * surprises).sum(-1)
                variance = (positions.target_probs * (surprises - entropy[:, None]) ** 2).sum(-1)
            sums = self._prompts.setdefault(served.prompt_index, [0, 0.0, 0.0, 0.0])
            sums[0] += len(positions)
            sums[1] += float(-np.log(np.maximum(probs, 1e-300)).sum())
            sums[2] += float(entropy.sum())
            sums[3] += float(variance.sum())
            self._count(item, probs)
            gains = item.directed[:, :, _BET]
            for position in np.argsort(-gains.max(-1))[:2]:
                bet = int(gains[position].argmax())
                suspect = (
                    float(gains[position, bet]),
                    served.prompt_index,
                    int(position),
                    int(served.output_ids[position]),
                    float(probs[position]),
                    names[bet],
                )
                push = heapq.heappush if len(self._suspects) < _NUM_SUSPECTS else heapq.heappushpop
                push(self._suspects, suspect)
        evidence = self.ledger.evidence
        self.path.append((evidence.num_tokens, evidence.log_e, evidence.log_e_directed, evidence.log_e_omnibus))
        if len(self.path) > _NUM_PATH_POINTS:
            self.path = self.path[:-1:2] + self.path[-1:]

    def kept(self) -> dict[str, Any]:
        """JSON-ready: what later runs go on from. A broken contract stays broken."""
        return {
            "evidence": self.ledger.evidence.as_dict(),
            "reported": self.reported.kept(),
            "violations": self.violations[:_NUM_VIOLATIONS],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Goes on from `kept` of an earlier run of the same thing."""
        self.ledger.evidence = Evidence.from_dict(saved["evidence"])
        self.reported = Reported.of(saved["reported"])
        self.violations = [(prompt, what) for prompt, what in saved["violations"]]
        self.num_earlier_tokens = self.ledger.evidence.num_tokens

    def _count(self, item: Scored, probs: np.ndarray) -> None:
        output = item.served.output_ids
        for position in range(min(_DEPTH, len(output))):
            key = (item.served.prompt_index, output[:position])
            self._contexts.setdefault(key, Counter())[output[position]] += 1
            self._laws.setdefault(key, {})[output[position]] = float(probs[position])

    def per_prompt(self) -> list[dict[str, Any]]:
        """Per prompt: tokens, mean surprise −log p and its expectation, nats, and how many deviations they differ."""
        rows = []
        for index, (count, surprise, entropy, variance) in sorted(self._prompts.items()):
            z = (surprise - entropy) / variance**0.5 if variance > 0 else 0.0
            rows.append(
                {
                    "prompt": index,
                    "num_tokens": int(count),
                    "surprise": surprise / count,
                    "expected": entropy / count,
                    "z": z,
                }
            )
        return rows

    def frequencies(self, limit: int = 5) -> list[dict[str, Any]]:
        """Tokens whose frequency in a repeated context is furthest from their probability, in deviations.

        Where no context came often enough, the tokens that carry most evidence, each served once in its context.
        """
        rows = []
        for (prompt, prefix), counts in self._contexts.items():
            total = sum(counts.values())
            for token, count in counts.items():
                p = self._laws[prompt, prefix][token]
                deviation = max(total * p * (1 - p), 0.25) ** 0.5
                rows.append(
                    {
                        "prompt": prompt,
                        "prefix": list(prefix),
                        "position": len(prefix),
                        "token": token,
                        "target_probability": p,
                        "served_frequency": count / total,
                        "num_samples": total,
                        "z": (count - total * p) / deviation,
                    }
                )
        often = [row for row in rows if row["num_samples"] >= _MIN_SAMPLES]
        return sorted(often, key=lambda row: -abs(row["z"]))[:limit] or self._served_once()[:limit]

    def _served_once(self) -> list[dict[str, Any]]:
        keys = ("prompt", "position", "token", "target_probability")
        return [
            {key: row[key] for key in keys} | {"served_frequency": 1.0, "num_samples": 1} for row in self.suspects()
        ]

    def suspects(self) -> list[dict[str, Any]]:
        """Single tokens that a bet gained most on."""
        keys = ("gain_nats", "prompt", "position", "token", "target_probability", "bet")
        return [dict(zip(keys, item, strict=True)) for item in sorted(self._suspects, reverse=True)]

    def as_dict(self, alpha: float) -> dict[str, Any]:
        """JSON-ready."""
        evidence = self.ledger.evidence
        best = evidence.log_directed.max(-1)
        bets = [{"bet": name, "log_e": float(best[i])} for i, name in enumerate(evidence.alternatives)]
        bets += [
            {"bet": f"omnibus by {name}", "log_e": float(evidence.log_omnibus[i])}
            for i, name in enumerate(evidence.orderings)
        ]
        return {
            "num_tokens": evidence.num_tokens,
            "num_earlier_tokens": self.num_earlier_tokens,
            "log_e": evidence.log_e,
            "log_e_peak": evidence.peak,
            "path": [list(point) for point in self.path],
            "bets": sorted(bets, key=lambda row: -row["log_e"]),
            "histogram": dict(zip(evidence.orderings, evidence.counts.tolist(), strict=True)),
            "deviations": evidence.deviations.table(alpha) if evidence.deviations.num_tokens else [],
            "violations": [{"prompt": prompt, "what": what} for prompt, what in self.violations[:_NUM_VIOLATIONS]],
            "profile": self.profile.as_dict(),
            "roles": self._roles(alpha),
            "reported_logprobs": self.reported.as_dict() if self.reported.counts[0] else None,
            "per_prompt": self.per_prompt(),
        }

    def _roles(self, alpha: float) -> list[dict[str, Any]]:
        """Per role: its tokens, its log e, the bound that is excluded, and the one that has to be (None: too rare)."""
        evidence = self.ledger.evidence
        demanded = {name: bound for name, _, bound in evidence.demands()}
        return [
            {
                "role": name,
                "num_tokens": part.num_tokens,
                "log_e": part.log_e,
                "excluded_above": part.deviations.smallest_bound(alpha),
                "demanded": demanded.get(name),
            }
            for name, part in evidence.parts.items()
        ]
