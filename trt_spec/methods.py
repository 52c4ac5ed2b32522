"""Ways to draft and rules to judge drafts: one record each, from which defaults, refusals and tables follow.

A new drafter is a file of `runtime/drafters` and a record here; a new acceptance rule is a function in
`runtime/acceptance` or a file beside it and a record here; a new build target is a builder in `engines/` and a line of
`_TARGETS`. What a method has neither an offer nor an absence for is not offered. Data only: nothing of the package is
imported. What is said of TensorRT-LLM is from its sources and documents; nothing of it was executed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

MAX_DRAFT_LEN_LIMIT = 64

# Lines of versions of TensorRT-LLM, see `config.versions.line_of`, oldest first.
ENGINE_LINES = ("0.19", "0.20", "0.21", "1.0", "1.1", "1.2", "1.3-early")
LLMAPI_LINES = ("1.0", "1.1", "1.2", "1.3-early", "1.3-late", "1.4")
# Build target to its builder (module:class, imported when a run asks for it) and its lines of versions.
_TARGETS = {
    "torch": ("trt_spec.engines.torch.builder:TorchBuilder", ()),
    "tensorrt": ("trt_spec.engines.tensorrt.builder:TensorRTBuilder", ENGINE_LINES),
    "llmapi": ("trt_spec.engines.llmapi.builder:LlmApiBuilder", LLMAPI_LINES),
}
BUILD_TARGETS = tuple(_TARGETS)
BUILDERS = {name: builder for name, (builder, _) in _TARGETS.items()}
LINES = {name: lines for name, (_, lines) in _TARGETS.items()}


# --- acceptance rules ---


@dataclass(frozen=True)
class Rule:
    """How a draft token is judged.

    Attributes:
        is_lossless: tokens have the target's probabilities for every request that the rule serves.
        serves_sampling: whether it serves requests at a temperature above 0; where not, they are refused.
        judges_trees: whether it judges trees of drafts as well as chains.
        doc: what it does, in the third person.
        decide: module:function that judges; the function of its name in `runtime/acceptance` where not given.
    """

    name: str
    doc: str
    is_lossless: bool = True
    serves_sampling: bool = True
    judges_trees: bool = True
    decide: str = ""


# "greedy" takes the target's best token, which has the target's probabilities at temperature 0 and nowhere else.
ACCEPTANCE: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "greedy",
            "compares with the target's best token and serves requests at temperature 0 only",
            serves_sampling=False,
        ),
        Rule("rejection", "accepts with probability min(1, p/q) and recovers from the residual"),
        Rule("exact_match", "samples the target and compares"),
        Rule("block", "judges the prefixes of a chain together", judges_trees=False),
        Rule("typical", "accepts whatever is likely enough", is_lossless=False),
    )
}
DEFAULT_ACCEPTANCE = "rejection"
_EVERY_RULE = (DEFAULT_ACCEPTANCE, *(name for name in ACCEPTANCE if name != DEFAULT_ACCEPTANCE))
_PLAIN_RULES = ("rejection", "exact_match", "block", "greedy", "typical")  # without drafts none has anything to judge


# --- methods ---


@dataclass(frozen=True)
class Offer:
    """One way to draft on one build target, over some lines of versions.

    Attributes:
        lines: of versions; empty for torch, which has none.
        acceptance: the acceptance rules that the engine runs, the default one first.
        is_tested_here: whether this project's own tests run it, end to end.
        note: what has to be known of it.
        why_not: acceptance rule to why it is not run, for what the engine has in some form and is not that rule.
    """

    build_target: str
    lines: tuple[str, ...]
    acceptance: tuple[str, ...]
    is_tested_here: bool = False
    note: str = ""
    why_not: Mapping[str, str] = field(default_factory=dict)

    @property
    def serves_sampling(self) -> bool:
        """Whether some rule serves requests at a temperature above 0 without loss."""
        return any(ACCEPTANCE[rule].serves_sampling and ACCEPTANCE[rule].is_lossless for rule in self.acceptance)


@dataclass(frozen=True)
class Absence:
    """Why no version of a build target does it, and what to do beside taking a target that does."""

    build_target: str
    why: str
    also: str = ""


@dataclass(frozen=True)
class Method:
    """A way to draft.

    Attributes:
        doc: who proposes.
        max_draft_len: draft length where nothing gives one.
        keys: keys of the section `speculation` that it takes beside those that all take. A section of its own name has
            its settings, with defaults. Any other key is refused.
        needs_checkpoint: whether `checkpoint` has to be given; where not, it is refused.
        offers, absences: the build targets that do it, and those that never do, with the reason.
        drafter: module:function that makes the drafter of the torch target; empty where there is none.
        level_cost: drafting one level for all sequences, relative to a step of one row; on two CPU cores.
        spellings: other names of it, without spaces and dashes.
        evidence: what the tensors of its checkpoint look like.
    """

    name: str
    doc: str
    max_draft_len: int
    offers: tuple[Offer, ...]
    absences: tuple[Absence, ...] = ()
    keys: tuple[str, ...] = ()
    drafter: str = ""
    level_cost: float = 0.0
    spellings: tuple[str, ...] = ()
    evidence: str = ""

    @property
    def needs_checkpoint(self) -> bool:
        return "checkpoint" in self.keys

    @property
    def is_neural(self) -> bool:
        """Whether a network drafts whose drafts may be trees, and which lookup may precede."""
        return "tree" in self.keys

    def offer(self, build_target: str, line: str | None = None) -> Offer | None:
        """What a build target and line of versions offer (None or empty for torch); None where that is nothing."""
        offered = (offer for offer in self.offers if offer.build_target == build_target)
        return next((offer for offer in offered if not offer.lines or line in offer.lines), None)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Build targets that do it in some version."""
        return tuple(name for name in BUILD_TARGETS if any(offer.build_target == name for offer in self.offers))


