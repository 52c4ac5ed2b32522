"""Evidence that grows token by token: e-processes against "the served tokens follow the target's law".

Given the emitted prefix, the target says p for the next token and the server drew from some p'. The null is a
tolerance, not a point, because two kernels never agree exactly: TV(p', p) ≤ ν at every token.

A payoff s ≥ 0 over tokens, chosen before the token is seen, gives the factor

    e = s(x) / (E_p[s] + ν · (max s − min s)).

For every p' within TV ν of p, E_p'[s] ≤ E_p[s] + ν · range(s), so E[e] ≤ 1 whatever the server does inside the
tolerance, and the running product is a non-negative supermartingale. It exceeds 1/α at any time with probability at
most α (Ville), so it may be looked at after every token. Averages of such products are such products: many payoffs
can be tried at once, and a later night's product multiplies an earlier one's.

Directed bets: s = (1 − λ) + λ · clip(r/p, 1/c, c) for alternatives r that are known before the token is, and several
λ. The clip costs little power and keeps range(s) small; it is the shape of the optimal test between neighbourhoods.
Set bets: g = 1{r > p} and s = 1 + κ (± (g − E_p[g]) − ν), for deviations that are small and many; E[s] ≤ 1 at once.
Omnibus: order the vocabulary and let c_b(x) be the share of x's piece [F(x−), F(x)] of the unit interval that lies in
bin b of K. E_p[c_b] = 1/K for every p, so s(x) = Σ_b c_b(x) · K · w_b, with w the Krichevsky–Trofimov prediction from
the tokens so far, needs no alternative. It is the randomised probability integral transform, averaged over its
auxiliary uniform number, which by Jensen never loses evidence.

Sources: Ville 1939; Shafer and Vovk 2019; Grünwald, de Heide and Koolen 2024 (safe testing); Vovk and Wang 2021
(averages of e-values); Huber and Strassen 1973 (clipped ratios); Krichevsky and Trofimov 1981.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LAMBDAS = (0.02, 0.1, 0.4, 0.9)
KAPPAS = (0.1, 0.4)
NUM_BETS = len(LAMBDAS) + 2 * len(KAPPAS)  # per alternative
CLIPS = (1.5, 4.0, 32.0, 1e6)  # per token the one that promises most; without a tolerance always the last
NUM_BINS = 8
_TYPICAL = 0.4  # the λ for which a clip is chosen


@dataclass(frozen=True)
class Positions:
    """Served tokens beside what was known before each of them.

    S is the size of the alphabet: the vocabulary, or its likeliest tokens and one symbol for all others. What belongs
    to the one symbol must not depend on the served token.

    Attributes:
        target_probs: [n, S] p, rows sum to 1.
        tokens: [n] served symbols.
        alternatives: name to r [n, S]; a row equal to p makes no bet.
        orderings: name to sort keys [n, S], smaller first.
        roles: [n] index into `roles.ROLES`; None where it is not known.
    """

    target_probs: Array
    tokens: NDArray[np.int64]
    alternatives: Mapping[str, Array]
    orderings: Mapping[str, Array]
    roles: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def served_probs(self) -> Array:
        """[n] p of the served tokens."""
        return self.target_probs[np.arange(len(self)), self.tokens]


def directed_increments(positions: Positions, names: Sequence[str], tolerance: float) -> Array:
    """log e [n, J, `NUM_BETS`]: per alternative the bets for each λ, then the set bets."""
    log_e = np.zeros((len(positions), len(names), NUM_BETS))
    for index, name in enumerate(names):
        if name in positions.alternatives:
            alternative = positions.alternatives[name]
            log_e[:, index, : len(LAMBDAS)] = _bets(positions, alternative, tolerance)
            log_e[:, index, len(LAMBDAS) :] = _set_bets(positions, alternative, tolerance)
    return log_e


def _set_bets(positions: Positions, alternative: Array, tolerance: float) -> Array:
    """log e [n, 2K] of the bets that r's favourites come more often than p says, and less often."""
    p = positions.target_probs
    favoured = alternative > p * (1 + 1e-9)
    expected = (p * favoured).sum(-1)
    y = favoured[np.arange(len(p)), positions.tokens] - expected
    is_bet = (expected > 0) | favoured.any(-1)
    rates = [np.log1p(kappa * (sign * y - tolerance)) for sign in (1, -1) for kappa in KAPPAS]
    return np.where(is_bet[:, None], np.stack(rates, axis=-1), 0.0)


