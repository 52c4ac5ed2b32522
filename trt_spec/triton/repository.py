"""The Triton model repository of an engine: what is in it, writing it whole or not at all, and checking it at load.

Of the targets torch and llmapi four models: the streaming one, which hosts the engine, its unary alias, and
`ensemble` and `tensorrt_llm_bls` for clients of TensorRT-LLM's inflight_batcher, which ask the first. The configuration
repeats the engine's limits and the digest of its manifest; the model compares them before it serves, so that a
rebuilt, moved or foreign engine is a load error and not a surprise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trt_spec.atomic import atomic_directory
from trt_spec.config.schema import RunConfig
from trt_spec.errors import CheckpointError, ConfigError, MachineError
from trt_spec.triton import emitted, pbtxt
from trt_spec.triton.compat.names import tensors as compat_tensors
from trt_spec.triton.contract import INPUTS, OUTPUTS, input_tensors, output_tensors, unary_name
from trt_spec.triton.pbtxt import ModelConfig
from trt_spec.triton.trtllm import inflight_batcher
from trt_spec.triton.trtllm.inflight_batcher import CLIENT_MODELS

VERSION = "1"  # of the served models; one engine, one version
MANIFEST = "manifest.json"
# Keys of manifest["engine"] that the configuration repeats.
CHECKED_LIMITS = ("method", "acceptance", "dtype", "max_draft_len", "max_batch_size", "max_seq_len", "vocab_size")
LLMAPI_LIMITS = (*CHECKED_LIMITS, "tensorrt_llm_version", "drafter_placement")
LIMITS = {"torch": CHECKED_LIMITS, "llmapi": LLMAPI_LIMITS}
STREAMING_MODEL = {"torch": "streaming", "llmapi": "llmapi"}


def emit(config: RunConfig, engine_dir: Path, repo_root: Path) -> Path:
    """Writes the model repository of a built engine.

    Args:
        config: the run.
        engine_dir: the engine; may be relative, the repository names it absolutely.
        repo_root: where repositories are kept.

    Returns:
        The repository, `repo_root/<run>`: what `tritonserver --model-repository` takes.

    Raises:
        CheckpointError: there is no engine there, or its manifest is damaged.
        ConfigError: the engine was built from another config.
        MachineError: the directory cannot be written; the repository that was there is untouched.
    """
    target = Path(repo_root) / config.name
    places = [Path(os.path.abspath(place)) for place in (engine_dir, target)]
    files = render(config, places[0], read_manifest(engine_dir), places[1])
    try:
        with atomic_directory(target) as staging:
            for name, text in files.items():
                path = staging / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MachineError(
            "the model repository cannot be written",
            where=str(target),
            got=error.strerror or str(error),
            remedy="free space there or make it writable; a repository that was there is unchanged",
        ) from error
    return target


def render(
    config: RunConfig, engine_dir: Path, manifest: Mapping[str, Any], repository_dir: Path = Path("/triton_repo")
) -> dict[str, str]:
    """The files of the repository, by relative path. Pure.

    Args:
        config: the run.
        engine_dir: absolute path of the engine.
        manifest: the engine's manifest.
        repository_dir: absolute path of the repository. Engines of TensorRT-LLM are built on one machine and served in
            a container, so their place is written relative to it.

    Raises:
        ConfigError: the engine was built from another config.
        CheckpointError: the manifest lacks what the server has to check.
    """
    check_same_run(config, manifest)
    target = config.build.target
    if target == "tensorrt":
        _digest(manifest), _limit(manifest, "vocab_size")  # what it repeats has to be there
        return inflight_batcher.render(config, engine_dir, repository_dir, manifest)
    check_name(config)
    comment = f"Written by trt-spec emit for the run {config.name}. Change the run config, not this file."
    place = _place(config, engine_dir, repository_dir)
    models = (
        (STREAMING_MODEL[target], streaming_config(config, place, manifest)),
        ("unary", unary_config(config, place, manifest)),
        *(("inflight_batcher", compat_config(config, place, manifest, name)) for name in CLIENT_MODELS),
    )
    files = {}
    for source, model in models:
        files[f"{model.name}/config.pbtxt"] = pbtxt.dumps(model, comment)
        files[f"{model.name}/{VERSION}/model.py"] = emitted.source(source)
    return files


def _place(config: RunConfig, engine_dir: Path, repository_dir: Path) -> Path:
    return engine_dir if config.build.target == "torch" else Path(os.path.relpath(engine_dir, repository_dir))


def streaming_config(config: RunConfig, engine_dir: Path, manifest: Mapping[str, Any]) -> ModelConfig:
    """The configuration of the model that hosts the engine."""
    parameters = {"engine_dir": str(engine_dir), "run": config.name, "model_name": config.serve.model_name}
    parameters |= {key: str(_limit(manifest, key)) for key in LIMITS[config.build.target]}
    parameters["manifest_digest"] = _digest(manifest)
    return _model_config(config.serve.model_name, decoupled=True, parameters=parameters)


def unary_config(config: RunConfig, engine_dir: Path, manifest: Mapping[str, Any]) -> ModelConfig:
    """The configuration of the unary alias."""
    parameters = _forwarding(config, engine_dir, manifest)
    return _model_config(unary_name(config.serve.model_name), decoupled=False, parameters=parameters)


def compat_config(config: RunConfig, engine_dir: Path, manifest: Mapping[str, Any], name: str) -> ModelConfig:
    """The configuration of `ensemble` or `tensorrt_llm_bls`, with the batch axis that clients of that layout send.

    Triton refuses unary inference on a decoupled model: unless the config says otherwise, `ensemble` streams and
    `tensorrt_llm_bls` answers once, as on the tensorrt target.
    """
    inputs, outputs = compat_tensors()
    mode = config.serve.decoupled_mode
    return ModelConfig(
        name=name,
        backend="python",
        inputs=inputs,
        outputs=outputs,
        max_batch_size=1,  # one prompt a request; the engine batches
        decoupled=name == "ensemble" if mode is None else mode,
        parameters=_forwarding(config, engine_dir, manifest),
    )


def _forwarding(config: RunConfig, engine_dir: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Parameters of a model that has no engine of its own."""
    return {
        "streaming_model": config.serve.model_name,
        "tokenizer_dir": str(engine_dir / "target"),
        "manifest_digest": _digest(manifest),
    }