_LENGTHS = ("adaptive_draft_len", "costs", "draft_len_schedule")
_NEURAL = ("tree", "ngram_first", *_LENGTHS)
_WITH_CHECKPOINT = ("checkpoint", *_NEURAL)

_GREEDY_HEADS = "verifies by the target's best token and ignores temperature, top_k and top_p"
_GREEDY_DOCUMENTED = "documented for greedy requests only"
_ONE_MODEL_GREEDY = "a one-model drafter takes the best token whatever the request asks for"
_INFERRED = "as 1.2, which the notes of this version do not contradict"

_TORCH = Offer("torch", (), _EVERY_RULE, is_tested_here=True)
_ENGINE_HEADS = Offer("tensorrt", ENGINE_LINES, ("greedy",), note=_GREEDY_HEADS)
_LATE = ("1.3-late", "1.4")


def _llmapi(lines: tuple[str, ...], *acceptance: str, note: str = "") -> Offer:
    return Offer("llmapi", lines, acceptance, note=note)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "none",
            "nobody",
            max_draft_len=0,
            spellings=("off", "plain", "no"),
            offers=(_TORCH, Offer("tensorrt", ENGINE_LINES, _PLAIN_RULES), Offer("llmapi", LLMAPI_LINES, _PLAIN_RULES)),
        ),
        Method(
            "draft_model",
            "a small model",
            max_draft_len=4,
            keys=_WITH_CHECKPOINT,
            drafter="trt_spec.runtime.drafters.draft_model:make",
            level_cost=0.35,
            spellings=("draft", "drafttarget", "draftmodels"),
            evidence="a whole model",
            offers=(
                _TORCH,
                # The target samples a token of its own and keeps the draft's where the two are equal.
                Offer(
                    "tensorrt",
                    ENGINE_LINES,
                    ("exact_match",),
                    note="served without streaming, through the BLS",
                    why_not={
                        "rejection": "with draft logits, drafts are judged by other probabilities than they were drawn "
                        "with (the target's logits are tempered and the draft's are not), so it is not exact"
                    },
                ),
                _llmapi(("1.0", "1.1"), "greedy", note=_GREEDY_DOCUMENTED),
                _llmapi(("1.2",), "rejection", "greedy"),
                _llmapi(("1.3-early",), "rejection", "greedy", note=_INFERRED),
                _llmapi(_LATE, "exact_match", "rejection", "greedy"),
            ),
        ),
        Method(
            "ngram",
            "lookup in the text so far",
            max_draft_len=8,
            keys=("ngram", *_LENGTHS),
            drafter="trt_spec.runtime.drafters.ngram:make",
            spellings=("ngrams", "promptlookup"),
            offers=(
                _TORCH,
                _llmapi(("1.0",), "greedy", note=_GREEDY_DOCUMENTED),
                _llmapi(("1.1", "1.2", "1.3-early", *_LATE), "exact_match", "greedy"),
            ),
            absences=(Absence("tensorrt", "Triton's TensorRT-LLM backend drafts no n-grams"),),
        ),
        Method(
            "medusa",
            "heads on the target",
            max_draft_len=4,
            keys=_WITH_CHECKPOINT,
            drafter="trt_spec.runtime.drafters.medusa:make",
            evidence="Medusa heads: residual blocks, each head with its own output",
            offers=(_TORCH, _ENGINE_HEADS),
            absences=(Absence("llmapi", "the PyTorch backend never ran Medusa"),),
        ),
        Method(
            "eagle",
            "a layer that drafts the target's features",
            max_draft_len=5,
            keys=_WITH_CHECKPOINT,
            drafter="trt_spec.runtime.drafters.feature:make",
            level_cost=0.15,
            spellings=("eagle1", "eagle2"),
            evidence="an EAGLE-1 or EAGLE-2 head: fc is 2H wide, the layer reads H",
            offers=(
                _TORCH,
                replace(
                    _ENGINE_HEADS,
                    why_not={
                        "typical": "its posterior threshold accepts what is likely enough, which changes the "
                        "probabilities of the tokens"
                    },
                ),
            ),
            absences=(Absence("llmapi", "the PyTorch backend reads EAGLE-3 heads only", ", or train an EAGLE-3 head"),),
        ),
        Method(
            "eagle3",
            "a layer on three captured layers of the target",
            max_draft_len=5,
            keys=_WITH_CHECKPOINT,
            drafter="trt_spec.runtime.drafters.feature:make",
            level_cost=0.15,
            evidence="an EAGLE-3 head: fc fuses three captured layers, the layer reads 2H",
            offers=(
                _TORCH,
                _llmapi(("1.0", "1.1"), "greedy", note=_GREEDY_DOCUMENTED),
                _llmapi(("1.2",), "exact_match", "rejection", "greedy"),
                _llmapi(("1.3-early",), "exact_match", "greedy", note=_INFERRED),
                _llmapi(_LATE, "exact_match", "rejection", "greedy"),
            ),
            absences=(Absence("tensorrt", "its converter and engine know EAGLE-1 and EAGLE-2 only"),),
        ),
        Method(
            "mtp",
            "the target's own prediction layers",
            max_draft_len=1,
            keys=_NEURAL,
            drafter="trt_spec.runtime.drafters.mtp:make",
            level_cost=0.2,
            evidence="a target with MTP layers",
            offers=(
                _TORCH,
                _llmapi(("1.0", "1.1"), "greedy", note=_ONE_MODEL_GREEDY),
                _llmapi(("1.2",), "exact_match", "greedy"),
                _llmapi(("1.3-early",), "exact_match", "greedy", note=_INFERRED),
                _llmapi(_LATE, "exact_match", "rejection", "greedy"),
            ),
            absences=(Absence("tensorrt", "its engine has no prediction layers"),),
        ),
        Method(
            "lookahead",
            "a window of guesses by the target itself",
            max_draft_len=2,
            keys=("lookahead",),
            spellings=("lookaheaddecoding",),
            offers=(_ENGINE_HEADS,),
            absences=(
                Absence("torch", "the torch runtime does not draft so"),
                Absence("llmapi", "the PyTorch backend never ran it"),
            ),
        ),
        Method(
            "redrafter",
            "a recurrent head",
            max_draft_len=5,
            keys=("checkpoint", "redrafter"),
            spellings=("recurrentdrafter", "explicitdrafttokens"),
            offers=(_ENGINE_HEADS,),
            absences=(
                Absence("torch", "the torch runtime has no ReDrafter"),
                Absence("llmapi", "the PyTorch backend has no ReDrafter"),
            ),
        ),
    )
}
SPELLINGS = {
    spelling: name for name, method in METHODS.items() for spelling in (name.replace("_", ""), *method.spellings)
}


def taking(key: str) -> tuple[str, ...]:
    """The methods that take a key of the section `speculation`."""
    return tuple(name for name, method in METHODS.items() if key in method.keys)


def in_words(names: tuple[str, ...], last: str = "and") -> str:
    """ "a, b and c"."""
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def spelled(text: str) -> str | None:
    """The method that a spelling means: "EAGLE-3" is eagle3, "n-gram" is ngram; None where it means none."""
    return SPELLINGS.get(squeezed(text))


def squeezed(text: str) -> str:
    """A spelling as `SPELLINGS` has it."""
    return re.sub(r"[\s_\-.]+", "", text).lower()
