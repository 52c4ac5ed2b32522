"""The memory floor: a decode step against the linear layers that it cannot do without.

A step at batch 1 moves every weight once. So its floor is the linear layers alone, run back to back on one row. Two
are timed: the layers as this runtime runs them (packed), and `torch.nn.functional.linear` on plain weights of the same
shapes, the stock floor. All arms take turns in one run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import RenderableType
from rich.text import Text

from trt_spec.bench.kinds import Result
from trt_spec.clients.rounds import Advance, by_arm, turns
from trt_spec.errors import CapabilityError
from trt_spec.report.console import Reporter
from trt_spec.report.tables import table, titled
from trt_spec.run import Run, load_engine
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.linear import Linear
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.runtime.step import synchronized_clock
from trt_spec.tuning.calibration import clocked

CONTEXT_LEN = 128  # cached tokens of the timed step
VERIFIED_ROWS = 8
NUM_CALLS = 6  # of an arm in one turn


@dataclass(frozen=True)
class FloorResult(Result):
    """Medians over rounds, in milliseconds.

    Attributes:
        plain_step_ms: a whole engine step at batch 1, scheduling, sampling and all.
        verify8_over_one: the forward of 8 rows over that of 1.
        host_share: the part of the step spent outside the model.
    """

    floor_ms: float
    stock_floor_ms: float
    plain_step_ms: float
    plain_over_floor: float
    plain_over_stock_floor: float
    verify8_over_one: float
    host_share: float
    context_len: int
    num_rounds: int
    num_threads: int
    dtype: str

    def view(self) -> RenderableType:
        rows = [
            ("plain decode step", f"{self.plain_step_ms:.2f}", ""),
            ("linear layers as packed here", f"{self.floor_ms:.2f}", f"{self.plain_over_floor:.2f}"),
            ("linear layers of stock torch", f"{self.stock_floor_ms:.2f}", f"{self.plain_over_stock_floor:.2f}"),
        ]
        title = (
            f"{self.dtype}, batch 1, {self.context_len} cached tokens, {self.num_threads} threads: "
            f"medians of {self.num_rounds} rounds"
        )
        notes = (
            f"A step is {1e3 / self.plain_step_ms:.1f} tokens/s. Verifying 8 rows costs {self.verify8_over_one:.2f} "
            f"times one row. Host's share: {self.host_share:.1%}."
        )
        return titled(title, table(("what", "ms", "step over it"), rows, numeric=(1, 2)), Text(notes, style="dim"))


def run(run: Run, reporter: Reporter) -> FloorResult:
    """See `measure_floor`; the run's engine is built."""
    engine = load_engine(run, reporter)
    with reporter.progress("timing steps and linear layers in turns") as advance:
        return measure_floor(engine, advance=advance)


def measure_floor(engine: Engine, *, num_rounds: int = 12, advance: Advance = lambda part: None) -> FloorResult:
    """Times one decode step and its parts. The engine is idle; plain decoding is measured whatever its method.

    Raises:
        CapabilityError: the target's layers are not plain linear layers, or the engine's context is too short.
    """
    if engine.limits.max_seq_len < CONTEXT_LEN + VERIFIED_ROWS:
        raise CapabilityError(
            "the engine's context is too short for the memory floor",
            where="build.max_seq_len",
            got=engine.limits.max_seq_len,
            expected=f"at least {CONTEXT_LEN + VERIFIED_ROWS}: steps are timed after {CONTEXT_LEN} cached tokens",
            remedy="build the engine with a larger build.max_seq_len",
        )
    linears = _linears(engine)
    device, dtype = engine.target.device, engine.target.dtype
    x = torch.randn(1, max(linear.in_features for linear in linears), device=device)
    stock = [torch.randn(one.out_features, one.in_features, device=device).to(dtype) for one in linears]
    own, stored = x.to(engine.target.activation_dtype), x.to(dtype)
    now = synchronized_clock(device)
    arms: dict[str, Callable[[None], Any]] = {
        "floor": lambda _: [linear(own[:, : linear.in_features]) for linear in linears],
        "stock_floor": lambda _: [F.linear(stored[:, : weight.shape[1]], weight) for weight in stock],
        "step": lambda _: _step(engine),
        "one row": lambda _: _forward(engine, 1),
        "more rows": lambda _: _forward(engine, VERIFIED_ROWS),
    }
    with torch.inference_mode(), clocked(engine, now):
        timed = turns(arms, [None], num_rounds=num_rounds, num_calls=NUM_CALLS, now=now, advance=advance)
        found = by_arm(timed)
        engine.cancel(_REQUEST)
        engine.step()
    median = {arm: 1e3 * statistics.median(turn.seconds for turn in of_arm) for arm, of_arm in found.items()}
    model_ms = 1e3 * statistics.median(turn.result for turn in found["step"])
    return FloorResult(
        floor_ms=median["floor"],
        stock_floor_ms=median["stock_floor"],
        plain_step_ms=median["step"],
        plain_over_floor=median["step"] / median["floor"],
        plain_over_stock_floor=median["step"] / median["stock_floor"],
        verify8_over_one=median["more rows"] / median["one row"],
        host_share=max(0.0, 1 - model_ms / median["step"]),
        context_len=CONTEXT_LEN,
        num_rounds=num_rounds,
        num_threads=torch.get_num_threads(),
        dtype=engine.config.target.dtype,
    )


def _linears(engine: Engine) -> list[Linear]:
    layers = getattr(engine.target, "layers", [])
    if not layers or not all(hasattr(layer, "linears") for layer in layers):
        raise CapabilityError(
            "the memory floor is defined for Llama-like targets only",
            got=engine.target.config.family,
            remedy="use bench --what peers",
        )
    return [*(linear for layer in layers for linear in layer.linears), engine.target.head]


def _forward(engine: Engine, num_rows: int) -> None:
    """One forward of a chain of rows over a cached context, logits included."""
    tokens, parents = [1] * num_rows, range(-1, num_rows - 2)
    batch = pack([Rows(0, CONTEXT_LEN, tokens, parents)], engine.slot_len, engine.target.dtype, engine.target.device)
    engine.target.logits(engine.target.forward(batch, engine.cache).last)


_REQUEST = "floor"


def _step(engine: Engine) -> float:
    """A decode step of one endless request, begun again where it ended: seconds in the model."""
    while not engine.has_work or not engine.scheduler.running or not engine.scheduler.running[0].is_decoding:
        if not engine.has_work:
            params = SamplingParams(max_tokens=engine.limits.max_seq_len, ignore_eos=True)
            ids = tuple(range(3, 3 + min(CONTEXT_LEN, engine.limits.max_seq_len // 2)))
            engine.add(Request(_REQUEST, ids, params, speculation=False))
        engine.step()
    return engine.step().target_s
