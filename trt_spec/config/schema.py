"""The run config: one file per run, frozen, closed (an unknown key is an error), with its bounds in the types.

Torch-free. `loader` reads files into these models and turns what pydantic says into messages with line numbers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from trt_spec.config import offers, versions
from trt_spec.config.build_config import BUILD_TARGETS, BuildConfig
from trt_spec.config.drafting import (
    MAX_DRAFT_LEN_LIMIT,
    CostsConfig,
    LookaheadConfig,
    NgramConfig,
    NgramFirstConfig,
    RedrafterConfig,
    TreeConfig,
)
from trt_spec.config.latency_config import LatencyConfig
from trt_spec.config.rules import CrossFieldError, cross_field_problems
from trt_spec.config.section import Section
from trt_spec.errors import ConfigError, UsageError

Method = Literal["none", "draft_model", "ngram", "medusa", "eagle", "eagle3", "mtp", "lookahead", "redrafter"]
Acceptance = Literal["greedy", "rejection", "exact_match", "block", "typical"]
Dtype = Literal["bfloat16", "float32", "float16"]

METHODS: tuple[str, ...] = get_args(Method)
ACCEPTANCE_RULES: tuple[str, ...] = get_args(Acceptance)
DTYPES: tuple[str, ...] = get_args(Dtype)

__all__ = [
    "ACCEPTANCE_RULES",
    "BUILD_TARGETS",
    "DTYPES",
    "METHODS",
    "BuildConfig",
    "LookaheadConfig",
    "NgramConfig",
    "NgramFirstConfig",
    "RedrafterConfig",
    "RunConfig",
    "SpeculationConfig",
    "TreeConfig",
    "json_schema",
    "normalise_method",
]

DEFAULT_MAX_DRAFT_LEN = {
    "none": 0,
    "draft_model": 4,
    "ngram": 8,
    "medusa": 4,
    "eagle": 5,
    "eagle3": 5,
    "mtp": 1,
    "lookahead": 2,
    "redrafter": 5,
}

_METHOD_SPELLINGS = {
    **{method.replace("_", ""): method for method in METHODS},
    **dict.fromkeys(("off", "plain", "no"), "none"),
    **dict.fromkeys(("draft", "drafttarget", "draftmodels"), "draft_model"),
    **dict.fromkeys(("ngrams", "promptlookup"), "ngram"),
    **dict.fromkeys(("eagle1", "eagle2"), "eagle"),
    **dict.fromkeys(("lookaheaddecoding",), "lookahead"),
    **dict.fromkeys(("recurrentdrafter", "explicitdrafttokens"), "redrafter"),
}


def normalise_method(text: str) -> str:
    """The method that a spelling means: "EAGLE-3" is eagle3, "n-gram" is ngram, "Draft Model" is draft_model.

    Raises:
        UsageError: The spelling means no method; names the nearest one.
    """
    squeezed = re.sub(r"[\s_\-.]+", "", str(text)).lower()
    if squeezed in _METHOD_SPELLINGS:
        return _METHOD_SPELLINGS[squeezed]
    near = difflib.get_close_matches(squeezed, _METHOD_SPELLINGS, n=1)
    raise UsageError(
        f"unknown speculation method {text!r}",
        expected="one of " + ", ".join(METHODS),
        remedy=f"did you mean {_METHOD_SPELLINGS[near[0]]}?" if near else None,
    )


def _known_spelling(value: Any) -> Any:
    """Spellings that mean a method become it; anything else is left for the type to refuse."""
    if isinstance(value, str):
        squeezed = re.sub(r"[\s_\-.]+", "", value).lower()
        return _METHOD_SPELLINGS.get(squeezed, value)
    return value


Port = Annotated[int, Field(ge=1, le=65535)]


class TargetConfig(Section):
    """The large model whose law every served token follows."""

    checkpoint: str = Field(
        min_length=1,
        description="Directory of the target model (Hugging Face layout, safetensors). A relative path is taken from "
        "the working directory.",
    )
    dtype: Dtype = Field(
        "bfloat16",
        description="Type of the weights, activations and KV cache in the engine. Probabilities are always computed in "
        "float32. Greedy equality between plain and speculative decoding is exact only in float32.",
    )


def _default_max_draft_len(section: dict[str, Any]) -> int:
    tree, lookahead, redrafter = section.get("tree"), section.get("lookahead"), section.get("redrafter")
    if tree is not None and tree.choices:
        return max(len(choice) for choice in tree.choices)
    if lookahead is not None:
        return lookahead.ngram_size - 1
    if redrafter is not None:
        return redrafter.draft_len_per_beam
    return DEFAULT_MAX_DRAFT_LEN.get(section.get("method", "none"), 0)


def _default_ngram(section: dict[str, Any]) -> NgramConfig | None:
    return NgramConfig() if section.get("method") == "ngram" else None


def _default_lookahead(section: dict[str, Any]) -> LookaheadConfig | None:
    return LookaheadConfig() if section.get("method") == "lookahead" else None


def _default_redrafter(section: dict[str, Any]) -> RedrafterConfig | None:
    return RedrafterConfig() if section.get("method") == "redrafter" else None


class SpeculationConfig(Section):
    """How draft tokens are proposed and accepted."""

    method: Annotated[Method, BeforeValidator(_known_spelling)] = Field(
        "none",
        description="Who proposes: nobody (none), a small model (draft_model), lookup in the text so far (ngram), "
        "heads on the target (medusa), a feature-level draft layer (eagle, eagle3), the target's own prediction "
        "layers (mtp), a window of guesses by the target itself (lookahead), or a recurrent head (redrafter). The last "
        "two exist on the tensorrt target only.",
    )
    checkpoint: str | None = Field(
        None,
        min_length=1,
        description="Directory of the draft model or heads. Required by draft_model, medusa, eagle, eagle3 and "
        "redrafter; refused by the others. A relative path is taken from the working directory.",
    )
    tree: TreeConfig | None = Field(
        None, description="Shape of the drafts of draft_model, medusa, eagle, eagle3 and mtp; without it a chain."
    )
    lookahead: LookaheadConfig | None = Field(
        default_factory=_default_lookahead, description="Settings of the lookahead method; refused by the others."
    )
    redrafter: RedrafterConfig | None = Field(
        default_factory=_default_redrafter, description="Settings of the redrafter method; refused by the others."
    )
    max_draft_len: int = Field(
        default_factory=_default_max_draft_len,
        ge=0,
        le=MAX_DRAFT_LEN_LIMIT,
        description="Most draft tokens in a row that one step verifies, the depth of a tree. Default: the depth of "
        "tree.choices, lookahead.ngram_size - 1, redrafter.draft_len_per_beam, else by method: "
        + ", ".join(f"{method} {length}" for method, length in DEFAULT_MAX_DRAFT_LEN.items())
        + ".",
    )
    acceptance: Acceptance = Field(
        "rejection",
        description="How a draft token is judged. rejection accepts with probability min(1, p/q) and recovers from the "
        "residual; exact_match samples the target and compares; block judges the prefixes of a chain together; greedy "
        "compares with the target's best token and serves requests at temperature 0 only: these four are lossless. "
        "typical accepts whatever is likely enough and is lossy. An engine of TensorRT-LLM runs the rules that its "
        "version has for the method, and where the key is not given the best one of them is taken.",
    )
    ngram: NgramConfig | None = Field(
        default_factory=_default_ngram, description="Settings of the ngram method; refused by the others."
    )

    ngram_first: NgramFirstConfig | None = Field(
        None,
        description="With it, long matches in the text so far are drafted first, and draft_model, medusa, eagle, "
        "eagle3 or mtp only where there is none. An empty section takes the defaults.",
    )
    adaptive_draft_len: bool = Field(
        False,
        description="Draft for each request as far as it pays, up to max_draft_len: by what was accepted of its last "
        "drafts, and by what more rows cost with so many requests in the step. Not at all where it does not pay.",
    )
    costs: CostsConfig | None = Field(
        None,
        description="What adaptive_draft_len weighs; without it, what the build timed on this machine. For torch only.",
    )
    draft_len_schedule: dict[Annotated[int, Field(strict=False, ge=1)], Annotated[int, Field(ge=0)]] | None = Field(
        None,
        description="Number of requests in a step to draft length, from that number on: {1: 5, 8: 3, 32: 0} drafts 5 "
        "tokens up to 7 requests, 3 up to 31, and none beyond. Starts at 1 with max_draft_len. For torch "
        "and llmapi, in the meaning of the pinned version.",
    )

    @property
    def max_total_draft_tokens(self) -> int:
        """Nodes of the largest draft that one step verifies."""
        if self.lookahead is not None:
            return self.lookahead.max_total_draft_tokens
        if self.redrafter is not None:
            return self.redrafter.num_beams * self.redrafter.draft_len_per_beam
        if self.tree is None:
            return self.max_draft_len
        return len(self.tree.choices) if self.tree.choices else self.tree.max_total_draft_tokens or 0


class ServeConfig(Section):
    """The served model and the ports of the Triton server."""

    model_name: str = Field(
        "tensorrt_llm",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$",
        max_length=128,
        description="Name of the served model.",
    )
    http_port: Port = Field(8000, description="Port for HTTP.")
    grpc_port: Port = Field(8001, description="Port for gRPC.")
    metrics_port: Port = Field(8002, description="Port for Prometheus metrics.")
    decoupled_mode: bool | None = Field(
        None,
        description="Whether ensemble and tensorrt_llm_bls, for clients of the older layout, both stream (true) or "
        "both answer plain inference (false); without it ensemble streams and tensorrt_llm_bls answers.",
    )


class EquivalenceConfig(Section):
    """What `trt-spec verify` has to show."""

    tau: float = Field(
        0.02, gt=0, lt=1, description="Largest total variation distance per token that still counts as equivalent."
    )
    alpha: float = Field(
        1.0e-4, gt=0, lt=0.5, description="Probability of a wrong verdict that is allowed, over the whole run."
    )


def _defaults_of_the_engine(speculation: Mapping[str, Any], build: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults that follow what an engine of TensorRT-LLM can do, for sections as written, before they are checked."""
    target, method = build.get("target"), _known_spelling(speculation.get("method", "none"))
    version = build.get("tensorrt_llm_version") or versions.DEFAULT_VERSION.get(str(target))
    if target == "torch" or not isinstance(version, str):
        return {}
    defaults: dict[str, Any] = {}
    with suppress(ConfigError):  # a version that is none: its own check says so
        offer = offers.find(method, target, versions.line_of(versions.parse(version)))
        if offer is not None and "acceptance" not in speculation:
            defaults["acceptance"] = offer.acceptance[0]
    if (method, target) == ("ngram", "llmapi"):  # its lookup has no shortest match
        ngram = speculation.get("ngram", {})
        if isinstance(ngram, Mapping):
            defaults["ngram"] = {"min_ngram": 1, **ngram}
    return defaults


