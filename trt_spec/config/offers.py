"""What each build target offers: method × target × version × acceptance rule, as data. Torch-free, and no checks.

`capabilities` checks a run config against this table; the documentation and `trt-spec doctor` are written from it. The
facts about TensorRT-LLM are from its sources and documents; nothing of them was executed here.
"""

from __future__ import annotations

from dataclasses import dataclass

# Lines of versions, see `versions.line_of`, oldest first.
ENGINE_LINES = ("0.19", "0.20", "0.21", "1.0", "1.1", "1.2", "1.3-early")
LLMAPI_LINES = ("1.0", "1.1", "1.2", "1.3-early", "1.3-late", "1.4")
LINES = {"torch": (), "tensorrt": ENGINE_LINES, "llmapi": LLMAPI_LINES}

EVERY_RULE = ("rejection", "exact_match", "block", "greedy", "typical")


@dataclass(frozen=True)
class Offer:
    """One way to draft on one build target, over some lines of versions.

    Attributes:
        method: speculation method.
        build_target: build target.
        lines: of versions; empty for torch, which has none.
        acceptance: the acceptance rules that the engine runs, the default one first.
        is_tested_here: whether this project's own tests run it, end to end.
        note: what has to be known of it.
    """

    method: str
    build_target: str
    lines: tuple[str, ...]
    acceptance: tuple[str, ...]
    is_tested_here: bool = False
    note: str = ""


_GREEDY_HEADS = "verifies by the target's best token and ignores temperature, top_k and top_p"
_ONE_MODEL_GREEDY = "a one-model drafter takes the best token whatever the request asks for"
_INFERRED = "as 1.2, which the notes of this version do not contradict"

_TORCH = tuple(
    Offer(method, "torch", (), EVERY_RULE, is_tested_here=True)
    for method in ("none", "draft_model", "ngram", "medusa", "eagle", "eagle3", "mtp")
)
_ENGINE = (
    Offer("none", "tensorrt", ENGINE_LINES, EVERY_RULE),
    # The target samples a token of its own and keeps the draft's where the two are equal.
    Offer("draft_model", "tensorrt", ENGINE_LINES, ("exact_match",), note="served without streaming, through the BLS"),
    Offer("medusa", "tensorrt", ENGINE_LINES, ("greedy",), note=_GREEDY_HEADS),
    Offer("eagle", "tensorrt", ENGINE_LINES, ("greedy",), note=_GREEDY_HEADS),
    Offer("lookahead", "tensorrt", ENGINE_LINES, ("greedy",), note=_GREEDY_HEADS),
    Offer("redrafter", "tensorrt", ENGINE_LINES, ("greedy",), note=_GREEDY_HEADS),
)
_LLMAPI = (
    Offer("none", "llmapi", LLMAPI_LINES, EVERY_RULE),
    Offer("draft_model", "llmapi", ("1.0", "1.1"), ("greedy",), note="documented for greedy requests only"),
    Offer("draft_model", "llmapi", ("1.2",), ("rejection", "greedy")),
    Offer("draft_model", "llmapi", ("1.3-early",), ("rejection", "greedy"), note=_INFERRED),
    Offer("draft_model", "llmapi", ("1.3-late", "1.4"), ("exact_match", "rejection", "greedy")),
    Offer("ngram", "llmapi", ("1.0",), ("greedy",), note="documented for greedy requests only"),
    Offer("ngram", "llmapi", ("1.1", "1.2", "1.3-early", "1.3-late", "1.4"), ("exact_match", "greedy")),
    Offer("eagle3", "llmapi", ("1.0", "1.1"), ("greedy",), note="documented for greedy requests only"),
    Offer("eagle3", "llmapi", ("1.2",), ("exact_match", "rejection", "greedy")),
    Offer("eagle3", "llmapi", ("1.3-early",), ("exact_match", "greedy"), note=_INFERRED),
    Offer("eagle3", "llmapi", ("1.3-late", "1.4"), ("exact_match", "rejection", "greedy")),
    Offer("mtp", "llmapi", ("1.0", "1.1"), ("greedy",), note=_ONE_MODEL_GREEDY),
    Offer("mtp", "llmapi", ("1.2",), ("exact_match", "greedy")),
    Offer("mtp", "llmapi", ("1.3-early",), ("exact_match", "greedy"), note=_INFERRED),
    Offer("mtp", "llmapi", ("1.3-late", "1.4"), ("exact_match", "rejection", "greedy")),
)
OFFERS: tuple[Offer, ...] = (*_TORCH, *_ENGINE, *_LLMAPI)


def find(method: str, build_target: str, line: str | None = None) -> Offer | None:
    """The offer for a method on a build target and a line of versions (None for torch), or None where there is none."""
    for offer in OFFERS:
        if (offer.method, offer.build_target) == (method, build_target) and (not offer.lines or line in offer.lines):
            return offer
    return None
