"""Synthetic laws and alternatives for the statistical tests."""

from __future__ import annotations

import numpy as np

from trt_spec.equivalence.statistics.evidence import Evidence
from trt_spec.equivalence.statistics.sequential import Positions

NAMES = ("draft", "sharper", "flatter", "argmax")
ORDERINGS = ("probability", "hash")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def draw(rng, probs):
    """One symbol per row."""
    u = rng.random((len(probs), 1))
    return np.minimum((u > probs.cumsum(-1)).sum(-1), probs.shape[1] - 1)


def positions(rng, num, size=20, served=None, peak=2.5):
    """Positions with peaked laws; `served` maps (p, q) to the law that tokens are drawn from, p by default."""
    logits = rng.normal(size=(num, size)) * peak
    p = softmax(logits)
    q = softmax(logits + rng.normal(size=(num, size)))
    laws = {
        "draft": q,
        "sharper": softmax(logits / 0.8),
        "flatter": softmax(logits / 1.25),
        "argmax": np.eye(size)[p.argmax(-1)],
    }
    law = p if served is None else served(p, q)
    return Positions(p, draw(rng, law), laws, {"probability": -p, "hash": np.tile(rng.permutation(size), (num, 1))})


def evidence(tau=0.05, tolerance=0.0):
    return Evidence(NAMES, ORDERINGS, tau, tolerance)
