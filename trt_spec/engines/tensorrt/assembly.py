"""Puts a built TensorRT engine together: engines, tokenizer, logs, resolved config and manifest, in one rename."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trt_spec import provenance
from trt_spec.atomic import atomic_directory
from trt_spec.checkpoints.safetensors_dir import CheckpointDir
from trt_spec.config import loader
from trt_spec.config.schema import RunConfig
from trt_spec.engines import manifest as manifests
from trt_spec.engines.manifest import Check, CheckpointRecord, FileRecord, Manifest
from trt_spec.engines.plan import commands
from trt_spec.engines.tensorrt import engine_config
from trt_spec.engines.tensorrt import plan as tensorrt
from trt_spec.engines.tensorrt.sources import Sources
from trt_spec.engines.tensorrt.steps import ToolStep
from trt_spec.engines.tensorrt.work_dir import WorkDir

NOT_VERIFIED = (
    "that the engine loads and generates: a build does not load it",
    "that its output follows the target's law, with and without speculation",
    "speed",
    "the served model: this manifest is about the engine alone",
)


def assemble(
    config: RunConfig,
    engine_dir: Path,
    steps: list[ToolStep],
    sources: Sources,
    inputs: Mapping[str, dict[str, FileRecord]],
    seconds: Mapping[str, float],
    work: WorkDir,
    run: str,
) -> Manifest:
    """Puts the engine together beside its place and swaps it in; the work directory stays whole until then."""
    engines = [step for step in steps if step.is_engine]
    with atomic_directory(engine_dir) as staging:
        for step in engines:
            _link_tree(Path(step.output_dir), staging / tensorrt.ENGINE_DIRS[step.role])
        _link_tree(work.path / tensorrt.LOG_DIR, staging / tensorrt.LOG_DIR)
        folder = sources.files["target"][0]
        (staging / tensorrt.TOKENIZER_DIR).mkdir()
        for name in tensorrt.TOKENIZER_FILES:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, staging / tensorrt.TOKENIZER_DIR / name)
        (staging / "resolved.yaml").write_text(loader.dump(config), encoding="utf-8")
        written = sorted(str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file())
        plain = config.model_dump(mode="json", exclude_none=True)
        manifest = Manifest(
            run=config.name,
            build_target=config.build.target,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            digest=manifests.build_digest(plain, inputs),
            engine=_limits(config, sources, engines),
            config=plain,
            inputs={role: _record(role, sources, files) for role, files in inputs.items()},
            outputs=manifests.digest_files(staging, written),
            commands=commands(run or config.name, config.build.target),
            **provenance.of_build(),
            verified=_checks(config, steps, seconds),
            not_verified=NOT_VERIFIED,
        )
        manifests.write(staging, manifest)
    return manifest


def _link_tree(source: Path, destination: Path) -> None:
    """The files of a directory under a second name; copied where the file system has no links."""

    def link_or_copy(old: str, new: str) -> None:
        try:
            os.link(old, new)
        except OSError:
            shutil.copy2(old, new)

    shutil.copytree(source, destination, copy_function=link_or_copy)


def _limits(config: RunConfig, sources: Sources, engines: list[ToolStep]) -> dict[str, Any]:
    """What a server's configuration has to agree with; sizes of the engine as its own config.json has them."""
    spec, build = config.speculation, config.build
    built = json.loads((Path(engines[0].output_dir) / "config.json").read_text(encoding="utf-8"))
    sizes = built["build_config"]
    return {
        "method": spec.method,
        "acceptance": spec.acceptance,
        "max_draft_len": spec.max_draft_len,
        "max_total_draft_tokens": spec.max_total_draft_tokens,
        "max_batch_size": build.max_batch_size,
        "max_seq_len": build.max_seq_len,
        "max_input_len": sizes["max_input_len"],
        "dtype": config.target.dtype,
        "vocab_size": sources.inspections["target"].vocab_size,
        "tensorrt_llm_version": built["version"],
        "tensor_parallel_size": build.tensor_parallel_size,
        "pipeline_parallel_size": build.pipeline_parallel_size,
        "engine_max_seq_len": sizes["max_seq_len"],
        "engine_max_num_tokens": sizes["max_num_tokens"],
        "engine_max_draft_len": sizes["max_draft_len"],
        "speculative_decoding_mode": sizes["speculative_decoding_mode"],
    }


def _record(role: str, sources: Sources, files: dict[str, FileRecord]) -> CheckpointRecord:
    path, inspection = sources.listings[role].path, sources.inspections.get(role)
    if inspection is None:  # a ReDrafter, whose tensors only its converter reads
        return CheckpointRecord(path, role, "redrafter", None, 0, 0, {}, files)
    checkpoint = CheckpointDir.open(path)
    return CheckpointRecord(
        path=path,
        role=role,
        method=inspection.method,
        family=inspection.family,
        num_tensors=len(checkpoint.tensors),
        num_parameters=checkpoint.num_elements,
        dtypes=dict(Counter(info.dtype for info in checkpoint.tensors.values())),
        files=files,
    )


def _checks(config: RunConfig, steps: list[ToolStep], seconds: Mapping[str, float]) -> tuple[Check, ...]:
    checks = [Check("the checkpoints", "sound, fitting together, and laid out as the converter reads them")]
    for step in steps:
        expected = engine_config.expectations(config, "draft" if step.role == "base" else step.role)
        details = {"seconds": seconds[step.name], "command": list(step.command)}
        if step.is_engine:
            details["compared"] = {item.key: item.words for item in expected}
        checks.append(Check(step.name, "ended well; its config.json agrees with the run config", details))
    return tuple(checks)
