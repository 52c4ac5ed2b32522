"""Log-probabilities that the server reports beside its tokens, against the reference's.

Tokens say little about small errors of a forward: thousands are needed where one reported number gives a wrong mask,
a stale cache row or a wrong position away. So every run asks for the target's log-probability of each token (raw
logits) and compares. Rounding decides how far two right forwards may be apart: the plain arm, served and scored in
the same way, shows that, and the noise that was measured between two shapes of one forward is the least that is
taken.

This is no statistical test and uses up none of α. It judges the forward, not the draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from trt_spec.equivalence.certificate import LogprobErrors
from trt_spec.equivalence.reference.scoring import Served
from trt_spec.equivalence.roles import ROLES, roles_of

MEAN_FACTOR, MAX_FACTOR = 3.0, 8.0  # of the scale of rounding, for the mean of a role and for one token
_MIN_TOKENS = 24  # of a role, before its mean is judged
_FLOOR = 1e-4  # nats; float32
_SUMS = ("counts", "sums", "largest")


def errors(served: Served, logits: Tensor, logsumexp: Tensor | None = None) -> np.ndarray:
    """|served − reference| [n] in nats; empty where the server reported nothing, or what `ledger.violation` refuses."""
    if len(served.logprobs) != len(served.output_ids) or not np.isfinite(served.logprobs).all():
        return np.zeros(0)
    rows, ids = range(len(served.output_ids)), list(served.output_ids)
    reference = logits[rows, ids] - (logits.logsumexp(-1) if logsumexp is None else logsumexp)
    return np.abs(np.array(served.logprobs) - reference.double().cpu().numpy())


@dataclass
class Reported:
    """Sums of one arm over all tokens and per role.

    Attributes:
        counts, sums, largest: [1 + roles], all tokens first.
        worst: (prompt index, position, token, error) of the largest error.
    """

    counts: np.ndarray = field(default_factory=lambda: np.zeros(1 + len(ROLES)))
    sums: np.ndarray = field(default_factory=lambda: np.zeros(1 + len(ROLES)))
    largest: np.ndarray = field(default_factory=lambda: np.zeros(1 + len(ROLES)))
    worst: tuple[int, int, int, float] | None = None

    def add(self, served: Served, found: np.ndarray) -> None:
        """Takes in the errors [n] of one output."""
        if not len(found):
            return
        members = [np.ones(len(found), dtype=bool)]
        if len(served.token_origins) == len(found):
            roles = roles_of(served.token_origins)
            members += [roles == index for index in range(len(ROLES))]
        for index, chosen in enumerate(members):
            self.counts[index] += chosen.sum()
            self.sums[index] += found[chosen].sum()
            self.largest[index] = max(self.largest[index], found[chosen].max(initial=0.0))
        position = int(found.argmax())
        if self.worst is None or found[position] > self.worst[3]:
            token = served.output_ids[position]
            self.worst = (served.prompt_index, position, token, float(found[position]))

    @property
    def mean(self) -> float:
        return float(self.sums[0] / self.counts[0]) if self.counts[0] else 0.0

    def fault(self, mean_noise: float, max_noise: float) -> str | None:
        """What is wrong, in words; None where all errors are rounding of this scale, nats."""
        mean_limit = max(_FLOOR, MEAN_FACTOR * mean_noise)
        max_limit = max(_FLOOR, MAX_FACTOR * max_noise)
        for index, name in enumerate(("all tokens", *ROLES)):
            if self.counts[index] >= _MIN_TOKENS and (mean := self.sums[index] / self.counts[index]) > mean_limit:
                return (
                    f"log-probabilities of {name} are off by {mean:.2g} nats on average, rounding by {mean_noise:.2g}"
                )
        if self.largest[0] > max_limit:
            prompt, position, _, error = self.worst
            return (
                f"the log-probability of token {position} of prompt {prompt} is off by {error:.2g} nats, "
                f"rounding by at most {max_noise:.2g}"
            )
        return None

    def kept(self) -> dict[str, Any]:
        """JSON-ready; `of` gives an equal one."""
        sums = {name: getattr(self, name).tolist() for name in _SUMS}
        return {**sums, "worst": self.worst}

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Reported:
        sums = (np.array(saved[name], dtype=np.float64) for name in _SUMS)
        return cls(*sums, tuple(saved["worst"]) if saved["worst"] else None)

    def summary(self) -> dict[str, LogprobErrors] | None:
        """By role, and of all tokens; None where nothing was reported."""
        if not self.counts[0]:
            return None
        rows = zip(self.counts.tolist(), self.sums.tolist(), self.largest.tolist(), strict=True)
        errors = [LogprobErrors(int(n), total / n if n else None, largest) for n, total, largest in rows]
        return dict(zip(("all tokens", *ROLES), errors, strict=True))
