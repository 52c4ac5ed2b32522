"""The section `speculation` of the run config: who drafts, how long, and how drafts are judged.

One class for all methods. What a method takes stands in its record (`trt_spec.methods`); `rules` refuses the rest, so
a key that a method does not take is None, or false.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trt_spec.config.drafting import (
    CostsConfig,
    LookaheadConfig,
    NgramConfig,
    NgramFirstConfig,
    RedrafterConfig,
    TreeConfig,
)
from trt_spec.config.section import For, Section
from trt_spec.methods import ACCEPTANCE, DEFAULT_ACCEPTANCE, MAX_DRAFT_LEN_LIMIT, METHODS, in_words, spelled, taking

MethodName = Literal[tuple(METHODS)]
AcceptanceName = Literal[tuple(ACCEPTANCE)]
TorchOnly = For(("torch",), "no engine of TensorRT-LLM does it")
SwitchForTorch = For(("torch",), TorchOnly.why, unset=False)
ByRequestOnEngines = For(
    ("torch", "llmapi"), "a tensorrt engine drafts by one length; the client sends num_draft_tokens per request"
)

_LOSSLESS = "; ".join(f"{rule.name} {rule.doc}" for rule in ACCEPTANCE.values() if rule.is_lossless)
_LOSSY = "; ".join(f"{rule.name} {rule.doc}" for rule in ACCEPTANCE.values() if not rule.is_lossless)
_ENGINE_ONLY = tuple(name for name, method in METHODS.items() if method.targets == ("tensorrt",))


def _known_spelling(value: Any) -> Any:
    """Spellings that mean a method become it; anything else is left for the type to refuse."""
    return (spelled(value) or value) if isinstance(value, str) else value


def _of_method(name: str, section: type[Section]) -> Callable[[dict[str, Any]], Section | None]:
    """The default settings of a method, for that method."""
    return lambda values: section() if values.get("method") == name else None


def _default_max_draft_len(values: dict[str, Any]) -> int:
    given = (values.get(name) for name in ("tree", "lookahead", "redrafter"))
    fixed = next((shape.max_len for shape in given if shape is not None and shape.max_len), None)
    method = METHODS.get(values.get("method", "none"))
    return fixed or (0 if method is None else method.max_draft_len)


class SpeculationConfig(Section):
    """How draft tokens are proposed and accepted."""

    method: Annotated[MethodName, BeforeValidator(_known_spelling)] = Field(
        "none",
        description=f"Who proposes: {', '.join(f'{method.doc} ({name})' for name, method in METHODS.items())}. "
        f"On the tensorrt target only: {in_words(_ENGINE_ONLY)}.",
    )
    checkpoint: str | None = Field(
        None,
        min_length=1,
        description=f"Directory of the draft model or heads. Required by {in_words(taking('checkpoint'))}; refused by "
        "the others. A relative path is taken from the working directory.",
    )
    tree: TreeConfig | None = Field(
        None, description=f"Shape of the drafts of {in_words(taking('tree'))}; without it a chain."
    )
    lookahead: LookaheadConfig | None = Field(
        default_factory=_of_method("lookahead", LookaheadConfig),
        description="Settings of the lookahead method; refused by the others.",
    )
    redrafter: RedrafterConfig | None = Field(
        default_factory=_of_method("redrafter", RedrafterConfig),
        description="Settings of the redrafter method; refused by the others.",
    )
    max_draft_len: int = Field(
        default_factory=_default_max_draft_len,
        ge=0,
        le=MAX_DRAFT_LEN_LIMIT,
        description="Most draft tokens in a row that one step verifies, the depth of a tree. Default: "
        f"{TreeConfig.len_key}, {LookaheadConfig.len_key}, {RedrafterConfig.len_key}, else by method: "
        + ", ".join(f"{name} {method.max_draft_len}" for name, method in METHODS.items())
        + ".",
    )
    acceptance: AcceptanceName = Field(
        DEFAULT_ACCEPTANCE,
        description=f"How a draft token is judged. Lossless: {_LOSSLESS}. Lossy: {_LOSSY}. An engine of TensorRT-LLM "
        "runs the rules that its version has for the method, and where the key is not given the best one of them is "
        "taken.",
    )
    ngram: NgramConfig | None = Field(
        default_factory=_of_method("ngram", NgramConfig),
        description="Settings of the ngram method; refused by the others.",
    )
    ngram_first: Annotated[NgramFirstConfig | None, TorchOnly] = Field(
        None,
        description="With it, long matches in the text so far are drafted first, and "
        f"{in_words(taking('ngram_first'), 'or')} only where there is none. An empty section takes the defaults.",
    )
    adaptive_draft_len: Annotated[bool, SwitchForTorch] = Field(
        False,
        description="Draft for each request as far as it pays, up to max_draft_len: by what was accepted of its last "
        "drafts, and by what more rows cost with so many requests in the step. Not at all where it does not pay.",
    )
    costs: Annotated[CostsConfig | None, TorchOnly] = Field(
        None,
        description="What adaptive_draft_len weighs; without it, what the build timed on this machine. For torch only.",
    )
    draft_len_schedule: Annotated[
        dict[Annotated[int, Field(strict=False, ge=1)], Annotated[int, Field(ge=0)]] | None, ByRequestOnEngines
    ] = Field(
        None,
        description="Number of requests in a step to draft length, from that number on: {1: 5, 8: 3, 32: 0} drafts 5 "
        "tokens up to 7 requests, 3 up to 31, and none beyond. Starts at 1 with max_draft_len. For torch "
        "and llmapi, in the meaning of the pinned version.",
    )

    @property
    def shape(self) -> TreeConfig | LookaheadConfig | RedrafterConfig | None:
        """What gives drafts another shape than a chain."""
        return self.tree or self.lookahead or self.redrafter

    @property
    def max_total_draft_tokens(self) -> int:
        """Nodes of the largest draft that one step verifies."""
        return self.max_draft_len if self.shape is None else self.shape.max_nodes
