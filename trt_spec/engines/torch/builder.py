"""Engines for the `torch` target: checkpoints in its dtype, and greedy tokens compared with speculation on and off."""

from __future__ import annotations

from pathlib import Path

from trt_spec.checkpoints.detect import Opened
from trt_spec.checkpoints.families import NATIVE_FAMILIES
from trt_spec.checkpoints.tensor_files import INDEX_FILE
from trt_spec.engines.builder import NOT_VERIFIED, Builder
from trt_spec.engines.manifest import Check, Limits
from trt_spec.engines.plan import BuildPlan, Listing, PlannedFile, Step
from trt_spec.engines.sources import Sources, inspections
from trt_spec.engines.torch.self_check import self_check
from trt_spec.engines.torch.weights import write_checkpoint
from trt_spec.errors import CheckpointError
from trt_spec.runtime.loading import load_engine
from trt_spec.runtime.step_costs import measure_step_costs, write_step_costs

# Files beside the weights that an engine needs: text in and out, chat, end-of-text ids. Licences travel with weights.
COMPANION_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
    "LICENSE",
    "NOTICE",
)


class TorchBuilder(Builder):
    """Writes checkpoints again in one dtype; the engine runs in this process."""

    @property
    def not_verified(self) -> tuple[str, ...]:
        of_all = ("greedy output beyond the few prompts of the self-check", *NOT_VERIFIED)
        sampled = "that sampled output (temperature above 0) follows the target's law with speculation on"
        return of_all if self.config.speculation.method == "none" else (sampled, *of_all)

    def listing(self, role: str, path: str, opened: Opened) -> Listing:
        companions = tuple(name for name in COMPANION_FILES if (opened.checkpoint.folder / name).is_file())
        return Listing(path, opened.checkpoint.tensor_files, companions)

    def plan_of(self, sources: Sources) -> BuildPlan:
        if self.config.speculation.method == "none":
            check = "load the engine and generate a few tokens"
        else:
            check = "load the engine and compare a few greedy tokens with speculation on and off"
        steps = [self._writing_step(role, source.listing) for role, source in sources.items()]
        return self.planned(sources, steps, [Step(check)])

    def _writing_step(self, role: str, listing: Listing) -> Step:
        dtype, path = self.config.target.dtype, listing.path
        written = {"config.json": f"{path}/config.json, dtype set to {dtype}"}
        written |= {name: f"{path}/{source}, in {dtype}" for source, name in listing.outputs.items()}
        if len(listing.weights) > 1:
            written[INDEX_FILE] = "which tensor is in which of them"
        written |= {name: f"{path}/{name}" for name in listing.companions}
        files = tuple(PlannedFile(f"{role}/{name}", source) for name, source in written.items())
        return Step(f"write the {role} in {dtype}", files)

    def refuse_other_method(self, sources: Sources) -> None:
        super().refuse_other_method(sources)
        for found in filter(None, inspections(sources)):
            if not found.is_native:
                raise CheckpointError(
                    "the torch target does not run this model family",
                    where=found.path,
                    got=found.family,
                    remedy="use a model of a native family: " + ", ".join(NATIVE_FAMILIES),
                )

    def write(self, sources: Sources, staging: Path) -> None:
        dtype = self.config.target.dtype
        for role, source in sources.items():
            on_part = self.part_of(f"writing the {role} in {dtype}")
            write_checkpoint(source.checkpoint, source.listing, staging / role, dtype, on_part)

    def limits(self, sources: Sources, staging: Path) -> Limits:
        return Limits.of(self.config, sources["target"].inspection.vocab_size)

    def checks(self, sources: Sources, staging: Path) -> tuple[Check, ...]:
        self.advance(None, "loading it and comparing greedy tokens with speculation on and off")
        engine = load_engine(staging)
        checked = self_check(engine)
        if self.config.speculation.adaptive_draft_len and self.config.speculation.costs is None:
            self.advance(None, "timing steps by their rows")
            write_step_costs(staging, measure_step_costs(engine.target, engine.limits))
        return (*_checks_of_sources(sources), checked)


def _checks_of_sources(sources: Sources) -> list[Check]:
    checks = [Check("the target's tensors", "all there, none unknown, shapes as config.json says")]
    if "draft" in sources:
        is_model = sources["draft"].inspection.method == "draft_model"
        agreed = "tokenizers equal id by id" if is_model else "widths, vocabulary and layers are those of the target"
        checks.append(Check("the draft's tensors, and that it fits the target", agreed))
    target = sources["target"].inspection
    if target.method == "mtp":
        number = target.details.num_mtp_layers
        checks.append(Check("the target's MTP layers", f"all there that config.json promises: {number}"))
    return checks
