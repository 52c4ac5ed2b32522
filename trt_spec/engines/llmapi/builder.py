"""Engines for the `llmapi` target: what `tensorrt_llm.LLM` needs, in one directory that can be moved.

Nothing is compiled. The directory holds the checkpoints as the pinned version reads them (linked where it reads them as
they are, converted where not), the arguments, and the manifest. TensorRT-LLM itself was not run: the manifest says so.
"""

from __future__ import annotations

from pathlib import Path

from trt_spec.checkpoints.detect import Opened
from trt_spec.checkpoints.trtllm import normalise
from trt_spec.checkpoints.trtllm.conversion import Conversion
from trt_spec.config.schema import RunConfig
from trt_spec.engines.builder import NOT_VERIFIED, Builder
from trt_spec.engines.files import link_or_copy
from trt_spec.engines.llmapi.args import Arguments, arguments, placement, version_of
from trt_spec.engines.llmapi.mtp_targets import refuse_without_mtp
from trt_spec.engines.llmapi.plan import ARGUMENTS_FILE, arguments_text, checkpoint_step, serving_notes
from trt_spec.engines.manifest import Check, Limits
from trt_spec.engines.plan import BuildPlan, Listing, PlannedFile, Step
from trt_spec.engines.sources import Source, Sources

NOT_EXECUTED = "that TensorRT-LLM loads it: nothing of TensorRT-LLM was run"
_OTHER_FORMATS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack")


class LlmApiBuilder(Builder):
    """Lays checkpoints out for the PyTorch backend of TensorRT-LLM, and writes its arguments."""

    not_verified = (
        NOT_EXECUTED,
        "that its output follows the target's law, with and without speculation",
        *NOT_VERIFIED,
    )

    def check_config(self) -> None:
        arguments(self.config)

    def look_at(self, role: str, path: str, target: Opened | None) -> Source:
        if role == "draft" and target is None:  # what of it changes depends on the target
            return Source(role, Listing(path, is_assumed=True))
        return super().look_at(role, path, target)

    def conversion(self, role: str, opened: Opened, target: Opened | None) -> Conversion:
        return normalise.plan(opened, self.config.build.target, str(version_of(self.config)), target)

    def listing(self, role: str, path: str, opened: Opened) -> Listing:
        """The directory's files, but for other formats of the tensors."""
        names = sorted(entry.name for entry in opened.checkpoint.folder.iterdir() if entry.is_file())
        others = [name for name in names if not name.endswith(_OTHER_FORMATS) and not name.startswith(".")]
        weights = opened.checkpoint.tensor_files
        return Listing(path, weights, tuple(name for name in others if name not in (*weights, "config.json")))

    def plan_of(self, sources: Sources) -> BuildPlan:
        if sources["target"].opened is not None:
            self.refuse_misfits(sources)
        made = self._arguments(sources)
        what = f"write the arguments of tensorrt_llm.LLM {version_of(self.config)}, each checked against its fields"
        steps = [checkpoint_step(role, source) for role, source in sources.items()]
        steps.append(Step(what, (PlannedFile(ARGUMENTS_FILE, ", ".join(made)),)))
        texts = ((ARGUMENTS_FILE, arguments_text(self.config, made)),)
        return self.planned(sources, steps, notes=serving_notes(self.config), texts=texts)

    def _arguments(self, sources: Sources) -> Arguments:
        draft = sources.get("draft")
        return arguments(self.config, draft.conversion.facts if draft and draft.conversion else {})

    def open(self) -> Sources:
        sources = super().open()
        self._arguments(sources)  # refused before anything is written
        return sources

    def refuse_without_mtp(self, target: Source) -> None:
        refuse_without_mtp(self.config, target.inspection, target.checkpoint.config.get("model_type"))

    def write(self, sources: Sources, staging: Path) -> None:
        for role, source in sources.items():
            out_dir = staging / role
            out_dir.mkdir()
            if source.conversion.is_needed:
                normalise.write(source.conversion, out_dir, self.part_of(f"converting the {role}"))
                continue
            self.advance(None, f"linking the {role}")
            for name in source.names:
                link_or_copy(source.folder / name, out_dir / name)
        text = arguments_text(self.config, self._arguments(sources))
        (staging / ARGUMENTS_FILE).write_text(text, encoding="utf-8")

    def limits(self, sources: Sources, staging: Path) -> Limits:
        target = sources["target"]
        return limits(self.config, target.inspection.vocab_size or target.checkpoint.tokenizer.vocab_size)

    def checks(self, sources: Sources, staging: Path) -> tuple[Check, ...]:
        fields = f"every field is one of TensorRT-LLM {version_of(self.config)}, as read in its sources"
        return (
            Check("the checkpoints", "sound, fitting together, and laid out as the pinned version reads them"),
            Check(ARGUMENTS_FILE, fields),
        )


def limits(config: RunConfig, vocab_size: int) -> Limits:
    """What a server's configuration has to agree with."""
    version = str(version_of(config))
    return Limits.of(config, vocab_size, tensorrt_llm_version=version, drafter_placement=placement(config))
