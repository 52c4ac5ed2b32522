"""The run config: one file per run, frozen, closed (an unknown key is an error), with its bounds in the types.

Torch-free. `loader` reads files into these models and turns what pydantic says into messages with line numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from pydantic import Field, model_validator

from trt_spec.config import rules, versions
from trt_spec.config.build_config import BuildConfig
from trt_spec.config.latency_config import LatencyConfig
from trt_spec.config.section import Section
from trt_spec.config.serve_config import ServeConfig
from trt_spec.config.speculation import SpeculationConfig
from trt_spec.errors import ConfigError
from trt_spec.methods import METHODS, spelled

Dtype = Literal["bfloat16", "float32", "float16"]


class TargetConfig(Section):
    """The large model whose probabilities every served token follows."""

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
    target, method = build.get("target"), METHODS.get(spelled(str(speculation.get("method", "none"))) or "")
    version = build.get("tensorrt_llm_version") or versions.DEFAULT_VERSION.get(str(target))
    if method is None or target == "torch" or not isinstance(version, str):
        return {}
    defaults: dict[str, Any] = {}
    with suppress(ConfigError):  # a version that is none: its own check says so
        offer = method.offer(target, versions.line_of(version))
        if offer is not None and "acceptance" not in speculation:
            defaults["acceptance"] = offer.acceptance[0]
    if (method.name, target) == ("ngram", "llmapi"):  # its lookup has no shortest match
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
        rules.check(self.speculation, self.build, self.serve, self.latency)
        return self


def json_schema() -> dict[str, Any]:
    """JSON Schema of the run config, as `trt-spec schema` prints it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunConfig.model_json_schema()}
