#!/usr/bin/env python3
"""Measures `trt-spec convert` against its two promises, on a synthetic checkpoint that is removed afterwards.

Peak memory at most 1.5 times the largest shard, by the kernel's count for a process of its own (resident pages, the
interpreter included); and time at most 1.3 times that of copying the same files, per byte written. Both are written
through to the disk, and take turns; the fastest round of each counts.

Starting up is not timed: not the interpreter, and not the import of torch, which a .pt needs and which costs the same
whatever its size. Its seconds are printed apart; its pages count as memory.

    python scripts/measure_conversion.py [--gib 1] [--rounds 5] [--dir /tmp]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trt_spec.checkpoints.streaming import Piece, write_safetensors

MOST_MEMORY, MOST_TIME = 1.5, 1.3
NUM_SHARDS = 4
HIDDEN, INNER, VOCAB = 1024, 4096, 32000

_CHILD = """
import json, re, sys, time
from trt_spec.checkpoints.trtllm import normalise
source, out, build_target, needs_torch = sys.argv[1:]
started = time.monotonic()
if needs_torch == "torch":
    import torch
import_seconds = time.monotonic() - started
started = time.monotonic()
done = normalise.convert(source, out, build_target, "1.2.1")
seconds = time.monotonic() - started
assert done.is_needed
status = open("/proc/self/status").read()  # ru_maxrss would count the process that this one was forked from
peak_kib = int(re.search(r"VmHWM:\\s+(\\d+)", status).group(1))
assert needs_torch == "torch" or "torch" not in sys.modules
print(json.dumps({"seconds": seconds, "import_seconds": import_seconds, "peak_bytes": peak_kib * 1024}))
"""


def tied_model(folder: Path, num_bytes: int) -> str:
    """A Llama-like model with a tied head, in safetensors shards of about equal size; returns who it is for."""
    layer = {f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
    layer |= {f"mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")}
    layer |= {"mlp.down_proj.weight": (HIDDEN, INNER)}
    layer |= {f"{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    per_layer = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
    num_layers = max(NUM_SHARDS, round((num_bytes - 2 * VOCAB * HIDDEN) / per_layer))
    shapes = {f"model.layers.{i}.{name}": shape for i in range(num_layers) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    names = list(shapes)
    for shard in range(NUM_SHARDS):
        chosen = names[len(names) * shard // NUM_SHARDS : len(names) * (shard + 1) // NUM_SHARDS]
        path = folder / f"model-{shard + 1:05d}-of-{NUM_SHARDS:05d}.safetensors"
        write_safetensors(path, [Piece(name, "bfloat16", shapes[name]) for name in chosen])
    return "tensorrt"


def medusa_pickle(folder: Path, num_bytes: int) -> str:
    """Medusa heads without biases as the trainer saves them, one .pt file; returns who they are for."""
    import torch

    per_head = 2 * (HIDDEN * HIDDEN + VOCAB * HIDDEN)
    tensors = {}
    for head in range(max(1, num_bytes // per_head)):
        tensors[f"{head}.0.linear.weight"] = torch.ones(HIDDEN, HIDDEN, dtype=torch.bfloat16)
        tensors[f"{head}.1.weight"] = torch.ones(VOCAB, HIDDEN, dtype=torch.bfloat16)
    torch.save(tensors, folder / "medusa_lm_head.pt")
    (folder / "config.json").write_text("{}")
    return "tensorrt"


def copied(source: Path, out: Path) -> float:
    """Seconds to copy a directory's files through to the disk."""
    started = time.monotonic()
    out.mkdir()
    for path in sorted(source.iterdir()):
        shutil.copyfile(path, out / path.name)
        descriptor = os.open(out / path.name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.monotonic() - started


def measure(make, num_bytes: int, rounds: int, parent: Path) -> bool:
    """One kind of checkpoint: measured, printed, judged."""
    source, out = parent / "source", parent / "out"
    source.mkdir()
    build_target = make(source, num_bytes)
    largest = max(path.stat().st_size for path in source.iterdir())
    read = sum(path.stat().st_size for path in source.iterdir())
    needs_torch = "" if any(source.glob("*.safetensors")) else "torch"
    times, imports, copies, peaks, written = [], [], [], [], 0
    for _ in range(rounds):
        copies.append(copied(source, out))
        shutil.rmtree(out)
        arguments = [sys.executable, "-c", _CHILD, source, out, build_target, needs_torch]
        told = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
        times.append(told["seconds"])
        imports.append(told["import_seconds"])
        peaks.append(told["peak_bytes"])
        written = sum(path.stat().st_size for path in out.iterdir())
        shutil.rmtree(out)
    shutil.rmtree(source)
    memory = max(peaks) / largest
    slowdown = (min(times) / written) / (min(copies) / read)  # other work on the machine only adds to either
    print(f"{make.__name__}: {read / 1e9:.2f} GB read, {written / 1e9:.2f} GB written, shard {largest / 1e6:.0f} MB")
    print(f"  peak memory {max(peaks) / 1e6:.0f} MB = {memory:.2f} of the largest shard (at most {MOST_MEMORY})")
    print(f"  seconds {[round(t, 2) for t in times]}, copying {[round(t, 2) for t in copies]}")
    if needs_torch:
        print(f"  importing torch took {min(imports):.2f} s before that, which is not counted")
    print(f"  time per byte {slowdown:.2f} times copying (at most {MOST_TIME})")
    return memory <= MOST_MEMORY and slowdown <= MOST_TIME


def main() -> int:
    """Exit code 0 where both promises are kept for both kinds of files, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default=None, help="where the files are written; needs about 3 times --gib")
    options = parser.parse_args()
    is_kept = []
    for make in (tied_model, medusa_pickle):
        with tempfile.TemporaryDirectory(dir=options.dir, prefix="measure-conversion-") as parent:
            is_kept.append(measure(make, int(options.gib * 2**30), options.rounds, Path(parent)))
    return 0 if all(is_kept) else 1


if __name__ == "__main__":
    sys.exit(main())
