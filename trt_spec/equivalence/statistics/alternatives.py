"""The bank of directed bets: what the next token's law would be if something known were wrong.

Every law here is computed from what is known before the token is, so each is a fair bet; none has to be right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ALWAYS = ("sharper", "flatter", "argmax", "row before", "copy", "no copy", "repeat", "no repeat", "twin")
WITH_DRAFT = (
    "draft",
    "residual",
    "residual is p",
    "residual drops the token",
    "residual untempered",
    "greedy fallback",
    "lenient acceptance",
    "acceptance without coin",
    "argmax draft",
    "recorded raw",
    "recorded sharper",
    "recorded top 2",
    "recorded rounded",
    "draft noise as coin",
    "draft noise recovers",
)
SHARPER, FLATTER = 1 / 0.85, 0.85  # exponents of p
LENIENCE = 0.9
_MAX_NGRAM = 3


@dataclass(frozen=True)
class Known:
    """What bets may use about n positions of one output. Laws are [n, S]; None where they equal the target's.

    Attributes:
        token_ids: [n, C] ids of the first C symbols; one more symbol, where S > C, is all others.
        unfiltered: without top-k, top-p and min-p.
        untempered: at temperature 1, without filters.
        unprocessed: without penalties and bias. late: with penalties that overlook the latest token.
        draft: the draft model's law.
        ending: ids that end the output.
        context: prompt and output.
        twins: per position, the token that the latest earlier output had after the same prompt and tokens; −1 for
            none. Requests that share random numbers repeat it.
    """

    target_probs: Array
    token_ids: NDArray[np.int64]
    temperature: float
    unfiltered: Array | None
    untempered: Array | None
    unprocessed: Array | None
    late: Array | None
    draft: Array | None
    ending: tuple[int, ...]
    context: tuple[int, ...]
    num_prompt_tokens: int
    twins: tuple[int, ...]


def names(
    *, has_filter: bool, has_temperature: bool, has_penalties: bool, has_bias: bool, has_ending: bool, has_draft: bool
) -> tuple[str, ...]:
    """The alternatives that `alternatives` gives for such requests."""
    found = list(ALWAYS)
    found += ["untruncated"] if has_filter else []
    found += ["untempered"] if has_temperature else []
    found += ["unprocessed"] if has_penalties or has_bias else []
    found += ["late penalties"] if has_penalties else []
    found += ["more endings", "fewer endings"] if has_ending else []
    found += WITH_DRAFT if has_draft else ()
    return tuple(found)


def alternatives(known: Known) -> dict[str, Array]:
    """Name to probabilities [n, S]."""
    p = known.target_probs
    guess = _symbol_rows(known, copied_tokens(known.context, known.num_prompt_tokens))
    last = _symbol_rows(known, known.context[known.num_prompt_tokens - 1 : -1])
    found = {
        "sharper": _normalised(p**SHARPER),
        "flatter": _normalised(np.where(p > 0, p**FLATTER, 0)),
        "argmax": np.eye(p.shape[1])[p.argmax(-1)],
        "row before": _row_before(known),
        "copy": _or(guess, p),
        "no copy": _without(p, guess),
        "repeat": _or(last, p),
        "no repeat": _without(p, last),
        "twin": _or(_symbol_rows(known, known.twins), p),
    }
    optional = {
        "untruncated": known.unfiltered,
        "untempered": known.untempered,
        "unprocessed": known.unprocessed,
        "late penalties": known.late,
    }
    found |= {name: probs for name, probs in optional.items() if probs is not None}
    if known.ending:
        is_end = np.isin(known.token_ids, known.ending)
        is_end = np.concatenate([is_end, np.zeros((len(p), p.shape[1] - is_end.shape[1]), dtype=bool)], axis=1)
        found["more endings"] = _normalised(np.where(is_end, 4 * p, p))
        found["fewer endings"] = _without(p, is_end * p)
    if known.draft is not None:
        found |= _of_faulty_acceptance(known, _normalised(known.draft))
    return found


def _of_faulty_acceptance(known: Known, q: Array) -> dict[str, Array]:
    """Laws of the first token of a step under known faults of rejection sampling with a draft law q."""
    p, temperature = known.target_probs, known.temperature
    both = np.minimum(p, q)
    rejected = 1 - both.sum(-1, keepdims=True)
    residual = _residual(p, q)
    lost = np.maximum(q - p, 0) / np.maximum(1 - p, 1e-12)  # chance that x is drafted and rejected, over 1 − p(x)
    best_draft = np.eye(p.shape[1])[q.argmax(-1)]
    threshold = np.where(p >= q / 2, q, 0)
    return {
        "draft": q,
        "residual": residual,
        "residual is p": both + rejected * p,
        "residual drops the token": _normalised(both + p * (lost.sum(-1, keepdims=True) - lost)),
        "residual untempered": both + rejected * _normalised(residual**temperature),
        "greedy fallback": both + rejected * np.eye(p.shape[1])[residual.argmax(-1)],
        "lenient acceptance": _served(p, q, q * LENIENCE, residual),
        "acceptance without coin": threshold + (1 - threshold.sum(-1, keepdims=True)) * residual,
        "argmax draft": _served(p, best_draft, q),
        "recorded raw": _served(p, q, _normalised(q**temperature)),
        "recorded sharper": _served(p, q, _normalised(q**1.5)),
        "recorded top 2": _served(p, q, _normalised(np.where(q >= np.sort(q, axis=-1)[:, -2:-1], q, 0))),
        "recorded rounded": _served(p, q, _rounded(q)),
        **_of_reused_noise(known, q, residual),
    }


def _served(p: Array, drawn: Array, recorded: Array, residual: Array | None = None) -> Array:
    """Accepts with p/recorded what was drawn from `drawn`, and recovers from norm(max(p − recorded, 0))."""
    accepted = drawn * np.minimum(1, p / np.maximum(recorded, 1e-300))
    residual = _residual(p, recorded) if residual is None else residual
    return accepted + np.maximum(1 - accepted.sum(-1, keepdims=True), 0) * residual


def _residual(p: Array, q: Array) -> Array:
    excess = np.maximum(p - q, 0)
    return _normalised(np.where(excess.sum(-1, keepdims=True) > 1e-12, excess, p))


def _rounded(q: Array) -> Array:
    """q from logits in bfloat16 near 100: 8 bits, the last one worth 0.5."""
    return _normalised(np.exp(np.round(2 * np.log(np.maximum(q, 1e-9))) / 2))


def _of_reused_noise(known: Known, q: Array, residual: Array) -> dict[str, Array]:
    """The number that drew the draft token, by inverting the cumulative law in id order, is used once more."""
    p = known.target_probs
    order = np.argsort(known.token_ids, axis=-1)
    if p.shape[1] > order.shape[1]:
        order = np.concatenate([order, np.full((len(p), 1), p.shape[1] - 1)], axis=1)
    back = np.argsort(order, axis=-1)
    p, q, residual = (np.take_along_axis(probs, order, axis=-1) for probs in (p, q, residual))
    ratio = np.minimum(1, p / np.maximum(q, 1e-300))
    end = q.cumsum(-1)
    by_coin = np.clip(ratio - (end - q), 0, q)
    as_coin = by_coin + (1 - by_coin.sum(-1, keepdims=True)) * residual
    mass = (q * (1 - ratio)).cumsum(-1)  # rejected drafts whose number is below `end`
    cuts = residual.cumsum(-1)
    ends, masses = (np.pad(values, ((0, 0), (1, 0))) for values in (end, mass))
    recovered = [np.interp(cut / cut[-1], x, y) for cut, x, y in zip(cuts, ends, masses, strict=True)]
    recovered = np.diff(recovered, axis=-1, prepend=0)
    found = {"draft noise as coin": as_coin, "draft noise recovers": np.minimum(p, q) + recovered}
    return {name: _normalised(np.take_along_axis(probs, back, axis=-1).clip(min=0)) for name, probs in found.items()}


def copied_tokens(context: tuple[int, ...], num_prompt_tokens: int) -> list[int]:
    """For every output position what followed the longest earlier match of the last 1 to 3 tokens; −1 for none."""
    last_seen: dict[tuple[int, ...], int] = {}
    guesses = []
    for end in range(1, len(context)):
        # context[:end] is known; what followed its suffixes before?
        if end >= num_prompt_tokens:
            found = -1
            for size in range(_MAX_NGRAM, 0, -1):
                if size <= end and (place := last_seen.get(context[end - size : end])) is not None:
                    found = context[place]
                    break
            guesses.append(found)
        for size in range(1, min(_MAX_NGRAM, end) + 1):
            last_seen[context[end - size : end]] = end
    return guesses


def _symbol_rows(known: Known, tokens) -> Array:
    """One-hot rows [n, S] of one token per position; zero rows where it is no candidate."""
    match = known.token_ids == np.asarray(tokens, dtype=np.int64)[:, None]
    missing = known.target_probs.shape[1] - match.shape[1]
    return np.concatenate([match, np.zeros((len(match), missing), dtype=bool)], axis=1).astype(np.float64)


def _or(probs: Array, p: Array) -> Array:
    """`probs`, and p in its empty rows."""
    return np.where(probs.sum(-1, keepdims=True) > 0, probs, p)


def _row_before(known: Known) -> Array:
    """The law of the position before, on this position's symbols; p itself at the first."""
    p, ids = known.target_probs, known.token_ids
    rows = [p[0]]
    for index in range(1, len(p)):
        before = dict(zip(ids[index - 1].tolist(), p[index - 1].tolist(), strict=False))
        row = np.array([before.get(token, 0.0) for token in ids[index].tolist()])
        if p.shape[1] > len(row):
            row = np.append(row, max(0.0, 1 - row.sum()))
        rows.append(row if row.sum() > 0 else p[index])
    return _normalised(np.stack(rows))


def _without(p: Array, removed: Array) -> Array:
    """p without the symbols of `removed`; p itself where nothing would be left."""
    left = np.where(removed > 0, 0, p)
    return _normalised(np.where(left.sum(-1, keepdims=True) > 1e-9, left, p))


def _normalised(weights: Array) -> Array:
    return weights / weights.sum(-1, keepdims=True)
