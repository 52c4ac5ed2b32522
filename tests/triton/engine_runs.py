"""Run configs for the tensorrt target, one per method, for any version of TensorRT-LLM, and what an engine says."""

from __future__ import annotations

from typing import Any

from trt_spec.config.schema import RunConfig

METHODS = ("none", "draft_model", "medusa", "eagle", "lookahead", "redrafter")
VERSIONS = ("0.19.0", "0.21.0", "1.0.0", "1.1.0", "1.2.0", "1.3.0rc20")
SPECULATION: dict[str, dict[str, Any]] = {
    "none": {},
    "draft_model": {"checkpoint": "checkpoints/draft", "max_draft_len": 4},
    "medusa": {"checkpoint": "checkpoints/medusa", "tree": {"choices": [[0], [1], [0, 0]]}},
    "eagle": {"checkpoint": "checkpoints/eagle", "max_draft_len": 3},
    "lookahead": {"lookahead": {"window_size": 5, "ngram_size": 4, "verification_set_size": 3}},
    "redrafter": {"checkpoint": "checkpoints/redrafter"},
}


def engine_run(method: str, version: str, **build: Any) -> RunConfig:
    """A run of one method; further keys go into its section build."""
    return RunConfig.model_validate(
        {
            "name": f"engine-{method}",
            "target": {"checkpoint": "checkpoints/target"},
            "speculation": {"method": method, **SPECULATION[method]},
            "build": {"target": "tensorrt", "tensorrt_llm_version": version, "max_batch_size": 8, **build},
        }
    )


def engine_manifest(config: RunConfig, vocab_size: int = 32000) -> dict[str, Any]:
    """What the repository reads of an engine's manifest."""
    return {
        "digest": "d" * 64,
        "engine": {"vocab_size": vocab_size},
        "config": config.model_dump(mode="json", exclude_none=True),
    }
