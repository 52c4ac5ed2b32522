"""Engines for the `tensorrt` target: runs the planned converters and trtllm-build, and puts together what they wrote.

It runs where the tools are, which is TensorRT-LLM's container. A build that fails or is stopped keeps what it has
finished beside the engine's place and goes on from there. Tests run it with stand-ins for the tools; TensorRT-LLM
itself was not run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from trt_spec.checkpoints import medusa
from trt_spec.checkpoints.detect import Opened
from trt_spec.checkpoints.trtllm import normalise
from trt_spec.checkpoints.trtllm.conversion import Conversion
from trt_spec.config import capabilities
from trt_spec.config.schema import RunConfig
from trt_spec.engines import container
from trt_spec.engines.builder import NOT_VERIFIED, Builder
from trt_spec.engines.files import link_or_copy
from trt_spec.engines.manifest import Check, FileRecord, Limits, Manifest
from trt_spec.engines.plan import BuildPlan, Listing, Step
from trt_spec.engines.sources import Source, Sources, conversions
from trt_spec.engines.tensorrt import engine_config, tools
from trt_spec.engines.tensorrt.flags import Commands
from trt_spec.engines.tensorrt.plan import (
    ENGINE_DIRS,
    LOG_DIR,
    NORMALISED_METHODS,
    TOKENIZER_DIR,
    TOKENIZER_FILES,
    engine_files,
    notes,
    work_dir_of,
)
from trt_spec.engines.tensorrt.run_steps import run_steps
from trt_spec.engines.tensorrt.steps import ToolStep, tool_steps
from trt_spec.engines.tensorrt.work_dir import WorkDir
from trt_spec.errors import CapabilityError, CheckpointError, MachineError

REDRAFTER_FILES = ("model.safetensors", "model.pt")  # its converter reads the first that is there, and config.json
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


class TensorRTBuilder(Builder):
    """Runs TensorRT-LLM's own tools, step by step."""

    not_verified = (
        "that the engine loads and generates: a build does not load it",
        "that its output follows the target's law, with and without speculation",
        *NOT_VERIFIED,
    )

    def __init__(self, config: RunConfig, engines_dir: str | Path = "engines", run: str = "") -> None:
        super().__init__(config, engines_dir, run)
        self.work_path = Path(work_dir_of(config, engines_dir))
        self._steps: list[ToolStep] = []
        self._seconds: dict[str, float] = {}  # that each tool took, at the time when it ran

    # --- looking ---

    def open(self) -> Sources:
        capabilities.check_environment(os.environ)
        sources = super().open()
        if self.config.speculation.method == "redrafter":
            _refuse_no_redrafter(sources["draft"])
        self._steps = self._tool_steps(sources)
        return sources

    def look_at(self, role: str, path: str, target: Opened | None) -> Source:
        if role == "draft" and self.config.speculation.method == "redrafter":
            weights = tuple(name for name in REDRAFTER_FILES if (Path(path) / name).is_file())
            return Source(role, Listing(path, weights, companions=()))
        return super().look_at(role, path, target)

    def listing(self, role: str, path: str, opened: Opened) -> Listing:
        checkpoint = opened.checkpoint
        companions = tuple(name for name in TOKENIZER_FILES[1:] if (checkpoint.folder / name).is_file())
        counts = ()  # heads, and residual blocks of each
        if role == "draft" and medusa.matches(checkpoint):
            counts = medusa.count_heads(medusa.canonical(checkpoint)[0].tensors)
        return Listing(path, checkpoint.tensor_files, companions, False, checkpoint.config.get("model_type"), *counts)

    def conversion(self, role: str, opened: Opened, target: Opened | None) -> Conversion | None:
        """None where the converter reads every layout, or where the target is not there yet."""
        spec, build = self.config.speculation, self.config.build
        if spec.method not in NORMALISED_METHODS or (role == "draft" and target is None):
            return None
        found = normalise.plan(opened, build.target, str(build.tensorrt_llm_version), target)
        if role == "draft" and found.method != spec.method:
            raise CapabilityError(
                "the draft checkpoint is of another method",
                where="speculation.checkpoint",
                got=found.method,
                expected=spec.method,
                remedy=f"set speculation.method to {found.method}, or give another checkpoint",
            )
        return found

    def check_tokenizer(self, target: Source) -> None:
        if not any((target.folder / name).is_file() for name in _TOKENIZERS):
            raise CheckpointError(
                "the target has no tokenizer, which the served model needs",
                where=str(target.folder),
                expected="one of " + ", ".join(_TOKENIZERS),
                remedy="put the tokenizer's files beside the weights",
            )

    def first_words(self, sources: Sources) -> str:
        if self.config.speculation.method == "redrafter":
            return "inspect the target; the ReDrafter is read by its converter alone"
        return super().first_words(sources)

    @property
    def last_words(self) -> str:
        return f", and remove {self.work_path}"

    def plan_of(self, sources: Sources) -> BuildPlan:
        commands = Commands(self.config, container.examples_dir_of(self.config), str(self.work_path))
        steps = [
            Step(f"lay the {role} out as the converter reads it, in {self.work_path / role}: {'; '.join(one.changes)}")
            for role, one in conversions(sources).items()
            if one.is_needed
        ]
        steps += [
            Step(f"{tool.what}; compare its config.json with the run config", command=tool.command)
            for tool in tool_steps(commands, sources)
        ]
        steps.append(Step("put the engines, the tokenizer and the logs together", engine_files(self.config)))
        planned = self.planned(sources, steps, notes=notes(self.config, sources))
        return replace(
            planned,
            container=container.container_of(self.config).image,
            container_command=container.docker_command(self.config, planned.commands[0]),
            sizes=engine_config.sizes(self.config),
        )

    def _tool_steps(self, sources: Sources) -> list[ToolStep]:
        examples = tools.find_examples(self.config) or container.examples_dir_of(self.config)
        return list(tool_steps(Commands(self.config, str(examples), str(self.work_path)), sources))

    # --- building ---

    def check_machine(self, sources: Sources) -> None:
        scripts = dict.fromkeys(step.command[1] for step in self._steps if step.command[0] == "python3")
        tools.check(self.config, self.run, tuple(scripts))

    def known_files(self, source: Source, old: Manifest | None) -> Mapping[str, FileRecord]:
        kept = WorkDir.known_files(self.work_path, source.role, str(source.folder))
        return {**kept, **super().known_files(source, old)}

    @contextmanager
    def prepared(self, sources: Sources, inputs: Mapping[str, dict[str, FileRecord]]) -> Iterator[None]:
        """Runs the tools; the work directory stays whole until the engine is in place."""
        with WorkDir.opened(self.work_path) as work:
            for role, files in inputs.items():
                work.keep_files(role, str(sources[role].folder), files)
            laid_out = conversions(sources)
            self._seconds = run_steps(self.config, self._steps, laid_out, inputs, work, self.advance, self.log)
            yield
            work.remove()

    def write(self, sources: Sources, staging: Path) -> None:
        for step in filter(lambda step: step.is_engine, self._steps):
            shutil.copytree(step.output_dir, staging / ENGINE_DIRS[step.role], copy_function=link_or_copy)
        shutil.copytree(self.work_path / LOG_DIR, staging / LOG_DIR, copy_function=link_or_copy)
        (staging / TOKENIZER_DIR).mkdir()
        for name in TOKENIZER_FILES:
            if (sources["target"].folder / name).is_file():
                shutil.copyfile(sources["target"].folder / name, staging / TOKENIZER_DIR / name)

    def limits(self, sources: Sources, staging: Path) -> Limits:
        """Sizes of the engine as its own config.json has them."""
        spec, build = self.config.speculation, self.config.build
        built = json.loads((staging / ENGINE_DIRS["target"] / "config.json").read_text(encoding="utf-8"))
        sizes = built["build_config"]
        return Limits.of(
            self.config,
            sources["target"].inspection.vocab_size,
            tensorrt_llm_version=built["version"],
            max_total_draft_tokens=spec.max_total_draft_tokens,
            max_input_len=sizes["max_input_len"],
            tensor_parallel_size=build.tensor_parallel_size,
            pipeline_parallel_size=build.pipeline_parallel_size,
            engine_max_seq_len=sizes["max_seq_len"],
            engine_max_num_tokens=sizes["max_num_tokens"],
            engine_max_draft_len=sizes["max_draft_len"],
            speculative_decoding_mode=sizes["speculative_decoding_mode"],
        )

    def checks(self, sources: Sources, staging: Path) -> tuple[Check, ...]:
        checks = [Check("the checkpoints", "sound, fitting together, and laid out as the converter reads them")]
        for step in self._steps:
            expected = engine_config.expectations(self.config, "draft" if step.role == "base" else step.role)
            details = {"seconds": self._seconds[step.name], "command": list(step.command)}
            if step.is_engine:
                details["compared"] = {key: engine_config.in_words(value) for key, value in expected.items()}
            checks.append(Check(step.name, "ended well; its config.json agrees with the run config", details))
        return tuple(checks)

    def remove_parts(self) -> None:
        if self.work_path.exists():
            with suppress(MachineError), WorkDir.opened(self.work_path) as work:
                work.remove()

    def what_is_kept(self) -> str | None:
        kept = f"what was finished is kept in {self.work_path}, and the next build goes on from there"
        return kept if self.work_path.exists() else None


def _refuse_no_redrafter(draft: Source) -> None:
    if "config.json" not in draft.names or not draft.listing.weights:
        raise CheckpointError(
            "this is no ReDrafter checkpoint as its converter reads it",
            where=draft.listing.path,
            got=", ".join(draft.names) or "none of its files",
            expected="config.json, and model.safetensors or model.pt",
            remedy="give the directory that the ReDrafter training wrote",
        )
