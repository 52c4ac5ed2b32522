#!/usr/bin/env python3
"""Times steps of a model through the compiled kernels and through torch: the table of docs/performance.md.

Forward and logits, milliseconds, the fastest of some rounds; a process each, since one process decides once.

    python scripts/measure_step.py [CHECKPOINT] [--rounds 4]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch

from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.kernels import library
from trt_spec.runtime.models import load_model

KINDS = ((1, 1, 192), (1, 4, 192), (1, 8, 192), (1, 16, 192), (16, 1, 192), (1, 1, 900), (1, 256, 0))
ARMS = ("bfloat16 compiled", "bfloat16 torch", "float16 compiled", "float32 compiled", "float32 torch")


@torch.inference_mode()
def measure(checkpoint: Path, arm: str, rounds: int) -> None:
    """Prints one row of the table."""
    dtype, way = arm.split()
    if way == "torch":
        library.load = lambda: None
    model = load_model(checkpoint, getattr(torch, dtype), torch.device("cpu"), 2048)
    cache, best = model.make_cache(16, 1024), {}
    for _ in range(rounds):
        for batch_size, num_rows, context in KINDS:
            rows = [Rows(slot, context, [5] * num_rows, range(-1, num_rows - 2)) for slot in range(batch_size)]
            started = time.perf_counter()
            model.logits(model.forward(pack(rows, cache.slot_len, model.dtype, model.device), cache).last)
            seconds, key = time.perf_counter() - started, (batch_size, num_rows, context)
            best[key] = min(best.get(key, seconds), seconds)
    print(f"| {dtype} | {way} |", *(f"{1e3 * best[kind]:.1f} |" for kind in KINDS), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", nargs="?", type=Path, default=Path("checkpoints/smollm2-135m"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--arm", choices=ARMS, help="this one only, in this process")
    given = parser.parse_args()
    if given.arm:
        measure(given.checkpoint, given.arm, given.rounds)
    else:
        print("| weights | computed by |", *(f"{b} × {n} at {c} |" for b, n, c in KINDS))
        for arm in ARMS:
            command = [sys.executable, __file__, given.checkpoint, "--rounds", str(given.rounds), "--arm", arm]
            subprocess.run(command, check=True)
