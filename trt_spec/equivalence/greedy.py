"""Greedy outputs: every served token is the target's best one, or ties with it.

String equality would call a rounding of the last bit a fault, and would not see a wrong token that both arms serve.
Here the served tokens are teacher-forced through the reference, so what follows a tie is still judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from trt_spec.equivalence.ledger import violation
from trt_spec.equivalence.reference.reported import Reported, errors
from trt_spec.equivalence.reference.scoring import Served, Vocabulary, processed
from trt_spec.equivalence.roles import ROLES, roles_of

MIN_TOLERANCE = 1e-4  # logits; what two orders of one float32 sum leave
NOISE_FACTOR = 2.0  # of the largest change of a gap between two shapes of one forward, seen on about a hundred rows


@dataclass(frozen=True)
class GreedyFault:
    """A served token that is not the best one by more than the tolerance."""

    prompt_index: int
    position: int
    token: int
    best_token: int
    gap: float


@dataclass(frozen=True)
class GreedyFindings:
    """What greedy outputs showed.

    Attributes:
        num_ties: tokens that are not the argmax and within the tolerance of it.
        largest_tie: the largest gap among them, logits.
        violations: (prompt index, what no law allows).
        places: tokens by their place in a step, see `roles`; none where the server does not tell.
        reported: the log-probabilities that the server reported beside the reference's.
    """

    num_tokens: int
    num_ties: int
    largest_tie: float
    tolerance: float
    faults: list[GreedyFault]
    violations: list[tuple[int, str]] = field(default_factory=list)
    reported: Reported = field(default_factory=Reported)
    places: dict[str, int] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        return not self.faults and not self.violations

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "num_tokens": self.num_tokens,
            "num_ties": self.num_ties,
            "largest_tie": self.largest_tie,
            "tolerance": self.tolerance,
            "places": self.places,
            "faults": [asdict(fault) for fault in self.faults],
            "violations": [{"prompt": prompt, "what": what} for prompt, what in self.violations[:10]],
            "reported_logprobs": self.reported.as_dict() if self.reported.counts[0] else None,
            "is_right": self.is_right,
        }


def check_greedy(
    outputs: Sequence[Served],
    logits: Sequence[Tensor],
    vocabulary: Vocabulary,
    tolerance: float,
    violations: Sequence[tuple[int, str]] = (),
) -> GreedyFindings:
    """Judges outputs that were served at temperature 0.

    Args:
        logits: raw logits [n, V] of the reference per output.
        tolerance: largest gap, in logits, of two tokens that may change places.
        violations: of outputs that have no law, see `ledger.scorable`.
    """
    num_tokens, ties, faults = 0, [], []
    broken, reported = list(violations), Reported()
    places = dict.fromkeys(ROLES, 0) if any(served.token_origins for served in outputs) else {}
    for served, raw in zip(outputs, logits, strict=True):
        rows = processed(raw, served, vocabulary)
        best, best_tokens = rows.max(-1)
        gaps = (best - rows[range(len(rows)), list(served.output_ids)]).tolist()
        num_tokens += len(gaps)
        reported.add(served, errors(served, raw))
        for role in roles_of(served.token_origins):
            places[ROLES[role]] += 1
        if what := violation(served, vocabulary):
            broken.append((served.prompt_index, what))
        for position, gap in enumerate(gaps):
            if gap > tolerance:
                token, wanted = served.output_ids[position], int(best_tokens[position])
                faults.append(GreedyFault(served.prompt_index, position, token, wanted, gap))
            elif gap > 0:
                ties.append(gap)
    return GreedyFindings(num_tokens, len(ties), max(ties, default=0.0), tolerance, faults, broken, reported, places)
