"""Prompts that ship with the package: seeds for a corpus, and others, held out, on which heads are measured.

Seeds are combinations of a request and a subject, so that a few lines give thousands of different prompts. The held-out
prompts share neither wording nor subject with them. Both are in data/prompts.json, in the order that a seed draws from.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

_SEEDS: dict[str, list[str]] = json.loads((Path(__file__).parent / "data" / "prompts.json").read_text(encoding="utf-8"))
HELD_OUT: tuple[str, ...] = tuple(_SEEDS.pop("held_out"))


def seed_prompt(rng: random.Random) -> str:
    """One prompt of the seeds, drawn at random: mostly questions, some code, sums and edits."""
    kind = rng.random()
    if kind < 0.12:
        return rng.choice(_SEEDS["tasks"]).format(rng.choice(_SEEDS["doings"]))
    if kind < 0.20:
        return rng.choice(_SEEDS["sums"]).format(a=rng.randint(2, 200), b=rng.randint(2, 50))
    if kind < 0.30:
        return rng.choice(_SEEDS["edits"]).format(" ".join(rng.sample(_SEEDS["texts"], rng.randint(1, 2))))
    return rng.choice(_SEEDS["requests"]).format(rng.choice(_SEEDS["subjects"]))
