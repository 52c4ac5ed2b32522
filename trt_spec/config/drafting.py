"""Sections of the run config about the shape of drafts, one per method or per way to combine them.

Those that fix the length of drafts say so: `max_len` in tokens (None: not fixed), `max_nodes` of the largest draft, and
`len_key`, where the length comes from.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trt_spec.config.section import Section
from trt_spec.methods import MAX_DRAFT_LEN_LIMIT

Siblings = Literal["top", "without_replacement", "with_replacement"]


class NgramConfig(Section):
    """Lookup of the last tokens in the prompt and the output so far."""

    max_ngram: int = Field(4, ge=1, le=32, description="Longest run of last tokens that is looked up, in tokens.")
    min_ngram: int = Field(
        2,
        ge=1,
        le=32,
        description="Shortest run that counts as a match, in tokens; below it nothing is drafted. On llmapi it is 1.",
    )


# Files give lists; the numbers in them stay strict.
Choice = Annotated[tuple[Annotated[int, Field(ge=0, le=63)], ...], Field(strict=False)]


class CostsConfig(Section):
    """What drafting costs, for drafts that adapt. Times are relative: 1 is a step of one row. `tune` measures them."""

    step: dict[Annotated[int, Field(strict=False, ge=1)], Annotated[float, Field(gt=0)]] = Field(
        min_length=1,
        description="Rows of a step to its time. Between them it is taken as linear.",
    )
    draft_level: float = Field(0.0, ge=0, description="Time of drafting one level for all requests of a step.")


class NgramFirstConfig(Section):
    """Lookup before a neural drafter: where the text repeats itself, what followed last time is drafted."""

    min_ngram: int = Field(
        4, ge=1, le=32, description="Shortest run of last tokens, found again, that takes precedence over the drafter."
    )
    max_ngram: int = Field(8, ge=1, le=32, description="Longest run of last tokens that is looked up, in tokens.")


class TreeConfig(Section):
    """A tree of drafts instead of a chain: static by `choices`, or dynamic by `top_k` and `max_total_draft_tokens`."""

    choices: tuple[Choice, ...] | None = Field(
        None,
        min_length=1,
        max_length=512,
        strict=False,
        description="Static tree: paths of ranks from the root, as `medusa_choices` and `eagle_choices` are written. "
        "[[0], [1], [0, 0]] tries the two likeliest tokens, and the likeliest one after the first of them.",
    )
    siblings: Siblings = Field(
        "top",
        description="How a static tree picks the tokens below a node at temperature > 0: the likeliest ones (top), or "
        "drawn from the draft law, without_replacement or with_replacement.",
    )
    top_k: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Dynamic tree (EAGLE-2): nodes expanded on each level, and children of each.",
    )
    max_total_draft_tokens: int | None = Field(
        None, ge=1, le=512, description="Dynamic tree: most nodes that one step verifies; the most probable ones stay."
    )

    len_key: ClassVar[str] = "the depth of tree.choices"

    @property
    def max_len(self) -> int | None:
        return max(map(len, self.choices)) if self.choices else None

    @property
    def max_nodes(self) -> int:
        return len(self.choices) if self.choices else self.max_total_draft_tokens or 0


class LookaheadConfig(Section):
    """Lookahead decoding: a window of parallel guesses that fills a pool of n-grams, from which drafts are taken."""

    window_size: int = Field(4, ge=1, le=64, description="W, columns of the window.")
    ngram_size: int = Field(
        3, ge=2, le=64, description="N, tokens of an n-gram; one step accepts at most N - 1 draft tokens."
    )
    verification_set_size: int = Field(4, ge=1, le=64, description="G, n-grams of the pool that one step verifies.")

    len_key: ClassVar[str] = "lookahead.ngram_size - 1"

    @property
    def max_len(self) -> int:
        return self.ngram_size - 1

    @property
    def max_nodes(self) -> int:
        """Draft tokens of one step, which `trtllm-build` takes as max_draft_len (TensorRT-LLM, examples/lookahead)."""
        window, ngram, pool = self.window_size, self.ngram_size, self.verification_set_size
        return (0 if ngram == 1 else ngram - 2) + (window - 1 + pool) * (ngram - 1)


class RedrafterConfig(Section):
    """ReDrafter: a recurrent head on the target that drafts by beam search."""

    num_beams: int = Field(5, ge=1, le=16, description="Beams of the draft.")
    draft_len_per_beam: int = Field(5, ge=1, le=MAX_DRAFT_LEN_LIMIT, description="Draft tokens of each beam.")

    len_key: ClassVar[str] = "redrafter.draft_len_per_beam"

    @property
    def max_len(self) -> int:
        return self.draft_len_per_beam

    @property
    def max_nodes(self) -> int:
        return self.num_beams * self.draft_len_per_beam