class RunConfig(Section):
    """One run: a target, a way to speculate, an engine, a server, and what has to be proved of them."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]*$",
        max_length=128,
        description="Name of the run; names engines/<name> and triton_repo/<name>.",
    )
    target: TargetConfig = Field(description="The large model.")
    speculation: SpeculationConfig = Field(default_factory=SpeculationConfig, description="How tokens are drafted.")
    build: BuildConfig = Field(default_factory=BuildConfig, description="The engine and its limits.")
    serve: ServeConfig = Field(default_factory=ServeConfig, description="The served model and its ports.")
    equivalence: EquivalenceConfig = Field(default_factory=EquivalenceConfig, description="The equivalence check.")
    latency: LatencyConfig = Field(default_factory=LatencyConfig, description="The latency gate.")

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_engine(cls, values: Any) -> Any:
        """Defaults that need both sections, speculation and build."""
        if not isinstance(values, Mapping):
            return values
        speculation, build = values.get("speculation"), values.get("build")
        if not isinstance(build, Mapping) or not isinstance(speculation, Mapping):
            return values
        return {**values, "speculation": {**speculation, **_defaults_of_the_engine(speculation, build)}}

    @model_validator(mode="after")
    def _rules(self) -> RunConfig:
        problems = cross_field_problems(self)
        if problems:
            raise CrossFieldError(problems)
        return self


def json_schema() -> dict[str, Any]:
    """JSON Schema of the run config, as `trt-spec schema` prints it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunConfig.model_json_schema()}
