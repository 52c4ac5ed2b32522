"""The section `build` of the run config: which engine, for which version of TensorRT-LLM, and its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from trt_spec.config import versions
from trt_spec.config.section import For, Section
from trt_spec.methods import BUILD_TARGETS, LINES

BuildTarget = Literal[BUILD_TARGETS]
Quantization = Literal["none", "fp8", "fp8_rowwise", "int8_weight_only", "int4_weight_only"]
KvCacheDtype = Literal["auto", "fp8", "int8"]

DEFAULT_MAX_NUM_TOKENS, TORCH_MAX_NUM_TOKENS = 8192, 512
DEFAULT_VERSION_WORDS = ", ".join(f"{version} for {target}" for target, version in versions.DEFAULT_VERSION.items())


TrtllmOnly = For(("tensorrt", "llmapi"), "the torch target does not use TensorRT-LLM")
TensorrtOnly = For(("tensorrt",), "only tensorrt converts checkpoints")
LlmapiOnly = For(("llmapi",), "only llmapi has an LLM API")
TorchOnly = For(("torch",), "only the torch target chooses a device", unset="auto")


def _for_trtllm(default: Any, others: Any = None) -> Callable[[dict[str, Any]], Any]:
    """A default of the TensorRT-LLM targets, and that of the others: None for keys that they do not read."""
    return lambda section: default if LINES.get(section.get("target", "torch")) else others


class BuildConfig(Section):
    """What the engine is built for, and its limits."""

    target: BuildTarget = Field(
        "torch",
        description="Which engine: torch (the embedded runtime, CPU or CUDA), tensorrt (trtllm-build) or llmapi (the "
        "PyTorch backend of TensorRT-LLM).",
    )
    tensorrt_llm_version: Annotated[str | None, TrtllmOnly] = Field(
        default_factory=lambda section: versions.DEFAULT_VERSION.get(section.get("target")),
        pattern=r"^\d+\.\d+(\.\d+)?((a|b|rc|\.post|\.dev)\d+)*$",
        examples=["1.2.1", "1.3.0rc20"],
        description="Version of TensorRT-LLM that the commands are written for: for tensorrt 0.19.0 to 1.3.0rc20, for "
        "llmapi 1.0.0 or later; refused by torch. Default: " + DEFAULT_VERSION_WORDS + ".",
    )
    container: Annotated[str | None, TrtllmOnly] = Field(
        None,
        min_length=1,
        pattern=r"^\S+$",
        description="Container image to build and serve in. Default: the one of NGC that has exactly "
        "tensorrt_llm_version. For tensorrt and llmapi only.",
    )
    examples_dir: Annotated[str | None, TensorrtOnly] = Field(
        None,
        min_length=1,
        description="Directory of TensorRT-LLM's examples, which hold the converters, in the container. Default: where "
        "the image keeps it. For tensorrt only.",
    )
    tensor_parallel_size: Annotated[int | None, TrtllmOnly] = Field(
        default_factory=_for_trtllm(1),
        ge=1,
        le=64,
        description="GPUs that share each layer. For tensorrt and llmapi only, 1 where not given.",
    )
    pipeline_parallel_size: Annotated[int | None, TrtllmOnly] = Field(
        default_factory=_for_trtllm(1),
        ge=1,
        le=64,
        description="GPUs that the layers are divided over. For tensorrt and llmapi only, 1 where not given.",
    )
    quantization: Annotated[Quantization | None, TrtllmOnly] = Field(
        default_factory=_for_trtllm("none"),
        description="How the converter stores the target's weights. fp8 calibrates with examples/quantization. For "
        "tensorrt, none where not given; for llmapi the checkpoint itself decides, and only none is taken.",
    )
    calibration_dataset: Annotated[str | None, TensorrtOnly] = Field(
        None,
        min_length=1,
        description="Dataset that quantization fp8 and kv_cache_dtype int8 calibrate on: a directory, or a name on the "
        "Hugging Face hub. Default: the converter's own, which it downloads. For tensorrt only.",
    )
    kv_cache_dtype: Annotated[KvCacheDtype | None, TrtllmOnly] = Field(
        default_factory=_for_trtllm("auto"),
        description="Type of the KV cache; auto is target.dtype. For tensorrt and llmapi only, auto where not given.",
    )
    kv_cache_free_gpu_memory_fraction: Annotated[float | None, TrtllmOnly] = Field(
        default_factory=_for_trtllm(0.9),
        gt=0,
        lt=1,
        description="Part of the GPU memory left after the weights that the KV cache takes; the two engines of "
        "draft_model on tensorrt get half of it each. For tensorrt and llmapi only, 0.9 where not given.",
    )
    enable_kv_cache_reuse: Annotated[bool | None, TrtllmOnly] = Field(
        default_factory=_for_trtllm(True),
        description="Share the KV cache of equal prefixes between requests. For tensorrt and llmapi only, true where "
        "not given.",
    )
    llm_args: Annotated[dict[str, Any] | None, LlmapiOnly] = Field(
        None,
        min_length=1,
        description="Further arguments of tensorrt_llm.LLM, such as enable_attention_dp: true, or "
        "kv_cache_config: {host_cache_size: 8589934592}. Each has to exist in the pinned version; what another key of "
        "this file decides is refused here. For llmapi only.",
    )
    max_batch_size: int = Field(16, ge=1, le=1024, description="Most sequences in one step.")
    max_seq_len: int = Field(
        2048,
        ge=8,
        le=1_048_576,
        description="Most tokens of one sequence, prompt and output together; sizes the KV cache.",
    )
    max_num_tokens: int = Field(
        default_factory=_for_trtllm(DEFAULT_MAX_NUM_TOKENS, TORCH_MAX_NUM_TOKENS),
        ge=1,
        le=1_048_576,
        description="Most tokens of one step over all sequences. Long prompts are read in chunks that fit into it; a "
        "tensorrt engine takes no prompts longer than it. Default: "
        f"{TORCH_MAX_NUM_TOKENS} for torch, {DEFAULT_MAX_NUM_TOKENS} for the others.",
    )
    max_queue_size: int = Field(
        256, ge=0, le=1_000_000, description="Most requests that wait for a slot; beyond it requests are refused."
    )
    device: Annotated[str, TorchOnly] = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="Where the torch engine runs: auto (CUDA where there is one), cpu, cuda or cuda:N.",
    )
