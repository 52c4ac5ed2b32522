"""What a plan for `tensorrt` says beside its steps, and the layout of the engine directory. Pure."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from trt_spec.config.schema import RunConfig
from trt_spec.engines import container
from trt_spec.engines.plan import PlannedFile
from trt_spec.engines.sources import Sources
from trt_spec.engines.tensorrt import flags

# Layout of engines/<run>/.
ENGINE_DIRS = {"target": "engine", "draft": "draft_engine"}
TOKENIZER_DIR = "tokenizer"  # of the target: text in and out, chat template, end-of-text ids
LOG_DIR = "logs"
TOKENIZER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
NORMALISED_METHODS = ("medusa", "eagle")  # their converters read one layout only, of heads and target


def work_dir_of(config: RunConfig, engines_dir: str | Path) -> str:
    """Where a build keeps its parts until the engine is in place, beside it; a stopped build goes on from there."""
    return str(PurePosixPath(str(engines_dir)) / f".{config.name}.work")


def engine_files(config: RunConfig) -> tuple[PlannedFile, ...]:
    """What is put together of what the tools wrote."""
    roles = ["target", *(["draft"] if config.speculation.method == "draft_model" else [])]
    names = ["config.json", *(f"rank{rank}.engine" for rank in range(flags.world_size(config)))]
    return (
        *(PlannedFile(f"{ENGINE_DIRS[role]}/{name}", "trtllm-build") for role in roles for name in names),
        PlannedFile(f"{TOKENIZER_DIR}/", f"tokenizer and chat template of {config.target.checkpoint}"),
        PlannedFile(f"{LOG_DIR}/", "what each tool printed"),
    )


def notes(config: RunConfig, sources: Sources) -> list[str]:
    """What a plan assumes, and what is to be known of the engine."""
    build, method, found = config.build, config.speculation.method, []
    if sources["target"].listing.model_type is None:
        found.append("the target's architecture is not known; the converter for llama is assumed")
    if method == "medusa" and "draft" in sources and sources["draft"].listing.num_heads is None:
        found.append("the number of Medusa heads is not known; as many as the depth of the drafts are assumed")
    if method in NORMALISED_METHODS and any(source.listing.is_assumed for source in sources.values()):
        found.append("a checkpoint of another layout than the converter's is laid out anew in a step before it")
    if build.calibration_dataset is None and (build.quantization == "fp8" or build.kv_cache_dtype == "int8"):
        found.append("calibration downloads the converter's own dataset; build.calibration_dataset names another")
    if (limit := flags.max_input_len(config)) < build.max_seq_len - 1:
        found.append(f"prompts are read in one step, so they are at most {limit} tokens (build.max_num_tokens)")
    if method == "draft_model" and build.quantization != "none":
        found.append(f"the draft stays in {config.target.dtype}; build.quantization is for the target")
    if not container.container_of(config).has_tritonserver and build.container is None:
        found.append(
            f"no Triton image has exactly TensorRT-LLM {build.tensorrt_llm_version}: the engine is built in the "
            "release image, and Triton has to be added to serve it (1.2.1 has an image with both)"
        )
    found += container.mount_problems(config)
    return [*found, "the commands are those of TensorRT-LLM's sources for this version; they were not run here"]
