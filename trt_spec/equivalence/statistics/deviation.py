"""How far the served law can be from the target's: confidence bounds on directed deviations.

A direction is a test function g of the token with values in [0, 1], chosen before the token is seen. With
Y = g(x) − E_p[g], the deviation of one token is d = E[Y | past] = E_p'[g] − E_p[g], and |d| ≤ TV(p', p). A direction
with g = 1 where r > p attains the total variation of every server on the segment from p to r. The bins of an ordering
give 2^(K−1) − 1 directions more; the largest of them is the total variation of the PIT histogram from uniform, which
needs no alternative.

For a fixed λ in (0, 1/(1 + m)) and a bound m,

    W = Π (1 + λ (m − Y))

satisfies E[1 + λ (m − Y) | past] = 1 + λ (m − d) ≤ exp(λ (m − d)), so W · exp(−λ Σ (m − d)) is a supermartingale.
Where the mean deviation up to now is at least m, W is at most that supermartingale, so by Ville's inequality

    P(at some time, W ≥ 1/α and the mean deviation up to then is ≥ m) ≤ α.

W ≥ 1/α therefore excludes a mean deviation of m or more, also where the deviation changes from token to token; the
same with −Y excludes −m. λ must not change with the data, so a mixture over a few fixed λ is used, and log W is a sum
over tokens: evidence of several runs adds up.
A certificate asks every direction to be excluded on both sides. For each direction, a server that deviates along it by
m or more is certified with probability at most α: no correction for their number is due, because all must agree.

Sources: Waudby-Smith and Ramdas 2024 (betting confidence sequences; the linear exponent extends them to means that
change), Howard, Ramdas, McAuliffe and Sekhon 2021 (means that change), Berger 1982 (intersection-union tests).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trt_spec.equivalence.certificate import Direction

Array = NDArray[np.float64]

SHARES = (0.03, 0.06, 0.12, 0.25, 0.5, 0.9)  # λ · (1 + m)
MULTIPLES = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)  # bounds that are tracked, in units of τ
SIGNS = (1.0, -1.0)
_ARRAYS = ("log_excluded", "log_shown", "sums")
_BLOCK = 128  # factors are at least 0.1, so their product does not underflow


@dataclass
class Deviations:
    """Sums over tokens for D directions: first the alternatives, then the sets of bins of every ordering.

    Attributes:
        log_excluded: [D, 2, M, L] log W that excludes a deviation of +m or −m.
        log_shown: [J, 2, M, L] log W that shows a deviation above m, for the alternatives only.
        sums: [D] Σ Y.
    """

    alternatives: tuple[str, ...]
    orderings: tuple[str, ...]
    bounds: Array
    sets: Array  # [sets, K] 0 or 1
    log_excluded: Array
    log_shown: Array
    sums: Array
    num_tokens: int = 0

    @classmethod
    def empty(cls, alternatives: Sequence[str], orderings: Sequence[str], tau: float, num_bins: int) -> Deviations:
        codes = np.arange(1, 2 ** (num_bins - 1))  # the others are complements of these
        sets = ((codes[:, None] >> np.arange(num_bins)) & 1).astype(np.float64)
        num_directions = len(alternatives) + len(orderings) * len(sets)
        shape = (len(SIGNS), len(MULTIPLES), len(SHARES))
        return cls(
            tuple(alternatives),
            tuple(orderings),
            np.array(MULTIPLES) * tau,
            sets,
            np.zeros((num_directions, *shape)),
            np.zeros((len(alternatives), *shape)),
            np.zeros(num_directions),
        )

    def centred(
        self, target_probs: Array, tokens: NDArray[np.int64], alternatives: Mapping[str, Array], shares: Sequence[Array]
    ) -> Array:
        """Y [n, D] of n tokens.

        Args:
            target_probs: [n, S]. tokens: [n].
            alternatives: by name [n, S]; a missing one counts as no deviation.
            shares: [n, K] per ordering, see `sequential.bin_shares`.
        """
        rows = np.arange(len(tokens))
        columns = []
        for name in self.alternatives:
            if name in alternatives:
                test = alternatives[name] > target_probs * (1 + 1e-9)  # equality up to rounding is no direction
                columns.append(test[rows, tokens] - (target_probs * test).sum(-1))
            else:
                columns.append(np.zeros(len(tokens)))
        centred = [np.stack(columns, axis=-1)] if columns else []
        centred += [(share - 1 / share.shape[1]) @ self.sets.T for share in shares]
        return np.concatenate(centred, axis=-1)

    def add(self, y: Array) -> None:
        """Takes in Y [n, D] of n tokens, see `centred`."""
        num_alternatives = len(self.alternatives)
        for start in range(0, len(y), _BLOCK):
            block = y[start : start + _BLOCK]
            for s, sign in enumerate(SIGNS):
                for b, bound in enumerate(self.bounds):
                    for k, share in enumerate(SHARES):
                        # A product of factors and one logarithm of it: a tenth of the time of a logarithm each.
                        bet = share / (1 + bound)
                        factors = bet * (bound - sign * block) + 1
                        self.log_excluded[:, s, b, k] += np.log(factors.prod(0))
                        shown = bet * (sign * block[:, :num_alternatives] - bound) + 1
                        self.log_shown[:, s, b, k] += np.log(shown.prod(0))
        self.sums += y.sum(0)
        self.num_tokens += len(y)

    # ---- what it says ----

    def excluded(self) -> Array:
        """log W [M], the least over directions and signs: at least log(1/α) certifies the bound of that index."""
        if self.log_excluded.shape[0] == 0:
            return np.full(len(self.bounds), -np.inf)
        return log_mean_exp(self.log_excluded).min(axis=(0, 1))

    def is_excluded(self, tau: float, alpha: float) -> bool:
        """Whether every direction is certified to deviate by less than tau."""
        [index] = np.flatnonzero(np.isclose(self.bounds, tau))
        return bool(self.num_tokens and self.excluded()[index] >= -np.log(alpha))

    def smallest_bound(self, alpha: float) -> float | None:
        """The smallest tracked bound that is certified; None where none is."""
        good = np.flatnonzero(self.excluded() >= -np.log(alpha))
        return float(self.bounds[good[0]]) if len(good) and self.num_tokens else None

    def table(self, alpha: float) -> list[Direction]:
        """One row per direction: the mean deviation that was seen, and what is shown or excluded at 1 − alpha.

        The sets of an ordering are one row, that of the largest deviation: the total variation of its histogram.
        """
        count = max(self.num_tokens, 1)
        excluded, shown = log_mean_exp(self.log_excluded), log_mean_exp(self.log_shown)
        rows = [self._row(name, [i], excluded, shown[i], alpha, count) for i, name in enumerate(self.alternatives)]
        for index, name in enumerate(self.orderings):
            first = len(self.alternatives) + index * len(self.sets)
            members = list(range(first, first + len(self.sets)))
            rows.append(self._row(f"histogram by {name}", members, excluded, None, alpha, count))
        return rows

    def _row(
        self, name: str, members: list[int], excluded: Array, shown: Array | None, alpha: float, count: int
    ) -> Direction:
        seen = self.sums[members] / count
        worst = int(np.abs(seen).argmax())
        limit = -np.log(alpha)
        good = np.flatnonzero(excluded[members].min(axis=(0, 1)) >= limit)
        above = np.flatnonzero(shown.max(axis=0) >= limit) if shown is not None else []
        return Direction(
            name,
            float(seen[worst]),
            float(self.bounds[good[0]]) if len(good) else None,
            float(self.bounds[above[-1]]) if len(above) else None,
        )

    def num_tokens_needed(self, tau: float, alpha: float) -> int | None:
        """Tokens in all until tau is certified, if the rest goes on like what was seen; None where it would not be."""
        if self.num_tokens == 0:
            return None
        [index] = np.flatnonzero(np.isclose(self.bounds, tau))
        rate = self.log_excluded[:, :, index].max(axis=-1) / self.num_tokens
        if rate.min() <= 0:
            return None
        return int(np.ceil((-np.log(alpha) + np.log(len(SHARES))) / rate.min()))

    # ---- keeping it ----

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready sums."""
        return {
            "log_excluded": np.round(self.log_excluded, 9).tolist(),
            "log_shown": np.round(self.log_shown, 9).tolist(),
            "sums": self.sums.tolist(),
            "num_tokens": self.num_tokens,
        }

    def restored(self, saved: Mapping[str, Any]) -> Deviations:
        """The same directions with the sums of `as_dict`."""
        arrays = {name: np.reshape(saved[name], getattr(self, name).shape) for name in _ARRAYS}
        return replace(self, **arrays, num_tokens=saved["num_tokens"])


def log_mean_exp(values: Array) -> Array:
    """log of the mean of exp over the last axis; −inf (the average of nothing) where it is empty."""
    if values.shape[-1] == 0:
        return np.full(values.shape[:-1], -np.inf)
    top = values.max(-1, keepdims=True)
    return top[..., 0] + np.log(np.exp(values - top).mean(-1))
