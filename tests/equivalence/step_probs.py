"""Exact probabilities of the first tokens of an output, from the outcomes of a step and from the target alone."""

from __future__ import annotations

from collections import defaultdict


def extended_probs(blocks, target, length):
    """Probabilities of the first `length` tokens when each emitted block is continued by sampling the target.

    Args:
        blocks: (probability, emitted tokens); longer blocks are cut.
        target: next-token probabilities after a tuple of emitted tokens.
    """
    probs = defaultdict(float)
    for weight, tokens in blocks:
        probs[tokens[:length]] += weight
    return _extend(probs, target, length)


def target_probs(target, length):
    """The product of the target's probabilities over `length` tokens."""
    return _extend({(): 1.0}, target, length)


def _extend(probs, target, length):
    result = defaultdict(float)
    for tokens, weight in probs.items():
        if len(tokens) == length:
            result[tokens] += weight
            continue
        step = {(*tokens, token): weight * p for token, p in enumerate(target(tokens)) if p > 0}
        for longer, p in _extend(step, target, length).items():
            result[longer] += p
    return dict(result)


def total_variation(one, other):
    """½ Σ |one − other|."""
    return 0.5 * sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other})
