"""What a build for `tensorrt` would do: which converter, which trtllm-build, with which flags, in which order. Pure.

The build carries out the same steps, so what is shown is what is done. Nothing of TensorRT-LLM was run here: the
commands are those of its sources, by version.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from trt_spec.checkpoints.trtllm.conversion import Conversion
from trt_spec.config.schema import RunConfig
from trt_spec.engines import container
from trt_spec.engines.plan import BuildPlan, Listing, PlannedFile, Step, assumed_notes, commands
from trt_spec.engines.tensorrt import engine_config, flags
from trt_spec.engines.tensorrt.flags import Paths
from trt_spec.engines.tensorrt.steps import tool_steps

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


def examples_dir_of(config: RunConfig) -> str:
    """Where TensorRT-LLM's examples are in the container."""
    return config.build.examples_dir or container.container_of(config).examples_dir


def plan(
    config: RunConfig,
    target: Listing,
    draft: Listing | None = None,
    *,
    conversions: Mapping[str, Conversion] | None = None,
    engines_dir: str = "engines",
    run: str = "",
) -> BuildPlan:
    """The steps, files and commands of a build. Pure.

    Args:
        config: the run, which `capabilities.check` has passed.
        target: the target checkpoint's file names.
        draft: the draft checkpoint's, where the method has one.
        conversions: by role, what is laid out anew before the converter reads it.
        engines_dir: where engines are kept.
        run: how the user named the run on the command line; the commands repeat it.

    Raises:
        CapabilityError: the pinned version, or its converters, do not have what the run asks for.
    """
    engine_dir = str(PurePosixPath(engines_dir) / config.name)
    paths = Paths(examples_dir_of(config), work_dir_of(config, engines_dir))
    steps = [Step(_inspect_words(config, draft))]
    steps += [
        Step(f"lay the {role} out as the converter reads it, in {paths.work}/{role}: {'; '.join(conversion.changes)}")
        for role, conversion in (conversions or {}).items()
        if conversion.is_needed
    ]
    tools = tool_steps(config, target, draft, paths, conversions)
    steps += [Step(f"{tool.what}; compare its config.json with the run config", command=tool.command) for tool in tools]
    steps.append(Step("put the engines, the tokenizer and the logs together", _files(config)))
    steps.append(Step("write the resolved config", (PlannedFile("resolved.yaml", "defaults included"),)))
    steps.append(Step("write the manifest", (PlannedFile("manifest.json", "digests, versions, checks"),)))
    steps.append(Step(f"move everything to {engine_dir} in one rename, and remove {paths.work}"))
    words = commands(run or config.name, config.build.target)
    return BuildPlan(
        config.name,
        config.build.target,
        engine_dir,
        tuple(steps),
        words,
        _notes(config, target, draft),
        container=container.container_of(config).image,
        container_command=container.docker_command(config, words[0]),
        sizes=engine_config.sizes(config),
    )


def _inspect_words(config: RunConfig, draft: Listing | None) -> str:
    if draft is None:
        return "inspect the target"
    if config.speculation.method == "redrafter":
        return "inspect the target; the ReDrafter is read by its converter alone"
    return "inspect the target and the draft, and check that they fit"


def _files(config: RunConfig) -> tuple[PlannedFile, ...]:
    roles = ["target", *(["draft"] if config.speculation.method == "draft_model" else [])]
    files = []
    for role in roles:
        files.append(PlannedFile(f"{ENGINE_DIRS[role]}/config.json", "trtllm-build"))
        for rank in range(flags.world_size(config)):
            files.append(PlannedFile(f"{ENGINE_DIRS[role]}/rank{rank}.engine", "trtllm-build"))
    files.append(PlannedFile(f"{TOKENIZER_DIR}/", f"tokenizer and chat template of {config.target.checkpoint}"))
    return (*files, PlannedFile(f"{LOG_DIR}/", "what each tool printed"))


def _notes(config: RunConfig, target: Listing, draft: Listing | None) -> tuple[str, ...]:
    build = config.build
    assumed = assumed_notes(target, draft)
    notes = list(assumed)
    if target.model_type is None:
        notes.append("the target's architecture is not known; the converter for llama is assumed")
    if config.speculation.method == "medusa" and draft is not None and draft.num_heads is None:
        notes.append("the number of Medusa heads is not known; as many as the depth of the drafts are assumed")
    if config.speculation.method in NORMALISED_METHODS and assumed:
        notes.append("a checkpoint of another layout than the converter's is laid out anew in a step before it")
    if build.calibration_dataset is None and (build.quantization == "fp8" or build.kv_cache_dtype == "int8"):
        notes.append("calibration downloads the converter's own dataset; build.calibration_dataset names another")
    if flags.max_input_len(config) < build.max_seq_len - 1:
        limit = flags.max_input_len(config)
        notes.append(f"prompts are read in one step, so they are at most {limit} tokens (build.max_num_tokens)")
    if config.speculation.method == "draft_model" and build.quantization != "none":
        notes.append(f"the draft stays in {config.target.dtype}; build.quantization is for the target")
    if not container.container_of(config).has_tritonserver and build.container is None:
        notes.append(
            f"no Triton image has exactly TensorRT-LLM {build.tensorrt_llm_version}: the engine is built in the "
            "release image, and Triton has to be added to serve it (1.2.1 has an image with both)"
        )
    paths = (config.target.checkpoint, config.speculation.checkpoint)
    notes += [problem for path in filter(None, paths) if (problem := container.mount_problem(path))]
    notes.append("the commands are those of TensorRT-LLM's sources for this version; they were not run here")
    return tuple(notes)
