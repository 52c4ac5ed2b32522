"""The memory floor: a decode step against the linear layers that it cannot do without.

A step at batch 1 moves every weight once. So its floor is the linear layers alone, run back to back on one row. Two
are timed: `floor_ms`, the layers as this runtime runs them (packed), and `stock_floor_ms`,
`torch.nn.functional.linear` on plain weights of the same shapes. All arms take turns in one run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from trt_spec.errors import CapabilityError
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.linear import Linear
from trt_spec.runtime.request import Request, SamplingParams

CONTEXT_LEN = 128  # cached tokens of the timed step
VERIFIED_ROWS = 8
Advance = Callable[[float], None]


def measure_floor(engine: Engine, *, num_rounds: int = 12, advance: Advance = lambda part: None) -> dict[str, Any]:
    """Times one decode step and its parts, medians over rounds in milliseconds.

    Args:
        engine: idle; plain decoding is measured whatever its method.
        num_rounds: rounds of all arms in turn.
        advance: called with the part done, 0 to 1.

    Returns:
        `floor_ms`; `stock_floor_ms`; `plain_step_ms`, a whole engine step at batch 1 (scheduling, sampling and all);
        `plain_over_floor`; `plain_over_stock_floor`; `verify8_over_one`, the forward of 8 rows over that of 1;
        `host_share`, the part of the step spent outside the model.

    Raises:
        CapabilityError: the target's layers are not plain linear layers, or the engine's context is too short.
    """
    _check_room(engine)
    linears = _linears(engine)
    device, dtype = engine.target.device, engine.target.dtype
    widest = max(linear.in_features for linear in linears)
    x = torch.randn(1, widest, device=device).to(dtype)
    stock = [torch.randn(one.out_features, one.in_features, device=device).to(dtype) for one in linears]
    step, model_ms = _StepTimer(engine), []

    def plain_step() -> None:
        model_ms.append(step())

    arms: dict[str, Callable[[], Any]] = {
        "floor": lambda: [linear(x[:, : linear.in_features]) for linear in linears],
        "stock_floor": lambda: [F.linear(x[:, : weight.shape[1]], weight) for weight in stock],
        "plain_step": plain_step,
        "forward_1": lambda: _forward(engine, 1),
        f"forward_{VERIFIED_ROWS}": lambda: _forward(engine, VERIFIED_ROWS),
    }
    with torch.inference_mode(), step.running():
        times = _take_turns(arms, num_rounds, device, advance)
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "floor_ms": median["floor"],
        "stock_floor_ms": median["stock_floor"],
        "plain_step_ms": median["plain_step"],
        "plain_over_floor": median["plain_step"] / median["floor"],
        "plain_over_stock_floor": median["plain_step"] / median["stock_floor"],
        "verify8_over_one": median[f"forward_{VERIFIED_ROWS}"] / median["forward_1"],
        "host_share": max(0.0, 1 - statistics.median(model_ms) / median["plain_step"]),
        "context_len": CONTEXT_LEN,
        "num_rounds": num_rounds,
        "num_threads": torch.get_num_threads(),
        "dtype": engine.config.target.dtype,
    }


def _check_room(engine: Engine) -> None:
    if engine.limits.max_seq_len < CONTEXT_LEN + VERIFIED_ROWS:
        raise CapabilityError(
            "the engine's context is too short for the memory floor",
            where="build.max_seq_len",
            got=engine.limits.max_seq_len,
            expected=f"at least {CONTEXT_LEN + VERIFIED_ROWS}: steps are timed after {CONTEXT_LEN} cached tokens",
            remedy="build the engine with a larger build.max_seq_len",
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


class _StepTimer:
    """Runs decode steps of one endless request and says how long the model took in each, in milliseconds."""

    def __init__(self, engine: Engine):
        self.engine, self._model_s, self._num_started = engine, 0.0, 0

    def __call__(self) -> float:
        while not self.engine.has_work or self._is_prefilling():
            self._start() if not self.engine.has_work else self.engine.step()
        self._model_s = 0.0
        self.engine.step()
        return self._model_s * 1e3

    def _is_prefilling(self) -> bool:
        return not self.engine.scheduler.running or not self.engine.scheduler.running[0].is_decoding

    def _start(self) -> None:
        self._num_started += 1
        params = SamplingParams(max_tokens=self.engine.limits.max_seq_len, ignore_eos=True)
        ids = tuple(range(3, 3 + min(CONTEXT_LEN, self.engine.limits.max_seq_len // 2)))
        self.engine.add(Request(f"floor-{self._num_started}", ids, params, speculation=False))

    @contextmanager
    def running(self):
        """Times the target's calls inside the steps while it lasts; ends its request afterwards."""
        target = self.engine.target
        originals = {name: getattr(target, name) for name in ("forward", "logits")}
        for name, original in originals.items():
            setattr(target, name, self._timed(original))
        try:
            yield self
        finally:
            for name in originals:
                delattr(target, name)  # the class's own method shows again
            self.engine.cancel(f"floor-{self._num_started}")
            self.engine.step()

    def _timed(self, function: Callable) -> Callable:
        def run(*args, **kwargs):
            started = time.perf_counter()
            result = function(*args, **kwargs)
            self._model_s += time.perf_counter() - started
            return result

        return run


def _take_turns(
    arms: dict[str, Callable[[], Any]], num_rounds: int, device: torch.device, advance: Advance
) -> dict[str, list[float]]:
    """Milliseconds of every call: in each round each arm runs several times, in an order that turns round."""
    times: dict[str, list[float]] = {name: [] for name in arms}
    for index in range(num_rounds + 1):
        for name in list(arms) if index % 2 else reversed(list(arms)):
            for repeat in range(6):
                started = time.perf_counter()
                arms[name]()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                if index and repeat:  # the first round warms up, and so does the first call after another arm
                    times[name].append((time.perf_counter() - started) * 1e3)
        advance(index / num_rounds)
    return times
