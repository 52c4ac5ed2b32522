"""From an engine directory to a running engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from trt_spec.checkpoints.detect import Opened
from trt_spec.config import loader
from trt_spec.config.schema import RunConfig
from trt_spec.config.speculation import SpeculationConfig
from trt_spec.errors import CapabilityError, CheckpointError, ConfigError, MachineError
from trt_spec.methods import METHODS
from trt_spec.runtime.acceptance import ACCEPTANCE_RULES
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.draft_lengths import DEFAULT_STEP, DraftLengths, StepCosts
from trt_spec.runtime.drafters import DrafterInputs, make_drafter
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.models import Model, load_model
from trt_spec.runtime.step_costs import read_step_costs

TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def load_engine(engine_dir: str | Path, device: str | None = None) -> Engine:
    """Loads an engine that `build` wrote: resolved.yaml, target/ and, where the method has one, draft/.

    Args:
        device: overrides the config's build.device; "auto" takes CUDA where there is one.

    Raises:
        CapabilityError: an engine of another build target.
        CheckpointError: no engine there, or its tensors are not what they should be.
        ConfigError: limits that the target cannot serve.
        MachineError: the device is not there.
    """
    engine_dir = Path(engine_dir)
    resolved = engine_dir / "resolved.yaml"
    if not resolved.is_file():
        raise CheckpointError(
            "no engine here",
            where=str(engine_dir),
            expected="a directory with resolved.yaml",
            remedy="run trt-spec build",
        )
    config = loader.load(resolved)
    if config.build.target != "torch":
        raise CapabilityError(
            f"an engine for build target {config.build.target} runs in TensorRT-LLM, not in this process",
            where=str(engine_dir),
            remedy="emit and serve it in its container, which trt-spec plan names, and ask the server with --url",
        )
    device = pick_device(device or config.build.device)
    return make_engine(config, engine_dir / "target", engine_dir / "draft", device, read_step_costs(engine_dir))


def make_engine(
    config: RunConfig,
    target_dir: Path,
    draft_dir: Path,
    device: torch.device,
    step_costs: Mapping[int, float] | None = None,
) -> Engine:
    """An engine from a config and checkpoint directories.

    Args:
        step_costs: relative times by rows that were measured on this machine, see `step_costs`.
    """
    limits = EngineLimits(
        max_batch_size=config.build.max_batch_size,
        max_seq_len=config.build.max_seq_len,
        max_num_tokens=config.build.max_num_tokens,
        max_queue_size=config.build.max_queue_size,
        max_draft_len=config.speculation.max_draft_len,
        max_total_draft_tokens=config.speculation.max_total_draft_tokens,
    )
    opened = Opened.of(target_dir)
    target = load_model(opened, TORCH_DTYPES[config.target.dtype], device, limits.slot_len)
    check_context(target, limits.max_seq_len, str(target_dir))
    drafter = make_drafter(DrafterInputs(config.speculation, target, opened, draft_dir, limits))
    tokenizer = opened.checkpoint.tokenizer
    return Engine(
        target,
        drafter,
        ACCEPTANCE_RULES[config.speculation.acceptance],
        limits,
        tokenizer=tokenizer,
        eos_token_ids=sorted(tokenizer.eos_token_ids),
        num_valid_tokens=min(tokenizer.vocab_size, target.vocab_size),
        config=config,
        draft_lengths=draft_lengths(config.speculation, step_costs),
    )


def draft_lengths(speculation: SpeculationConfig, step_costs: Mapping[int, float] | None = None) -> DraftLengths:
    """How long drafts may be, by draft_len_schedule and adaptive_draft_len.

    The latter weighs speculation.costs where they are given, else `step_costs`, which the build measured, else those
    of a small CPU.
    """
    costs = None
    if speculation.adaptive_draft_len:
        given = speculation.costs
        level = METHODS[speculation.method].level_cost if given is None else given.draft_level
        costs = StepCosts((step_costs or DEFAULT_STEP) if given is None else given.step, level)
    rows_per_level = speculation.max_total_draft_tokens / max(speculation.max_draft_len, 1)
    return DraftLengths(speculation.draft_len_schedule, costs, max(rows_per_level, 1.0))


def check_context(target: Model, max_seq_len: int, where: str) -> None:
    """Refuses a context that the target was not made for: past its positions, or past a sliding window."""
    model = target.config
    limit = min(model.max_position_embeddings, model.sliding_window or model.max_position_embeddings)
    if max_seq_len > limit:
        what = "sliding window" if model.sliding_window == limit else "positions"
        raise ConfigError(
            f"build.max_seq_len is beyond the target's {what}",
            where=where,
            got=max_seq_len,
            expected=f"at most {limit}",
            remedy=f"set build.max_seq_len to {limit} or less",
        )


def pick_device(name: str) -> torch.device:
    """The device of a name: auto, cpu, cuda or cuda:N."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise MachineError(
            "no such CUDA device here", where="build.device", got=name, remedy="use --set build.device=cpu"
        )
    return device
