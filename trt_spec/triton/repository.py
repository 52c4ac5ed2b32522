"""The Triton model repository of an engine: what is in it, writing it whole or not at all, and checking it at load.

The configuration of a model with an engine repeats the engine's limits and the digest of its manifest; the model
compares them before it serves, so that a rebuilt, moved or foreign engine is a load error and not a surprise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trt_spec.config.schema import RunConfig
from trt_spec.errors import CheckpointError, ConfigError
from trt_spec.triton import emitted, pbtxt
from trt_spec.triton.compat import tensors as compat_tensors
from trt_spec.triton.contract import INPUTS, OUTPUTS, unary_name
from trt_spec.triton.pbtxt import ModelConfig
from trt_spec.triton.trtllm import inflight_batcher
from trt_spec.triton.trtllm.inflight_batcher import CLIENT_MODELS

DIRECTORIES = ("engine_dir", "tokenizer_dir")  # parameters that may be relative to the repository
VERSION = "1"  # of the served models; one engine, one version
MANIFEST = "manifest.json"
# Keys of manifest["engine"] that the configuration repeats.
CHECKED_LIMITS = ("method", "acceptance", "dtype", "max_draft_len", "max_batch_size", "max_seq_len", "vocab_size")
LIMITS = {"torch": CHECKED_LIMITS, "llmapi": (*CHECKED_LIMITS, "tensorrt_llm_version", "drafter_placement")}
STREAMING_MODULE = {"torch": "streaming", "llmapi": "llmapi"}


def emit(config: RunConfig, engine_dir: Path, repo_root: Path) -> Path:
    """Writes the model repository of a built engine: `repo_root/<run>`, which `tritonserver --model-repository` takes.

    Raises:
        CheckpointError: there is no engine there, or its manifest is damaged.
        ConfigError: the engine was built from another config.
        MachineError: the directory cannot be written; the repository that was there is untouched.
    """
    target = Path(repo_root) / config.name
    places = [Path(os.path.abspath(place)) for place in (engine_dir, target)]
    files = render(config, places[0], read_manifest(engine_dir), places[1])
    emitted.write(target, files, "the model repository")
    return target


def render(
    config: RunConfig, engine_dir: Path, manifest: Mapping[str, Any], repository_dir: Path = Path("/triton_repo")
) -> dict[str, str]:
    """The files of the repository, by relative path. Pure.

    Args:
        engine_dir, repository_dir: absolute. Engines of TensorRT-LLM are built on one machine and served in a
            container, so their place is written relative to the repository.
        manifest: the engine's.

    Raises:
        ConfigError: the engine was built from another config.
        CheckpointError: the manifest lacks what the server has to check.
    """
    check_same_run(config, manifest)
    if config.build.target == "tensorrt":
        _digest(manifest), _limit(manifest, "vocab_size")  # what it repeats has to be there
        models = inflight_batcher.models(config, engine_dir, repository_dir, manifest)
    else:
        models = _models(config, engine_dir, repository_dir, manifest)
    by = f" and TensorRT-LLM {config.build.tensorrt_llm_version}" if config.build.target != "torch" else ""
    comment = f"Written by trt-spec emit for the run {config.name}{by}.\nChange the run config, not this file."
    files = {}
    for model in models:
        files[f"{model.name}/config.pbtxt"] = pbtxt.dumps(model, comment)
        # Triton wants a version directory of every model; git and archives keep none that is empty.
        name, text = ("model.py", emitted.source(model.module)) if model.module else (".keep", "")
        files[f"{model.name}/{VERSION}/{name}"] = text
    return files


def _models(
    config: RunConfig, engine_dir: Path, repository_dir: Path, manifest: Mapping[str, Any]
) -> tuple[ModelConfig, ...]:
    """The models of the targets torch and llmapi: the streaming one, its alias, those for inflight_batcher's clients.

    Triton refuses unary inference on a decoupled model: unless the config says otherwise, `ensemble` streams and
    `tensorrt_llm_bls` answers once, as on the tensorrt target. Both have the batch axis that clients of that layout
    send, for one prompt a request; the engine batches.
    """
    target, name, mode = config.build.target, config.serve.model_name, config.serve.decoupled_mode
    if name in CLIENT_MODELS:
        raise ConfigError(
            "the served model has the name of a model for clients of inflight_batcher",
            where="serve.model_name",
            got=name,
            expected=f"none of {', '.join(CLIENT_MODELS)}",
            remedy="leave it out: the streaming model is then tensorrt_llm, and the others are there too",
        )
    place = engine_dir if target == "torch" else os.path.relpath(engine_dir, repository_dir)
    digest = {"manifest_digest": _digest(manifest)}
    streaming = {"engine_dir": str(place), "run": config.name, "model_name": name} | digest
    streaming |= {key: str(_limit(manifest, key)) for key in LIMITS[target]}
    forwarding = {"streaming_model": name, "tokenizer_dir": f"{place}/target"} | digest
    contract = ("python", INPUTS, OUTPUTS)
    return (
        ModelConfig(name, *contract, decoupled=True, parameters=streaming, module=STREAMING_MODULE[target]),
        ModelConfig(unary_name(name), *contract, parameters=forwarding, module="unary"),
        *(
            ModelConfig(
                client_model,
                "python",
                compat_tensors.INPUTS,
                compat_tensors.OUTPUTS,
                max_batch_size=1,
                decoupled=client_model == "ensemble" if mode is None else mode,
                parameters=forwarding,
                module="inflight_batcher",
            )
            for client_model in CLIENT_MODELS
        ),
    )


def _limit(manifest: Mapping[str, Any], key: str) -> Any:
    try:
        return manifest["engine"][key]
    except (KeyError, TypeError):
        raise CheckpointError(
            f"the engine's manifest does not say its {key}", where=MANIFEST, remedy="build the engine again"
        ) from None


def _digest(manifest: Mapping[str, Any]) -> str:
    digest = manifest.get("digest")
    if not isinstance(digest, str) or not digest:
        raise CheckpointError("the engine's manifest has no digest", where=MANIFEST, remedy="build the engine again")
    return digest


def check_same_run(config: RunConfig, manifest: Mapping[str, Any]) -> None:
    """Refuses a config that the engine was not built from; ports, names and gates are not in it and may differ.

    Raises:
        ConfigError: names the sections that differ.
    """
    built, wanted = manifest.get("config") or {}, config.model_dump(mode="json", exclude_none=True)
    differing = [key for key in ("target", "speculation", "build") if built.get(key) != wanted.get(key)]
    if differing:
        raise ConfigError(
            "the engine was built from another config",
            where=", ".join(differing),
            got={key: wanted.get(key) for key in differing},
            expected={key: built.get(key) for key in differing},
            remedy=f"build it again: trt-spec build {config.name}",
        )


def read_manifest(engine_dir: Path) -> dict[str, Any]:
    """The manifest of an engine; raises CheckpointError where there is none, or it is no JSON object."""
    path = Path(engine_dir) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        reason = "no JSON object"
    except (OSError, ValueError) as error:
        manifest, reason = None, error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
    if not isinstance(manifest, dict):
        raise CheckpointError("there is no usable engine", where=str(path), got=reason, remedy="build it first")
    return manifest


# --- at load, inside the server ---


def parameters_of(args: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a model's config.pbtxt; directories that are relative to the repository are made absolute.

    Args:
        args: as Triton hands them to `initialize`; `model_repository` is the model's own directory.
    """
    given = {key: value["string_value"] for key, value in json.loads(args["model_config"])["parameters"].items()}
    repository = os.path.dirname(os.path.abspath(args["model_repository"]))
    places = {key: os.path.normpath(os.path.join(repository, given[key])) for key in DIRECTORIES if key in given}
    return given | places


