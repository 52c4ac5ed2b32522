"""The evidence of one arm: products of bets for `different`, bounds on deviations for `equivalent`.

A rule that is wrong only where a draft is checked, or only on the last row of a step, deviates little per served
token and much per token of that role. So evidence is kept over all tokens and once more over the tokens of each role
(see `roles`): half of the weight is on all tokens, half is shared by the roles. The product over the tokens of one
role is a supermartingale too, for it stands still while others are served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trt_spec.equivalence.roles import ROLES, bound_multiple
from trt_spec.equivalence.statistics.deviation import Deviations, log_mean_exp
from trt_spec.equivalence.statistics.sequential import (
    NUM_BETS,
    NUM_BINS,
    Array,
    Positions,
    bin_shares,
    directed_increments,
    omnibus_increments,
)

# What is kept of an arm, beside its deviations and parts.
_PLAIN = ("alternatives", "orderings", "tau", "tolerance", "num_tokens", "peak")
_ARRAYS = ("log_directed", "log_omnibus", "counts")


@dataclass(frozen=True)
class Update:
    """What n tokens did.

    Attributes:
        log_e, log_e_directed, log_e_omnibus: [n] after each token.
        directed: [n, J, B] log factors of the single bets.
    """

    log_e: Array
    log_e_directed: Array
    log_e_omnibus: Array
    directed: Array


@dataclass(frozen=True)
class _Terms:
    """What n tokens add, whatever was seen before: log factors [n, J, B], bin shares [n, K], deviations [n, D]."""

    directed: Array
    shares: list[Array]
    centred: Array | None

    def rows(self, rows: NDArray[np.int64]) -> _Terms:
        return _Terms(
            self.directed[rows],
            [share[rows] for share in self.shares],
            None if self.centred is None else self.centred[rows],
        )


@dataclass
class Evidence:
    """All evidence of one arm: e-processes for `different`, deviations for `equivalent`.

    Half of the weight is on the directed bets, half on the omnibus; with roles, see the module.

    Attributes:
        alternatives, orderings: the names that are tracked; fixed before the first token.
        tau: deviation that an equivalence certificate excludes.
        tolerance: ν.
        log_directed: [J, B], log_omnibus: [O], counts: [O, K] shares of tokens per bin.
        peak: largest log e so far; by Ville's inequality it is what counts against 1/α.
        parts: the evidence of each role by its name; empty where roles are not tracked.
    """

    alternatives: tuple[str, ...]
    orderings: tuple[str, ...]
    tau: float
    tolerance: float = 0.0
    num_tokens: int = 0
    peak: float = 0.0
    log_directed: Array = field(default=None)  # type: ignore[assignment]
    log_omnibus: Array = field(default=None)  # type: ignore[assignment]
    counts: Array = field(default=None)  # type: ignore[assignment]
    deviations: Deviations = field(default=None)  # type: ignore[assignment]
    parts: dict[str, Evidence] = field(default_factory=dict)

    @classmethod
    def with_roles(
        cls, alternatives: Sequence[str], orderings: Sequence[str], tau: float, tolerance: float
    ) -> Evidence:
        """Empty evidence that is also kept per role."""
        whole = cls(tuple(alternatives), tuple(orderings), tau, tolerance)
        whole.parts = {role: cls(whole.alternatives, whole.orderings, tau, tolerance) for role in ROLES}
        return whole

    def __post_init__(self) -> None:
        if self.log_directed is None:
            self.log_directed = np.zeros((len(self.alternatives), NUM_BETS))
            self.log_omnibus = np.zeros(len(self.orderings))
            self.counts = np.zeros((len(self.orderings), NUM_BINS))
            self.deviations = Deviations.empty(self.alternatives, self.orderings, self.tau, NUM_BINS)

    @property
    def log_e(self) -> float:
        own = float(_halves(self.log_e_directed, self.log_e_omnibus))
        if not self.parts:
            return own
        return float(_halves(own, log_mean_exp(np.array([part.log_e for part in self.parts.values()]))))

    @property
    def log_e_directed(self) -> float:
        return float(log_mean_exp(self.log_directed.reshape(-1)))

    @property
    def log_e_omnibus(self) -> float:
        return float(log_mean_exp(self.log_omnibus))

    def bets(self) -> list[tuple[str, float]]:
        """(name, log e) of every alternative by its best bet and of every ordering, the strongest first."""
        omnibus = [f"omnibus by {name}" for name in self.orderings]
        log_e = [*self.log_directed.max(-1).tolist(), *self.log_omnibus.tolist()]
        return sorted(zip((*self.alternatives, *omnibus), log_e, strict=True), key=lambda bet: -bet[1])

    def is_rejected(self, alpha: float) -> bool:
        """Whether the null has been rejected at any time."""
        return self.peak >= -np.log(alpha)

    def loudest_part(self) -> str | None:
        """The role that says most against the null, where one says more than all tokens together."""
        if not self.parts:
            return None
        name, part = max(self.parts.items(), key=lambda item: item[1].log_e)
        return name if part.log_e > _halves(self.log_e_directed, self.log_e_omnibus) else None

    def demands(self) -> list[tuple[str, Deviations, float]]:
        """What a certificate has to exclude: (name, sums, bound) over all tokens, then per role that is not too rare.

        A bound is one of those that are tracked.
        """
        found = [("all tokens", self.deviations, self.tau)]
        for name, part in self.parts.items():
            if part.num_tokens:
                least = self.tau * bound_multiple(part.num_tokens / self.num_tokens)
                bounds = part.deviations.bounds[part.deviations.bounds >= least * (1 - 1e-9)]
                found += [(name, part.deviations, float(bounds[0]))] if len(bounds) else []
        return found

    def missing(self, alpha: float) -> list[tuple[str, float]]:
        """(name, bound) of what a certificate has to exclude and what is not excluded."""
        return [(name, bound) for name, sums, bound in self.demands() if not sums.is_excluded(bound, alpha)]

    def num_tokens_needed(self, alpha: float) -> int | None:
        """Tokens in all until a certificate, if the rest goes on like what was seen; None where it would not be."""
        needed = [(sums.num_tokens_needed(bound, alpha), sums.num_tokens) for _, sums, bound in self.demands()]
        if any(tokens is None for tokens, _ in needed):
            return None
        return max(int(np.ceil(tokens * self.num_tokens / seen)) for tokens, seen in needed)

    def update(self, positions: Positions, *, with_deviations: bool = True) -> Update:
        """Takes in more tokens, in the order in which they are given."""
        shares = [bin_shares(positions, positions.orderings[name]) for name in self.orderings]
        centred = None
        if with_deviations:
            p, tokens, alternatives = positions.target_probs, positions.tokens, positions.alternatives
            centred = self.deviations.centred(p, tokens, alternatives, shares)
        terms = _Terms(directed_increments(positions, self.alternatives, self.tolerance), shares, centred)
        update = self._take(terms)
        if self.parts and positions.roles is not None:
            for index, part in enumerate(self.parts.values()):
                if (rows := np.flatnonzero(positions.roles == index)).size:
                    part._take(terms.rows(rows))
        self.peak = max(self.peak, self.log_e)
        return update

    def _take(self, terms: _Terms) -> Update:
        omnibus = np.stack(
            [omnibus_increments(s, self.counts[i], self.tolerance) for i, s in enumerate(terms.shares)], axis=-1
        )
        directed_path = self.log_directed + terms.directed.cumsum(0)
        omnibus_path = self.log_omnibus + omnibus.cumsum(0)
        log_e_directed = log_mean_exp(directed_path.reshape(len(omnibus), self.log_directed.size))
        log_e_omnibus = log_mean_exp(omnibus_path)
        log_e = _halves(log_e_directed, log_e_omnibus)
        if len(omnibus):
            self.log_directed, self.log_omnibus = directed_path[-1], omnibus_path[-1]
            self.peak = max(self.peak, float(log_e.max()) - (np.log(2) if self.parts else 0.0))
        for index, share in enumerate(terms.shares):
            self.counts[index] += share.sum(0)
        if terms.centred is not None:
            self.deviations.add(terms.centred)
        self.num_tokens += len(omnibus)
        return Update(log_e, log_e_directed, log_e_omnibus, terms.directed)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` gives an equal one."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            **{name: getattr(self, name).tolist() for name in _ARRAYS},
            "deviations": self.deviations.as_dict(),
            "parts": {name: part.as_dict() for name, part in self.parts.items()},
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Evidence:
        made = cls(tuple(saved["alternatives"]), tuple(saved["orderings"]), saved["tau"], saved["tolerance"])
        made.num_tokens, made.peak = saved["num_tokens"], saved["peak"]
        for name in _ARRAYS:
            setattr(made, name, np.reshape(np.array(saved[name], dtype=np.float64), getattr(made, name).shape))
        made.deviations = made.deviations.restored(saved["deviations"])
        made.parts = {name: cls.from_dict(part) for name, part in saved["parts"].items()}
        return made


def _halves(one: Array | float, other: Array | float) -> Array:
    return np.logaddexp(one, other) - np.log(2)
