"""The model repository of the `tensorrt` target: TensorRT-LLM's inflight_batcher layout, typed and complete.

Clients of that layout find its names: `ensemble`, `tensorrt_llm_bls`, `preprocessing`, `tensorrt_llm` and
`postprocessing`, and `tensorrt_llm_draft` with draft_model. The tensors are those of the pinned version
(`data/inflight_batcher.json`). `tensorrt_llm` runs in Triton's own backend; the Python models around it are ours and
honour the same tensors, so that nothing has to be copied out of a container and text means the same as everywhere here.

A model that streams may send several responses, and Triton refuses unary inference of it and of an ensemble over it.
So `ensemble` streams, and `tensorrt_llm_bls` answers once. With draft_model nothing streams and both answer once.

Written from TensorRT-LLM's templates and sources; nothing of TensorRT-LLM was executed here.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from trt_spec.config import versions
from trt_spec.config.image import WORKSPACE
from trt_spec.config.schema import RunConfig
from trt_spec.methods import ACCEPTANCE
from trt_spec.triton import emitted, pbtxt
from trt_spec.triton.pbtxt import Batching, EnsembleStep, InstanceGroup, ModelConfig, Tensor

VERSION = "1"
MAX_BLS_INSTANCES = 8  # each holds an interpreter and a tokenizer, about 100 MB
CLIENT_MODELS = ("ensemble", "tensorrt_llm_bls")  # those that clients talk to in text
_SIDES = ("inputs", "outputs")
TARGET_ENGINE, DRAFT_ENGINE, TOKENIZER = "engine", "draft_engine", "tokenizer"  # below the engine directory
DRAFT_MODEL = "tensorrt_llm_draft"
# Guided decoding, which is not offered: the backend reads these without a default and loads no model that lacks one.
GUIDED_DECODING = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")
EXECUTOR_WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
DECODING_MODES = {"medusa": "medusa", "eagle": "eagle", "lookahead": "lookahead", "redrafter": "redrafter"}
# Types in the templates that depend on the engine; logits are float32 in every engine that is built here.
TEMPLATE_TYPES = {
    "{logits_datatype}": "FP32",
    "{encoder_input_features_data_type}": "FP16",
    "{prompt_embedding_table_data_type}": "FP16",
}
OLD_LINES = ("0.19", "0.20", "0.21", "1.0")  # min_length and random_seed; later min_tokens and seed
PYTHON_MODELS = {"preprocessing": "preprocessing", "postprocessing": "postprocessing", "tensorrt_llm_bls": "bls"}


def render(config: RunConfig, engine_dir: Path, repository_dir: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """The files of the repository, by relative path. Pure.

    Args:
        config: the run, of build target tensorrt.
        engine_dir, repository_dir: absolute; our own models find the first relative to the second, wherever both are.
        manifest: the engine's.
    """
    comment = (
        f"Written by trt-spec emit for the run {config.name} and TensorRT-LLM {config.build.tensorrt_llm_version}.\n"
        "Change the run config, not this file."
    )
    files = {}
    for model in models(config, engine_dir, repository_dir, manifest):
        files[f"{model.name}/config.pbtxt"] = pbtxt.dumps(model, comment)
        source = PYTHON_MODELS.get(model.name)
        # Triton wants a version directory of every model; git and archives keep none that is empty.
        files[f"{model.name}/{VERSION}/{'model.py' if source else '.keep'}"] = emitted.source(source) if source else ""
    return files


def models(
    config: RunConfig, engine_dir: Path, repository_dir: Path, manifest: Mapping[str, Any]
) -> tuple[ModelConfig, ...]:
    """Every model of the repository, in the order in which a request passes them, `ensemble` and BLS last."""
    inner = os.path.relpath(engine_dir, repository_dir)
    text = {"tokenizer_dir": f"{inner}/{TOKENIZER}", "manifest_digest": str(manifest["digest"])}
    size = {"vocab_size": str(manifest["engine"]["vocab_size"])}
    result = [_python_model(config, "preprocessing", {**text, **size, "add_special_tokens": "true"})]
    result.append(_engine_model(config, "tensorrt_llm", engine_dir / TARGET_ENGINE))
    if has_draft(config):
        result.append(_engine_model(config, DRAFT_MODEL, engine_dir / DRAFT_ENGINE))
    result.append(_python_model(config, "postprocessing", {**text, "skip_special_tokens": "true"}))
    result.append(_ensemble(config))
    capacity = str(config.build.max_batch_size + config.build.max_queue_size)
    serves_sampling = ACCEPTANCE[config.speculation.acceptance].serves_sampling
    bls = {"tensorrt_llm_model_name": "tensorrt_llm", "max_requests": capacity, **text}
    bls |= {"serves_sampling": _bool(serves_sampling), "engine_is_decoupled": _bool(not has_draft(config))}
    if has_draft(config):
        bls |= {"tensorrt_llm_draft_model_name": DRAFT_MODEL, "max_draft_len": str(config.speculation.max_draft_len)}
    # An instance of the BLS over a decoupled engine takes one request at a time, see its source; each is a process.
    num_instances = 1 if has_draft(config) else min(config.build.max_batch_size, MAX_BLS_INSTANCES)
    result.append(_python_model(config, "tensorrt_llm_bls", bls, num_instances))
    return tuple(result)


def has_draft(config: RunConfig) -> bool:
    """Whether drafts come from an engine of their own, through the BLS."""
    return config.speculation.method == "draft_model"


def served_path(engine_dir: Path) -> str:
    """An engine's path as the server's C++ backend sees it, which resolves none: below the container's workspace.

    A directory outside of the working directory is mounted under its own path.
    """
    relative = os.path.relpath(engine_dir, os.getcwd())
    return str(engine_dir) if relative.startswith("..") else f"{WORKSPACE}/{relative}"


# --- models ---


def _python_model(config: RunConfig, name: str, parameters: Mapping[str, str], num_instances: int = 1) -> ModelConfig:
    inputs, outputs = tensors(config, name)
    return ModelConfig(
        name=name,
        backend="python",
        inputs=inputs,
        outputs=outputs,
        max_batch_size=config.build.max_batch_size,
        parameters=parameters,
        instance_groups=(InstanceGroup(count=num_instances),),
    )


def _engine_model(config: RunConfig, name: str, engine_dir: Path) -> ModelConfig:
    inputs, outputs = tensors(config, "tensorrt_llm")
    return ModelConfig(
        name=name,
        backend="tensorrtllm",
        inputs=inputs,
        outputs=outputs,
        max_batch_size=config.build.max_batch_size,
        decoupled=not has_draft(config),
        batching=Batching((config.build.max_batch_size,), 0, config.build.max_queue_size),
        parameters=engine_parameters(config, served_path(engine_dir), is_draft=name == DRAFT_MODEL),
    )


def _ensemble(config: RunConfig) -> ModelConfig:
    inputs, outputs = tensors(config, "ensemble")
    steps = tuple(
        EnsembleStep(step["model"], step["inputs"], step["outputs"]) for step in _contract(config)["ensemble"]["steps"]
    )
    return ModelConfig(
        name="ensemble",
        backend="",
        inputs=inputs,
        outputs=outputs,
        max_batch_size=config.build.max_batch_size,
        instance_groups=(),
        steps=steps,
    )


def engine_parameters(config: RunConfig, engine_path: str, *, is_draft: bool = False) -> dict[str, str]:
    """Parameters of an engine's model: every one that has a meaning here, with its value, and guided decoding as empty.

    The others are left out: encoder, LoRA, windows, host cache, MPI ranks. Each of them the backend reads inside a
    `try`, with a default (inflight_batcher_llm/src/model_instance_state.cc).
    """
    build, has_two = config.build, has_draft(config)
    fraction = build.kv_cache_free_gpu_memory_fraction or 0.9
    parameters = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": engine_path,
        "max_beam_width": "1",  # all that speculation goes with
        "batch_scheduler_policy": "guaranteed_no_evict",
        "kv_cache_free_gpu_mem_fraction": f"{fraction / 2 if has_two else fraction:g}",
        "enable_kv_cache_reuse": _bool(build.enable_kv_cache_reuse),  # where it is not set it is on, with a warning
        "enable_chunked_context": "false",
        "exclude_input_in_output": "true",
        "normalize_log_probs": "true",
        "cancellation_check_period_ms": "100",
        "stats_check_period_ms": "100",
        "speculative_decoding_fast_logits": "false",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "executor_worker_path": EXECUTOR_WORKER,
        **dict.fromkeys(GUIDED_DECODING, ""),
    }
    return parameters if is_draft else parameters | _decoding_parameters(config)


def _decoding_parameters(config: RunConfig) -> dict[str, str]:
    """How the engine decodes; with external drafts and without speculation the backend finds out by itself."""
    spec = config.speculation
    mode = DECODING_MODES.get(spec.method)
    if mode is None:
        return {}
    parameters = {"decoding_mode": mode}
    if spec.method in ("medusa", "eagle"):  # where they are not set, a tree of 63 nodes
        parameters[f"{spec.method}_choices"] = choices_text(choices(config))
    if spec.lookahead is not None:
        shape = spec.lookahead
        sizes = (shape.window_size, shape.ngram_size, shape.verification_set_size)
        names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
        parameters |= {name: str(size) for name, size in zip(names, sizes, strict=True)}
    return parameters


def choices(config: RunConfig) -> tuple[tuple[int, ...], ...]:
    """The static tree of a run; a chain is the tree of the likeliest token at every depth."""
    tree, depth = config.speculation.tree, config.speculation.max_draft_len
    if tree is not None and tree.choices is not None:
        return tree.choices
    return tuple((0,) * length for length in range(1, depth + 1))


def choices_text(paths: Sequence[Sequence[int]]) -> str:
    """As the backend parses it: {0}, {0, 0}, {1}."""
    return ", ".join("{" + ", ".join(map(str, path)) + "}" for path in paths)


def _bool(value: bool | None) -> str:
    return "true" if value else "false"


# --- tensors ---


Templates: TypeAlias = "dict[str, dict[str, list[Any]]]"  # model to its inputs and outputs, or steps


@functools.cache
def _data() -> dict[str, Templates]:
    text = (resources.files("trt_spec.triton") / "data" / "inflight_batcher.json").read_text(encoding="utf-8")
    return json.loads(text)


def _contract(config: RunConfig) -> Templates:
    line = versions.line_of(versions.parse(str(config.build.tensorrt_llm_version)))
    return _data()["0.19" if line in OLD_LINES else "1.1"]


def tensors(config: RunConfig, model: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Inputs and outputs of a model in the pinned version."""
    found = _contract(config)[model]
    return tuple(map(_tensor, found["inputs"])), tuple(map(_tensor, found["outputs"]))


def client_tensors() -> tuple[dict[str, tuple[Any, tuple[int, ...]]], dict[str, tuple[Any, tuple[int, ...]]]]:
    """Inputs and outputs of `ensemble` and `tensorrt_llm_bls` in all versions together: name to type and dims."""
    models = [contract[name] for contract in (_data()["0.19"], _data()["1.1"]) for name in CLIENT_MODELS]
    found = [{tensor.name: tensor for model in models for tensor in map(_tensor, model[side])} for side in _SIDES]
    inputs, outputs = ({name: (item.data_type, item.dims) for name, item in side.items()} for side in found)
    return inputs, outputs


def _tensor(text: str) -> Tensor:
    name, data_type, dims, *flags = text.split()
    return Tensor(
        name,
        TEMPLATE_TYPES.get(data_type, data_type),  # type: ignore[arg-type]  # checked by Tensor
        tuple(map(int, dims.split(","))),
        optional="optional" in flags,
        ragged="ragged" in flags,
        is_scalar="scalar" in flags,
    )
