"""The run config: one file per run, frozen, closed (an unknown key is an error), with its bounds in the types.

Torch-free. `loader` reads files into these models and turns what pydantic says into messages with line numbers.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from trt_spec.config.rules import CrossFieldError, cross_field_problems
from trt_spec.errors import UsageError

Method = Literal["none", "draft_model", "ngram", "medusa", "eagle", "eagle3", "mtp"]
Acceptance = Literal["greedy", "rejection", "exact_match", "block", "typical"]
Siblings = Literal["top", "without_replacement", "with_replacement"]
Dtype = Literal["bfloat16", "float32", "float16"]
BuildTarget = Literal["torch", "tensorrt", "llmapi"]

METHODS: tuple[str, ...] = get_args(Method)
ACCEPTANCE_RULES: tuple[str, ...] = get_args(Acceptance)
DTYPES: tuple[str, ...] = get_args(Dtype)
BUILD_TARGETS: tuple[str, ...] = get_args(BuildTarget)

MAX_DRAFT_LEN_LIMIT = 64
DEFAULT_MAX_DRAFT_LEN = {"none": 0, "draft_model": 4, "ngram": 8, "medusa": 4, "eagle": 5, "eagle3": 5, "mtp": 1}

_METHOD_SPELLINGS = {
    **{method.replace("_", ""): method for method in METHODS},
    **dict.fromkeys(("off", "plain", "no"), "none"),
    **dict.fromkeys(("draft", "drafttarget", "draftmodels"), "draft_model"),
    **dict.fromkeys(("ngrams", "promptlookup"), "ngram"),
    **dict.fromkeys(("eagle1", "eagle2"), "eagle"),
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


class _Section(BaseModel):
    """Strict: "5" is not 5 and true is not 1. Files are written by people; a silent cast hides a slip."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Port = Annotated[int, Field(ge=1, le=65535)]
Concurrency = Annotated[int, Field(ge=1, le=4096)]


class TargetConfig(_Section):
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


class NgramConfig(_Section):
    """Lookup of the last tokens in the prompt and the output so far."""

    max_ngram: int = Field(4, ge=1, le=32, description="Longest run of last tokens that is looked up, in tokens.")
    min_ngram: int = Field(
        2, ge=1, le=32, description="Shortest run that counts as a match, in tokens; below it nothing is drafted."
    )


# Files give lists; the numbers in them stay strict.
Choice = Annotated[tuple[Annotated[int, Field(ge=0, le=63)], ...], Field(strict=False)]


class NgramFirstConfig(_Section):
    """Lookup before a neural drafter: where the text repeats itself, what followed last time is drafted."""

    min_ngram: int = Field(
        4, ge=1, le=32, description="Shortest run of last tokens, found again, that takes precedence over the drafter."
    )
    max_ngram: int = Field(8, ge=1, le=32, description="Longest run of last tokens that is looked up, in tokens.")


class TreeConfig(_Section):
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


def _default_max_draft_len(section: dict[str, Any]) -> int:
    tree = section.get("tree")
    if tree is not None and tree.choices:
        return max(len(choice) for choice in tree.choices)
    return DEFAULT_MAX_DRAFT_LEN.get(section.get("method", "none"), 0)


def _default_ngram(section: dict[str, Any]) -> NgramConfig | None:
    return NgramConfig() if section.get("method") == "ngram" else None


