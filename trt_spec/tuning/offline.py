"""A plan from numbers alone: a named GPU, sizes of the models, an acceptance profile. Needs no engine and no GPU."""

from __future__ import annotations

from dataclasses import replace

from trt_spec.config.schema import RunConfig
from trt_spec.errors import UsageError
from trt_spec.run import Run
from trt_spec.tuning import model_shapes
from trt_spec.tuning.model_shapes import ModelShape
from trt_spec.tuning.planner import Planner
from trt_spec.tuning.result import Estimate, Machine, Options, Tuning, refuse_tree, tuning
from trt_spec.tuning.roofline import Roofline, find_gpu
from trt_spec.tuning.survival import AcceptanceProfile

_WEIGHTS = {"fp8": "fp8", "fp8_rowwise": "fp8", "int8_weight_only": "int8", "int4_weight_only": "int4"}
MAX_BATCH = 256  # of a plan where neither the run nor the memory sets less


def planned(run: Run, options: Options, machine: Machine) -> Tuning:
    """Plans a run on a machine that is not here; UsageError where a number is missing, or the models do not fit."""
    if options.acceptance is None:
        raise UsageError(
            "a plan for another machine needs to know what is accepted",
            where="--acceptance",
            remedy="give it, such as --acceptance 0.8,0.7,0.6: by position, given that all before it were accepted",
        )
    refuse_tree(run)
    roofline = _roofline(run.config, machine)
    if machine.plain_tokens_per_s is not None:
        roofline = roofline.calibrated(machine.plain_tokens_per_s)
    wanted = machine.max_batch or min(MAX_BATCH, max(run.config.build.max_batch_size, 1))
    max_batch = min(wanted, roofline.max_batch)
    given = replace(machine, num_gpus=roofline.num_gpus, weights=roofline.weights)
    planner = Planner(roofline, AcceptanceProfile.given(options.acceptance))
    basis = Estimate(given, roofline, max_batch)
    return tuning(run, options, planner, basis, max_batch=max_batch, prompt_tokens=machine.context / 2)


def _roofline(config: RunConfig, machine: Machine) -> Roofline:
    spec, build = config.speculation, config.build
    draft = None
    if spec.method == "draft_model":
        draft = _shape("draft model", spec.checkpoint, machine.draft_params, "--draft-params")
    elif machine.draft_params is not None:
        raise UsageError(f"method {spec.method} has no draft model", where="--draft-params", remedy="leave it out")
    return Roofline(
        gpu=find_gpu(machine.gpu),
        target=_shape("target", config.target.checkpoint, machine.params, "--params"),
        method=spec.method,
        draft=draft,
        context=machine.context,
        num_gpus=machine.num_gpus or build.tensor_parallel_size or 1,
        weights=machine.weights or _weights(config),
        kv_bytes=1.0 if build.kv_cache_dtype in ("fp8", "int8") else 2.0,
    )


def _weights(config: RunConfig) -> str:
    """As the build stores them; where it leaves them alone, as the checkpoint does."""
    quantization = config.build.quantization or "none"
    if quantization != "none":
        return _WEIGHTS[quantization]
    return "fp8" if model_shapes.is_stored_in_fp8(config.target.checkpoint) else "bf16"


def _shape(what: str, checkpoint: str | None, params: float | None, option: str) -> ModelShape:
    if params is not None:
        return model_shapes.from_params(params)
    shape = model_shapes.find(checkpoint) if checkpoint else None
    if shape is None:
        raise UsageError(
            f"the size of the {what} is not known",
            where=option,
            got=f"{checkpoint}, which is not here",
            expected="a checkpoint with config.json, or one named like " + ", ".join(model_shapes.PUBLISHED),
            remedy=f"give {option}, such as {option} 8e9",
        )
    return shape