def check_name(config: RunConfig) -> None:
    """Refuses a name for the streaming model that one of the other models has.

    Raises:
        ConfigError: see above.
    """
    if config.serve.model_name in CLIENT_MODELS:
        raise ConfigError(
            "the served model has the name of a model for clients of the older layout",
            where="serve.model_name",
            got=config.serve.model_name,
            expected=f"none of {', '.join(CLIENT_MODELS)}",
            remedy="leave it out: the streaming model is then tensorrt_llm, and the others are there too",
        )


def _model_config(name: str, *, decoupled: bool, parameters: Mapping[str, str]) -> ModelConfig:
    return ModelConfig(
        name=name,
        backend="python",
        inputs=input_tensors(),
        outputs=output_tensors(),
        decoupled=decoupled,
        parameters=parameters,
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
    """The manifest of an engine.

    Raises:
        CheckpointError: there is none, or it is no JSON object.
    """
    path = Path(engine_dir) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        raise CheckpointError(
            "there is no usable engine", where=str(path), got=reason, remedy="build it first"
        ) from None
    if not isinstance(manifest, dict):
        raise CheckpointError(
            "there is no usable engine", where=str(path), got="no JSON object", remedy="build it first"
        )
    return manifest


def resolve(place: str, model_dir: str) -> str:
    """The directory that a model's configuration names relative to the repository.

    Args:
        place: as configured; an absolute one stays.
        model_dir: the model's own directory, which Triton hands over as `model_repository`.
    """
    return os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(model_dir)), place))


# --- at load, inside the server ---


def parameters_of(args: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a model's config.pbtxt, from what Triton hands to `initialize`."""
    return {key: value["string_value"] for key, value in json.loads(args["model_config"])["parameters"].items()}


def check_before_load(
    parameters: Mapping[str, str], model_config: Mapping[str, Any], limits: tuple[str, ...] = CHECKED_LIMITS
) -> None:
    """Compares a model's configuration with the engine's manifest and with this version's contract.

    Args:
        parameters: of config.pbtxt.
        model_config: the whole configuration, as Triton hands it over.
        limits: the keys of the manifest that the configuration repeats.

    Raises:
        ConfigError, CheckpointError: they do not belong together; lists every difference.
    """
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


def check_digest(engine_dir: Path, parameters: Mapping[str, str]) -> None:
    """Compares the digest that a model's configuration repeats with the engine's own.

    Raises:
        ConfigError, CheckpointError: the engine was built again, or is another one, or has no manifest.
    """
    found = {"manifest_digest": _digest(read_manifest(engine_dir))}
    _compare({**parameters, "engine_dir": str(engine_dir)}, found, "found")


def check_loaded(parameters: Mapping[str, str], engine: Any) -> None:
    """Compares the configuration with the engine that was loaded, not only with what its manifest claims.

    Raises:
        ConfigError: lists every difference.
    """
    found = {key: getattr(engine.limits, key) for key in ("max_draft_len", "max_batch_size", "max_seq_len")}
    _compare(parameters, {**found, "vocab_size": engine.target.vocab_size}, "the loaded engine has")


def _compare(
    parameters: Mapping[str, str], found: Mapping[str, object], has: str, differences: Sequence[str] = ()
) -> None:
    """Raises ConfigError where parameters are not what was found, or there are other differences."""
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