def checked_parameters(args: Mapping[str, str], target: str) -> dict[str, str]:
    """The parameters of a model that hosts an engine, once they were found to be its manifest's and this contract's.

    Args:
        args: as Triton hands them to `initialize`.
        target: of the engine, torch or llmapi.

    Raises:
        ConfigError, CheckpointError: they do not belong together; lists every difference.
    """
    model_config, parameters, limits = json.loads(args["model_config"]), parameters_of(args), LIMITS[target]
    missing = [key for key in ("engine_dir", "model_name", "manifest_digest", *limits) if key not in parameters]
    if missing:
        raise ConfigError(
            "parameters are missing", where="config.pbtxt", got=", ".join(missing), remedy="trt-spec emit"
        )
    manifest = read_manifest(Path(parameters["engine_dir"]))
    found = {key: str(_limit(manifest, key)) for key in limits}
    found |= {"manifest_digest": _digest(manifest), "model_name": str(model_config.get("name"))}
    wrong = []
    for side, tensors in (("input", INPUTS), ("output", OUTPUTS)):
        declared = {item["name"]: item["data_type"].removeprefix("TYPE_") for item in model_config.get(side, ())}
        if declared != {tensor.name: tensor.data_type for tensor in tensors}:
            wrong.append(f"the declared {side}s are not those of this version of trt_spec")
    _compare(parameters, found, "found", wrong)
    return parameters


def check_digest(parameters: Mapping[str, str]) -> None:
    """The same for a model with a tokenizer alone, which repeats the digest of the engine's manifest."""
    engine_dir = Path(parameters["tokenizer_dir"]).parent
    found = {"manifest_digest": _digest(read_manifest(engine_dir))}
    _compare({**parameters, "engine_dir": str(engine_dir)}, found, "found")


def check_loaded(parameters: Mapping[str, str], engine: Any) -> None:
    """Compares the configuration with the engine that was loaded, as `checked_parameters` does with its manifest."""
    found = {key: getattr(engine.limits, key) for key in ("max_draft_len", "max_batch_size", "max_seq_len")}
    _compare(parameters, {**found, "vocab_size": engine.target.vocab_size}, "the loaded engine has")


def _compare(
    parameters: Mapping[str, str], found: Mapping[str, object], has: str, differences: Sequence[str] = ()
) -> None:
    """Raises ConfigError with every difference, where there is one."""
    wrong = [
        f"{key}: the repository says {parameters[key]}, {has} {value}"
        for key, value in found.items()
        if parameters[key] != str(value)
    ]
    if wrong or differences:
        raise ConfigError(
            "the model repository and the engine do not belong together",
            where=parameters["engine_dir"],
            details=[*wrong, *differences],
            remedy=f"emit the repository again: trt-spec emit {parameters.get('run', '<run>')}",
        )
