"""The equivalence check as one self-contained HTML page: no script, no font, no image from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trt_spec.report import plots
from trt_spec.report.page import render

Found = Mapping[str, Any]
_PLURALS = {"no draft": "tokens without a draft"}
_ABSENT = ("arms", "counter_example", "self_check")


def page(found: Found) -> str:
    """The whole page."""
    arms = found.get("arms", {})
    outputs = [("greedy", found["greedy"]), *arms.items()] if arms else []
    return render(
        "certificate.html",
        found={**dict.fromkeys(_ABSENT), **found},
        sentence=_sentence(found),
        broken=[(name, one) for name, source in outputs for one in source["violations"]],
        z_off={row["prompt"]: row["z"] for row in arms["plain"]["per_prompt"]} if arms else {},
        after=_after(found),
        plots=plots,
    )


def _sentence(found: Found) -> str:
    """What was shown, in one sentence that can be quoted."""
    if found["verdict"] == "equivalent" and found["arms"]["speculation"]["num_tokens"]:
        tokens = found["arms"]["speculation"]["num_tokens"]
        return (
            f"A mean deviation of {found['tau']:g} or more per token is excluded at confidence 1 − {found['alpha']:g} "
            f"in each of {len(found['arms']['speculation']['deviations'])} directions, from {tokens:,} served tokens "
            f"scored by the {found['reference']}.{_sentence_on_roles(found)}{_warning(found)}"
        )
    return found["reason"][:1].upper() + found["reason"][1:] + "."


def _warning(found: Found) -> str:
    """What the reason says after the claim itself."""
    warning = found["reason"].partition("; ")[2]
    return f" {warning[:1].upper()}{warning[1:]}." if warning else ""


def _sentence_on_roles(found: Found) -> str:
    roles = [row for row in found["arms"]["speculation"]["roles"] if row["num_tokens"]]
    if not roles:
        return ""
    parts = [
        f"{row['excluded_above']:g} for {_PLURALS.get(row['role'], row['role'] + 's')}"
        for row in roles
        if row["excluded_above"]
    ]
    return f" Within the places of a step: {', '.join(parts)}."


def _after(found: Found) -> list[tuple[str, str]]:
    pairs = []
    if "seconds" in found:
        seconds = found["seconds"]
        pairs.append(("time", f"{seconds['serving']:.0f} s serving, {seconds['scoring']:.0f} s scoring"))
    if "noise" in found:
        pairs.append(("rounding", f"mean TV {found['noise']['mean_tv']:.2g} per token between two shapes of a forward"))
    if "cross_check" in found:
        pairs.append(("reference and transformers", found["cross_check"]["result"]))
    return pairs + [("assumed", what) for what in found.get("assumptions", ())]