class SpeculationConfig(_Section):
    """How draft tokens are proposed and accepted."""

    method: Annotated[Method, BeforeValidator(_known_spelling)] = Field(
        "none",
        description="Who proposes: nobody (none), a small model (draft_model), lookup in the text so far (ngram), "
        "heads on the target (medusa), a feature-level draft layer (eagle, eagle3), or the target's own prediction "
        "layers (mtp).",
    )
    checkpoint: str | None = Field(
        None,
        min_length=1,
        description="Directory of the draft model or heads. Required by draft_model, medusa, eagle and eagle3; refused "
        "by the others. A relative path is taken from the working directory.",
    )
    tree: TreeConfig | None = Field(
        None, description="Shape of the drafts of draft_model, medusa, eagle, eagle3 and mtp; without it a chain."
    )
    max_draft_len: int = Field(
        default_factory=_default_max_draft_len,
        ge=0,
        le=MAX_DRAFT_LEN_LIMIT,
        description="Most draft tokens in a row that one step verifies, the depth of a tree. Default: the depth of "
        "tree.choices, else by method: "
        + ", ".join(f"{method} {length}" for method, length in DEFAULT_MAX_DRAFT_LEN.items())
        + ".",
    )
    acceptance: Acceptance = Field(
        "rejection",
        description="How a draft token is judged. rejection accepts with probability min(1, p/q) and recovers from the "
        "residual; exact_match samples the target and compares; block judges the prefixes of a chain together; greedy "
        "compares with the target's best token and serves requests at temperature 0 only: these four are lossless. "
        "typical accepts whatever is likely enough and is lossy.",
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
        description="Shorten and lengthen each request's drafts by what was accepted of its last ones, up to "
        "max_draft_len.",
    )

    @property
    def max_total_draft_tokens(self) -> int:
        """Nodes of the largest draft that one step verifies."""
        if self.tree is None:
            return self.max_draft_len
        return len(self.tree.choices) if self.tree.choices else self.tree.max_total_draft_tokens or 0


class BuildConfig(_Section):
    """What the engine is built for, and its limits."""

    target: BuildTarget = Field(
        "torch",
        description="Which engine: torch (the embedded runtime, CPU or CUDA), tensorrt (trtllm-build) or llmapi (the "
        "PyTorch backend of TensorRT-LLM).",
    )
    tensorrt_llm_version: str | None = Field(
        None,
        pattern=r"^\d+\.\d+(\.\d+)?((a|b|rc|\.post|\.dev)\d+)*$",
        description="Version of TensorRT-LLM that the commands are written for, such as 1.2.1. For tensorrt and llmapi "
        "only.",
    )
    max_batch_size: int = Field(16, ge=1, le=1024, description="Most sequences in one step.")
    max_seq_len: int = Field(
        2048,
        ge=8,
        le=1_048_576,
        description="Most tokens of one sequence, prompt and output together; sizes the KV cache.",
    )
    max_num_tokens: int = Field(
        512,
        ge=1,
        le=1_048_576,
        description="Most tokens of one step over all sequences. Long prompts are read in chunks that fit into it.",
    )
    max_queue_size: int = Field(
        256, ge=0, le=1_000_000, description="Most requests that wait for a slot; beyond it requests are refused."
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="Where the torch engine runs: auto (CUDA where there is one), cpu, cuda or cuda:N.",
    )


class ServeConfig(_Section):
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


class EquivalenceConfig(_Section):
    """What `trt-spec verify` has to show."""

    tau: float = Field(
        0.02, gt=0, lt=1, description="Largest total variation distance per token that still counts as equivalent."
    )
    alpha: float = Field(
        1.0e-4, gt=0, lt=0.5, description="Probability of a wrong verdict that is allowed, over the whole run."
    )


class LatencyConfig(_Section):
    """What the latency gate will measure and demand. Checked, and read by no command yet."""

    concurrencies: tuple[Concurrency, ...] = Field(
        (1, 2, 4, 8, 16),
        min_length=1,
        strict=False,
        description="Numbers of concurrent requests to measure at, rising. No command reads it yet.",
    )
    min_speedup: dict[Annotated[int, Field(strict=False, ge=1)], Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Concurrency to least output-token throughput with speculation, as a multiple of the same engine "
        "without. Empty: measured, not judged. No command reads it yet.",
    )


class RunConfig(_Section):
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

    @model_validator(mode="after")
    def _rules(self) -> RunConfig:
        problems = cross_field_problems(self)
        if problems:
            raise CrossFieldError(problems)
        return self


def json_schema() -> dict[str, Any]:
    """JSON Schema of the run config, as `trt-spec schema` prints it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunConfig.model_json_schema()}
