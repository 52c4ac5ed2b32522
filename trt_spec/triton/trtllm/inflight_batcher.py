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
from trt_spec.triton.pbtxt import EnsembleStep, ModelConfig, Tensor

MAX_BLS_INSTANCES = 8  # each holds an interpreter and a tokenizer, about 100 MB
CLIENT_MODELS = ("ensemble", "tensorrt_llm_bls")  # those that clients talk to in text
_SIDES = ("inputs", "outputs")
TARGET_ENGINE, DRAFT_ENGINE, TOKENIZER = "engine", "draft_engine", "tokenizer"  # below the engine directory
DRAFT_MODEL = "tensorrt_llm_draft"
# Guided decoding, which is not offered: the backend reads these without a default and loads no model that lacks one.
GUIDED_DECODING = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")
EXECUTOR_WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
DECODING_MODES = ("medusa", "eagle", "lookahead", "redrafter")  # methods that the backend has to be told of
# Types in the templates that depend on the engine; logits are float32 in every engine that is built here.
TEMPLATE_TYPES = {
    "{logits_datatype}": "FP32",
    "{encoder_input_features_data_type}": "FP16",
    "{prompt_embedding_table_data_type}": "FP16",
}
OLD_LINES = ("0.19", "0.20", "0.21", "1.0")  # min_length and random_seed; later min_tokens and seed
LINES = ("0.19", "1.1")  # as the data names the tensors of the old ones, and of the later


def models(
    config: RunConfig, engine_dir: Path, repository_dir: Path, manifest: Mapping[str, Any]
) -> tuple[ModelConfig, ...]:
    """Every model of the repository, in the order in which a request passes them, `ensemble` and BLS last. Pure.

    Args:
        config: the run, of build target tensorrt.
        engine_dir, repository_dir: absolute; our own models find the first relative to the second, wherever both are.
        manifest: the engine's.
    """
    build, drafts = config.build, has_draft(config)
    text = {
        "tokenizer_dir": f"{os.path.relpath(engine_dir, repository_dir)}/{TOKENIZER}",
        "manifest_digest": str(manifest["digest"]),
    }
    preprocessing = text | {"vocab_size": str(manifest["engine"]["vocab_size"]), "add_special_tokens": "true"}
    bls = {
        "tensorrt_llm_model_name": "tensorrt_llm",
        "max_requests": str(build.max_batch_size + build.max_queue_size),
        **text,
        "serves_sampling": _bool(ACCEPTANCE[config.speculation.acceptance].serves_sampling),
        "engine_is_decoupled": _bool(not drafts),
    }
    if drafts:
        bls |= {"tensorrt_llm_draft_model_name": DRAFT_MODEL, "max_draft_len": str(config.speculation.max_draft_len)}
    engines = {"tensorrt_llm": engine_parameters(config, served_path(engine_dir / TARGET_ENGINE))}
    if drafts:
        engines[DRAFT_MODEL] = engine_parameters(config, served_path(engine_dir / DRAFT_ENGINE), is_draft=True)
    model = functools.partial(_model, config)
    steps = tuple(
        EnsembleStep(step["model"], step["inputs"], step["outputs"]) for step in _contract(config)["ensemble"]["steps"]
    )
    return (
        model("preprocessing", module="preprocessing", parameters=preprocessing),
        *(
            model(
                name,
                "tensorrtllm",
                "tensorrt_llm",
                decoupled=not drafts,
                max_queue_size=build.max_queue_size,
                parameters=parameters,
            )
            for name, parameters in engines.items()
        ),
        model("postprocessing", module="postprocessing", parameters=text | {"skip_special_tokens": "true"}),
        model("ensemble", "", steps=steps),
        model(
            "tensorrt_llm_bls",
            module="bls",
            parameters=bls,
            # Over a decoupled engine an instance takes one request at a time, see its source; each is a process.
            num_instances=1 if drafts else min(build.max_batch_size, MAX_BLS_INSTANCES),
        ),
    )


def _model(config: RunConfig, name: str, backend: str = "python", of: str = "", **others: Any) -> ModelConfig:
    """A model with the tensors of that name, or of another one, in the pinned version."""
    contract = _contract(config)[of or name]
    inputs, outputs = (tuple(map(_tensor, contract[side])) for side in _SIDES)
    return ModelConfig(name, backend, inputs, outputs, config.build.max_batch_size, **others)


def has_draft(config: RunConfig) -> bool:
    """Whether drafts come from an engine of their own, through the BLS."""
    return config.speculation.method == "draft_model"


def served_path(engine_dir: Path) -> str:
    """An engine's path as the server's C++ backend sees it, which resolves none: below the container's workspace.

    A directory outside of the working directory is mounted under its own path.
    """
    relative = os.path.relpath(engine_dir, os.getcwd())
    return str(engine_dir) if relative.startswith("..") else f"{WORKSPACE}/{relative}"


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
    if spec.method not in DECODING_MODES:
        return {}
    parameters = {"decoding_mode": spec.method}
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
    return _data()[LINES[line not in OLD_LINES]]


def ensemble_maps() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """How `ensemble` connects its models, in all versions together.

    Returns:
        Its inputs that are inputs of `preprocessing`; outputs of that which are inputs of the engine, but for those of
        a decoder's own prompt, which text has none of; its inputs that are inputs of the engine.
    """
    steps = [step for line in LINES for step in _data()[line]["ensemble"]["steps"]]
    first, engine = (
        {name: to for step in steps if step["model"] == model for to, name in step["inputs"].items()}
        for model in ("preprocessing", "tensorrt_llm")
    )
    between = {name: engine.pop(inner) for name, inner in steps[0]["outputs"].items()}
    return first, {name: to for name, to in between.items() if not to.startswith("decoder_")}, engine


def client_tensors() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inputs and outputs of `ensemble` and `tensorrt_llm_bls` in all versions together, by name."""
    models = [_data()[line][name] for line in LINES for name in CLIENT_MODELS]
    inputs, outputs = ({t.name: t for model in models for t in map(_tensor, model[side])} for side in _SIDES)
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
