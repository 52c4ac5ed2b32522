"""What `trt-spec tune` is asked, and what it found: acceptance, costs, the plan, and where they come from."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trt_spec.errors import CapabilityError
from trt_spec.run import Run
from trt_spec.tuning import open_loop
from trt_spec.tuning.calibration import Checked
from trt_spec.tuning.cost_model import MeasuredCosts
from trt_spec.tuning.open_loop import Load, OpenLoop
from trt_spec.tuning.planner import MIN_GAIN, Forecast, Planner, as_schedule
from trt_spec.tuning.roofline import Roofline
from trt_spec.tuning.survival import AcceptanceProfile

MAX_PLANNED = 64  # batch sizes looked at one by one; beyond it in steps of a sixteenth
BEST = "schedule"
Schedule = Mapping[int, int]


@dataclass(frozen=True)
class Options:
    """What is measured, and with what, beside the run.

    Attributes:
        acceptance: coins by position in place of the engine's own acceptance; None measures it.
        prompts_path: a file with one message per line; None takes the run's workload.
        num_prompts: at most so many of them.
        num_tokens: output tokens of each.
        temperature: of the requests that acceptance is measured on.
        requests_per_s: arrivals to find operating points for; None for none.
        output_tokens: of each of those requests.
    """

    acceptance: tuple[float, ...] | None = None
    prompts_path: Path | None = None
    num_prompts: int = 12
    num_tokens: int = 48
    temperature: float = 0.0
    requests_per_s: float | None = None
    output_tokens: int = 256


@dataclass(frozen=True)
class PlannedBatch(Forecast):
    """What was chosen for a batch size, and the speed-up of each draft length from 0."""

    by_draft_len: tuple[float, ...]


@dataclass(frozen=True)
class LoadedArms(Load):
    """Operating points of plain decoding, and with the schedule."""

    arms: Mapping[str, OpenLoop] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """An engine that was measured, and its prediction checked at batch sizes that were not fitted."""

    is_synthetic: bool
    workload: str
    temperature: float
    num_tokens: int
    costs: MeasuredCosts
    check: Sequence[Checked]
    mode: ClassVar[str] = "measured"

    @property
    def mean_absolute_error(self) -> float | None:
        """Of the predicted speed-ups; None where nothing was left to check."""
        return statistics.fmean(abs(one.error) for one in self.check) if self.check else None


@dataclass(frozen=True)
class Machine:
    """A machine that is planned for.

    Attributes:
        gpu: name, see `roofline.GPUS`.
        num_gpus: None takes build.tensor_parallel_size.
        params, draft_params: parameters of target and draft model; None takes config.json, or the published sizes.
        weights: bf16, fp8, int8 or int4; None takes build.quantization.
        context: cached tokens of a sequence, on average; half of them are taken to be its prompt.
        plain_tokens_per_s: measured speed of plain decoding at batch 1, that the roofline is set to.
        max_batch: None takes build.max_batch_size, or what fits into the memory.
    """

    gpu: str
    num_gpus: int | None = None
    params: float | None = None
    draft_params: float | None = None
    weights: str | None = None
    context: int = 1024
    plain_tokens_per_s: float | None = None
    max_batch: int | None = None


@dataclass(frozen=True)
class Estimate:
    """A machine that is not here."""

    machine: Machine
    costs: Roofline
    max_batch: int
    is_synthetic: ClassVar[bool] = False
    mode: ClassVar[str] = "roofline"


@dataclass(frozen=True)
class Tuning:
    """A plan, and what it rests on.

    Attributes:
        rule: of acceptance.
        plan: by batch size.
        plans: name to schedule, the best first, then those for engines that can do less; an empty one drafts nothing.
        open_loop: where a rate of requests was given.
    """

    run: str
    method: str
    rule: str
    acceptance: AcceptanceProfile
    min_gain: float
    plan: Sequence[PlannedBatch]
    plans: Mapping[str, Schedule]
    basis: Measurement | Estimate
    open_loop: LoadedArms | None = None

    @property
    def schedule(self) -> Schedule:
        return self.plans[BEST]

    @property
    def check(self) -> Sequence[Checked]:
        return self.basis.check if isinstance(self.basis, Measurement) else ()


def tuning(
    run: Run, options: Options, planner: Planner, basis: Measurement | Estimate, *, max_batch: int, prompt_tokens: float
) -> Tuning:
    """The plan for up to `max_batch` requests at once, with prompts of so many tokens on average."""
    batches = planned_batches(max_batch)
    plan = planner.plan(batches)
    plans = {
        BEST: as_schedule(plan),
        "one length, and off": as_schedule(planner.plan_one_length(batches, can_be_off=True)),
        "one length": as_schedule(planner.plan_one_length(batches, can_be_off=False)),
    }
    loop = None
    if options.requests_per_s is not None:
        load = Load(options.requests_per_s, options.output_tokens, planner.costs.prefill_ms(prompt_tokens))
        arms = {"plain": {1: 0}, BEST: plans[BEST] or {1: 0}}
        found = {name: open_loop.operating_points(planner, arm, load, max_batch) for name, arm in arms.items()}
        loop = LoadedArms(**vars(load), arms=found)
    return Tuning(
        run=run.config.name,
        method=run.config.speculation.method,
        rule=run.config.speculation.acceptance,
        acceptance=planner.acceptance,
        min_gain=MIN_GAIN,
        plan=[
            PlannedBatch(**vars(one), by_draft_len=tuple(other.speedup for other in planner.forecasts(one.batch)))
            for one in plan
        ],
        plans=plans,
        basis=basis,
        open_loop=loop,
    )


def planned_batches(most: int) -> list[int]:
    """Batch sizes that get a length of their own."""
    batches = list(range(1, min(most, MAX_PLANNED) + 1))
    while batches[-1] < most:
        batches.append(min(most, batches[-1] + max(1, batches[-1] // 16)))
    return batches


def refuse_tree(run: Run) -> None:
    """Raises CapabilityError where the run drafts trees."""
    if run.config.speculation.tree is not None:
        raise CapabilityError(
            "tune plans lengths of chains; a tree has its own shape",
            where="speculation.tree",
            remedy="tune the run without it: --set speculation.tree=null",
        )
