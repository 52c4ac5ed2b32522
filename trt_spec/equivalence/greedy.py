"""Greedy outputs: every served token is the target's best one, or ties with it.

String equality would call a rounding of the last bit a fault, and would not see a wrong token that both arms serve.
Here the served tokens are teacher-forced through the reference, so what follows a tie is still judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from trt_spec.equivalence.certificate import Greedy, GreedyFault, Violation
from trt_spec.equivalence.ledger import violation
from trt_spec.equivalence.reference.reported import Reported, errors
from trt_spec.equivalence.reference.scoring import Served, Vocabulary, processed
from trt_spec.equivalence.roles import ROLES, roles_of

MIN_TOLERANCE = 1e-4  # logits; what two orders of one float32 sum leave
NOISE_FACTOR = 2.0  # of the largest change of a gap between two shapes of one forward, seen on about a hundred rows


@dataclass
class GreedyFindings:
    """What greedy outputs showed; attributes as of `Greedy`.

    Attributes:
        reported: the log-probabilities that the server reported beside the reference's.
    """

    tolerance: float
    places: dict[str, int]
    num_tokens: int = 0
    num_ties: int = 0
    largest_tie: float = 0.0
    faults: list[GreedyFault] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    reported: Reported = field(default_factory=Reported)

    @property
    def is_right(self) -> bool:
        return not self.faults and not self.violations

    def summary(self) -> Greedy:
        """For the certificate."""
        return Greedy(
            self.num_tokens,
            self.num_ties,
            self.largest_tie,
            self.tolerance,
            self.places,
            self.faults,
            self.violations[:10],
            self.reported.summary(),
            self.is_right,
        )


def check_greedy(
    outputs: Sequence[Served],
    logits: Sequence[Tensor],
    vocabulary: Vocabulary,
    tolerance: float,
    violations: Sequence[Violation] = (),
) -> GreedyFindings:
    """Judges outputs that were served at temperature 0.

    Args:
        logits: raw logits [n, V] of the reference per output.
        tolerance: largest gap, in logits, of two tokens that may change places.
        violations: of outputs that have no law, see `ledger.scorable`.
    """
    places = dict.fromkeys(ROLES, 0) if any(served.token_origins for served in outputs) else {}
    found = GreedyFindings(tolerance, places, violations=list(violations))
    for served, raw in zip(outputs, logits, strict=True):
        rows = processed(raw, served, vocabulary)
        best, best_tokens = rows.max(-1)
        gaps = (best - rows[range(len(rows)), list(served.output_ids)]).tolist()
        found.num_tokens += len(gaps)
        found.reported.add(served, errors(served, raw))
        for role in roles_of(served.token_origins):
            places[ROLES[role]] += 1
        if what := violation(served, vocabulary):
            found.violations.append(Violation(served.prompt_index, what))
        for position, gap in enumerate(gaps):
            if gap > tolerance:
                token, wanted = served.output_ids[position], int(best_tokens[position])
                found.faults.append(GreedyFault(served.prompt_index, position, token, wanted, gap))
            elif gap > 0:
                found.num_ties += 1
                found.largest_tie = max(found.largest_tie, gap)
    return found