def _bets(positions: Positions, alternative: Array, tolerance: float) -> Array:
    """log e [n, Λ] of the bets on one alternative r [n, S]."""
    p = positions.target_probs
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(p > 0, alternative / p, np.where(alternative > 0, np.inf, 1.0))
    best, best_growth = None, None
    for clip in CLIPS if tolerance > 0 else CLIPS[-1:]:
        payoff = np.clip(ratio, 1 / clip, clip)
        fair = (p * payoff).sum(-1) + tolerance * (payoff.max(-1) - payoff.min(-1))
        at_token = payoff[np.arange(len(p)), positions.tokens]
        candidate = np.stack([at_token, fair])
        if tolerance == 0:
            best = candidate
            break
        lean = (1 - _TYPICAL) * p + _TYPICAL * alternative
        growth = (lean * np.log1p(_TYPICAL * (payoff - 1))).sum(-1) - np.log1p(_TYPICAL * (fair - 1))
        if best is None:
            best, best_growth = candidate, growth
        else:
            is_better = growth > best_growth
            best = np.where(is_better, candidate, best)
            best_growth = np.maximum(growth, best_growth)
    lambdas = np.array(LAMBDAS)
    log_e = np.log1p(lambdas * (best[0][:, None] - 1)) - np.log1p(lambdas * (best[1][:, None] - 1))
    if tolerance > 0:  # known before the token is: no bet where the alternative is too close to pay for the tolerance
        log_e[best_growth <= 0] = 0.0
    return log_e


def bin_shares(positions: Positions, ordering: Array, num_bins: int = NUM_BINS) -> Array:
    """c [n, K]: the share of the served token's piece of the unit interval in each bin; rows sum to 1."""
    p, rows = positions.target_probs, np.arange(len(positions))
    mine = ordering[rows, positions.tokens][:, None]
    symbols = np.arange(p.shape[1])
    before = (ordering < mine) | ((ordering == mine) & (symbols < positions.tokens[:, None]))
    start = (p * before).sum(-1).clip(0, 1)
    end = (start + positions.served_probs).clip(0, 1)
    edges = np.linspace(0, 1, num_bins + 1)
    overlap = np.minimum(end[:, None], edges[1:]) - np.maximum(start[:, None], edges[:-1])
    shares = overlap.clip(min=0)
    is_empty = shares.sum(-1) <= 0  # probability 0, or too little for float64: all of it in the bin where it lies
    place = np.minimum((start * num_bins).astype(np.int64), num_bins - 1)
    shares[is_empty] = np.eye(num_bins)[place[is_empty]]
    return shares / shares.sum(-1, keepdims=True)


def omnibus_increments(shares: Array, counts: Array, tolerance: float) -> Array:
    """log e [n] of the Krichevsky–Trofimov bet.

    Args:
        shares: [n, K] from `bin_shares`.
        counts: [K] sums of the shares of all tokens before.
    """
    num_bins = shares.shape[1]
    seen = counts + np.concatenate([np.zeros((1, num_bins)), shares[:-1].cumsum(0)])
    payoff = num_bins * (seen + 0.5) / (seen.sum(-1, keepdims=True) + num_bins / 2)
    fair = 1 + tolerance * (payoff.max(-1) - payoff.min(-1))
    return np.log((shares * payoff).sum(-1)) - np.log(fair)
