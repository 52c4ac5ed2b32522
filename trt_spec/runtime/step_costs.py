"""What a step of the target costs by its rows on this machine, timed once when an engine is built.

`speculation.adaptive_draft_len` weighs it. It is kept in the engine's directory and not timed again by every load, so
that an engine that is loaded twice drafts alike.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from trt_spec.errors import CheckpointError
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.models import Model
from trt_spec.runtime.sampling import finite_rows, first_argmax
from trt_spec.runtime.step import Now

FILE_NAME = "step_costs.json"  # rows of a step to its time; the unit is a step of one row
CONTEXT_LEN = 192  # cached tokens of a sequence, where the engine has room for as many
NUM_ROUNDS = 5  # over all kinds of steps; the first warms up, and of the others the fastest counts


@torch.inference_mode()
def measure_step_costs(target: Model, limits: EngineLimits, now: Now = time.perf_counter) -> dict[int, float]:
    """Relative time of a step by its rows, for plain steps and for chains of drafts up to the engine's longest.

    A step is timed with its output layer and with what the host has to read of it. Kinds of steps with as many rows
    are averaged: twice the requests with half the draft each.
    """
    context = min(CONTEXT_LEN, limits.max_seq_len // 2)
    cache = target.make_cache(limits.max_batch_size, context + limits.rows_per_sequence)

    def seconds(batch_size: int, num_rows: int) -> float:
        rows = [Rows(slot, context, [0] * num_rows, range(-1, num_rows - 2)) for slot in range(batch_size)]
        started = now()
        batch = pack(rows, cache.slot_len, target.dtype, target.device)
        logits = target.logits(target.forward(batch, cache).last)
        finite_rows(logits), first_argmax(logits)  # which waits for a GPU, too
        return now() - started

    kinds = list(_kinds(limits))
    times: dict[tuple[int, int], list[float]] = {kind: [] for kind in kinds}
    for index in range(NUM_ROUNDS):
        for kind in kinds if index % 2 else reversed(kinds):
            times[kind].append(seconds(*kind))
    by_rows: dict[int, list[float]] = {}
    for (batch_size, num_rows), found in times.items():
        by_rows.setdefault(batch_size * num_rows, []).append(min(found[1:]))
    points = {rows: statistics.fmean(found) for rows, found in sorted(by_rows.items())}
    return _rising({rows: cost / points[1] for rows, cost in points.items()})


def _kinds(limits: EngineLimits) -> Iterator[tuple[int, int]]:
    """(requests, rows of each): powers of two and the largest; draft lengths 0, 1, 2, 4, … and the longest."""
    longest, most = limits.rows_per_sequence - 1, limits.max_batch_size
    batch_sizes = sorted({most, *(2**power for power in range(most.bit_length()) if 2**power <= most)})
    lengths = sorted({0, longest, *(2**power for power in range(longest.bit_length()) if 2**power <= longest)})
    for batch_size in batch_sizes:
        for length in lengths:
            if length == 0 or batch_size * (1 + length) <= limits.max_num_tokens:
                yield batch_size, 1 + length


def _rising(points: dict[int, float]) -> dict[int, float]:
    """The mean of the lowest rising cover and the highest rising floor: more rows never cost less."""
    costs = list(points.values())
    return {rows: round((max(costs[: index + 1]) + min(costs[index:])) / 2, 3) for index, rows in enumerate(points)}


def write_step_costs(engine_dir: Path, costs: dict[int, float]) -> None:
    """Puts the costs into an engine directory that is being built."""
    (engine_dir / FILE_NAME).write_text(json.dumps(costs, indent=1) + "\n", encoding="utf-8")


def read_step_costs(engine_dir: Path) -> dict[int, float] | None:
    """The costs that the build of an engine measured; None where it did not.

    Raises:
        CheckpointError: the file is not what `write_step_costs` wrote.
    """
    path = engine_dir / FILE_NAME
    if not path.is_file():
        return None
    try:
        costs = {int(rows): float(cost) for rows, cost in json.loads(path.read_text(encoding="utf-8")).items()}
        if 1 in costs and min(costs.values()) > 0:
            return costs
        problem = "no time of one row, or a time of 0"
    except (ValueError, AttributeError, TypeError) as error:
        problem = str(error)
    raise CheckpointError(
        "the engine's step costs are not readable",
        where=str(path),
        got=problem,
        expected='rows to relative times: {"1": 1.0, "8": 1.3}',
        remedy="build the engine again",
    )
