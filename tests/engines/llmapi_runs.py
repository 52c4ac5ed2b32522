"""Run configs for the llmapi target, one per method, for any version of TensorRT-LLM."""

from __future__ import annotations

from typing import Any

from trt_spec.config.schema import RunConfig

METHODS = ("none", "draft_model", "ngram", "eagle3", "mtp")
VERSIONS = ("1.0.0", "1.1.0", "1.2.0", "1.3.0rc20", "1.3.0rc29", "1.4.0rc4")
SPECULATION: dict[str, dict[str, Any]] = {
    "none": {},
    "draft_model": {"checkpoint": "checkpoints/draft", "max_draft_len": 4},
    "ngram": {"max_draft_len": 4, "ngram": {"max_ngram": 3}},
    "eagle3": {"checkpoint": "checkpoints/eagle3", "max_draft_len": 3},
    "mtp": {"max_draft_len": 2},
}


def llmapi_run(method: str, version: str, *, build: dict[str, Any] | None = None, **speculation: Any) -> RunConfig:
    """A run of one method; further keys go into its sections."""
    return RunConfig.model_validate(
        {
            "name": f"llmapi-{method}",
            "target": {"checkpoint": "checkpoints/target"},
            "speculation": {"method": method, **SPECULATION[method], **speculation},
            "build": {
                "target": "llmapi",
                "tensorrt_llm_version": version,
                "max_batch_size": 32,
                "max_seq_len": 16384,
                "tensor_parallel_size": 2,
                **(build or {}),
            },
        }
    )
