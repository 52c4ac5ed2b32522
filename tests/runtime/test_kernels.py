"""The compiled kernels against float64, against torch's path, and against themselves with other rows beside."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from tests.runtime.models import tiny_model
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.kernels import library
from trt_spec.runtime.kernels.packed import PackedWeight
from trt_spec.runtime.linear import GatedLinear, Linear, linear_of

KERNELS = library.load()
needs_kernels = pytest.mark.skipif(KERNELS is None, reason="no kernels were compiled for this processor")
DTYPES = list(library.DTYPES)
SHAPES = [(1, 1), (7, 5), (16, 64), (33, 96), (48, 257), (130, 600)]  # (out, in): fewer and more than a panel, a chunk
ROWS = (1, 2, 3, 5, 6, 7, 12, 13, 18, 19, 64, 97)  # one pass over registers, several, buffers, more than one block


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(shape, dtype, has_bias):
    """Within the rounding of float32 sums of the exact product, and the same bits whatever rows are beside a row."""
    weight, bias = random(*shape).to(dtype), random(shape[0], seed=1).to(dtype) if has_bias else None
    packed, x = PackedWeight(KERNELS, weight, bias), random(max(ROWS), shape[1], seed=2)
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    alone = torch.cat([packed(row[None]) for row in x])
    assert (alone - exact).abs().max() <= 1e-6 * shape[1] ** 0.5 * 8
    for rows in ROWS:
        assert torch.equal(packed(x[:rows]), alone[:rows])


@needs_kernels
@pytest.mark.parametrize("shape", [(2, 3), (14, 40), (96, 300)], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_gated_linear(shape, has_bias):
    """silu(gate) · up, also in panels that are not full, and for large values of either sign."""
    weight, bias = random(*shape), random(shape[0], seed=1) if has_bias else None
    x = random(9, shape[1], seed=2) * torch.tensor([1e-3, 1.0, 40.0]).repeat(3)[:, None]
    gate, up = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double()).chunk(
        2, -1
    )
    exact = torch.nn.functional.silu(gate) * up
    actual = PackedWeight(KERNELS, weight, bias, is_gated=True)(x)
    assert (actual - exact).abs().max() <= 1e-5 * exact.abs().max()


@needs_kernels
def test_not_a_number_stays_in_its_row():
    packed, x = PackedWeight(KERNELS, random(40, 70)), random(20, 70)
    clean = packed(x)
    x[4, 69], x[11, 0] = float("nan"), float("inf")
    spoiled = packed(x)
    assert not spoiled[4].isfinite().any()
    assert not spoiled[11].isfinite().any()
    kept = [row for row in range(20) if row not in (4, 11)]
    assert torch.equal(spoiled[kept], clean[kept])


def test_takes_what_it_is_given():
    """Other dtypes, strides and no rows at all."""
    for dtype in (torch.float32, torch.float64):
        linear, gated = Linear(random(6, 8).to(dtype)), GatedLinear(random(6, 8).to(dtype))
        x = random(8, 5).to(dtype).T
        torch.testing.assert_close(linear(x), linear(x.contiguous()))
        assert linear(x).dtype == gated(x).dtype == dtype
        assert (linear(x[:0]).shape, gated(x[:0]).shape) == ((0, 6), (0, 3))


def logits(model, rows: list[Rows], cache) -> Tensor:
    with torch.inference_mode():
        return model.logits(model.forward(pack(rows, cache.slot_len, model.dtype, model.device), cache).last)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_branch_of_a_tree_has_the_bits_of_plain_decoding(dtype):
    """Token by token, as a chain, and as a branch among others: not close, equal. Contexts across a softmax step."""
    model, context = tiny_model(dtype=dtype), [index * 7 % 32 for index in range(125)]
    path = [3, 9, 4, 1, 22, 8]
    plain, chain, tree = (model.make_cache(3, 256) for _ in range(3))
    for cache in (plain, chain, tree):
        logits(model, [Rows(1, 0, context)], cache)
    wanted = torch.cat([logits(model, [Rows(1, 125 + depth, [token])], plain) for depth, token in enumerate(path)])
    assert torch.equal(logits(model, [Rows(1, 125, path, range(-1, len(path) - 2))], chain), wanted)
    parents = (-1, -1, 0, 0, 2, 4, 4, 5, 7)  # the nodes 0, 2, 4, 5, 7 are the path behind its first token
    nodes = [9, 30, 4, 17, 1, 22, 6, 8, 2]
    other = Rows(0, 0, [5, 6, 7])
    branches = logits(model, [other, Rows(1, 125, [path[0], *nodes], parents)], tree)[3:]
    assert torch.equal(branches[[0, 1, 3, 5, 6, 8]], wanted)


@needs_kernels
def test_equals_torch(monkeypatch):
    """The same tokens through torch's layers, over a ragged batch and captured streams."""
    compiled = tiny_model()
    monkeypatch.setattr(library, "load", lambda: None)
    plain = tiny_model()
    assert compiled.layers[0].qkv.packed is not None
    assert plain.layers[0].qkv.packed is None
    rows = [Rows(0, 0, [1, 2, 3]), Rows(2, 0, list(range(20))), Rows(3, 0, [9, 8, 7, 6], (-1, -1, 0))]
    found = []
    for model in (compiled, plain):
        cache = model.make_cache(4, 64)
        batch = pack(rows, cache.slot_len, model.dtype, model.device)
        hidden = model.forward(batch, cache, (0, 1, len(model.layers)))
        found.append((hidden.last, hidden.aux, cache.rows))
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("limit", "allowed"), [("default", [None]), ("avx2", ["avx2", None])])
def test_can_be_forced_down(limit, allowed):
    """By torch's own variable, so that one setting forces down both."""
    code = "from trt_spec.runtime.kernels.library import load; print(load() and load().isa)"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": limit}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() in map(str, allowed)


@needs_kernels
def test_threads_share_the_work_and_change_no_bit():
    packed, x = PackedWeight(KERNELS, random(600, 64)), random(20, 64)
    model, rows = tiny_model(), [Rows(slot, 0, list(range(1 + 3 * slot))) for slot in range(4)]
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append((packed(x), logits(model, rows, model.make_cache(4, 64))))
    finally:
        torch.set_num_threads(before)
    for one, other in itertools.pairwise(results):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@needs_kernels
def test_one_model_in_two_threads():
    """Each with a cache of its own: they share no memory that either writes."""
    model, prompts = tiny_model(), ([3], list(range(26)))
    wanted = [logits(model, [Rows(0, 0, prompt)], model.make_cache(1, 64)) for prompt in prompts]

    def again(which: int) -> bool:
        cache = model.make_cache(1, 64)
        return all(torch.equal(logits(model, [Rows(0, 0, prompts[which])], cache), wanted[which]) for _ in range(300))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(again, range(2))) == [True, True]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "foreign", "older"])
def test_a_library_that_is_not_ours_is_not_loaded(damage, tmp_path, monkeypatch):
    built = library.find()
    if built is None and damage in ("cut", "older"):
        pytest.skip("nothing was compiled")
    path = tmp_path / library.Path(library.__file__).name
    monkeypatch.setattr(library, "__file__", str(path))
    own = path.with_name(f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}")
    if damage == "empty":
        own.touch()
    elif damage == "cut":
        own.write_bytes(built.read_bytes()[:5000])
    elif damage == "foreign":
        shutil.copy(torch._C.__file__, own)
    elif damage == "older":
        shutil.copy(built, own)
        monkeypatch.setattr(library, "INTERFACE", library.INTERFACE + 1)
    assert library.find() is None


def test_a_bias_that_some_of_the_fused_layers_have():
    weights = {f"{name}.weight": random(4, 8, seed=index) for index, name in enumerate("qkv")}
    fused, x = linear_of({**weights, "v.bias": torch.ones(4)}, *"qkv"), random(3, 8, seed=9)
    parts = [torch.nn.functional.linear(x, weights[f"{name}.weight"]) for name in "qkv"]
    parts[2] += 1
    torch.testing.assert_close(fused(x), torch.cat(parts, dim=-1))


SANITIZED = """
import ctypes, sys, torch
from pathlib import Path
from trt_spec.runtime.kernels import library
library.find = lambda: Path(sys.argv[1])
torch.set_num_threads(2)
from tests.runtime import test_kernels as tests
for shape in ((7, 5), (33, 96)):
    for dtype in tests.DTYPES:
        packed = tests.PackedWeight(library.load(), tests.random(*shape).to(dtype), tests.random(shape[0]).to(dtype))
        for rows in (1, 7, 19):
            packed(tests.random(rows, shape[1]))
for dtype in tests.DTYPES:
    tests.test_a_branch_of_a_tree_has_the_bits_of_plain_decoding(dtype)
print("clean")
"""


@needs_kernels
def test_no_undefined_behaviour(tmp_path):
    """The kernels under the address and undefined-behaviour sanitizers, where the compiler has them."""
    sources = sorted(library.find().parent.glob("*.cc"))
    built = tmp_path / "kernels.so"
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = ["g++", "-O1", "-g", "-w", "-std=c++17", "-shared", "-fPIC", *checks, "-o", built, *sources]
    if shutil.which("g++") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no g++ with sanitizers")
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    environment = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    told = subprocess.run([sys.executable, "-c", SANITIZED, built], env=environment, capture_output=True, text=True)
    assert told.stdout.endswith("clean\n"), told.stderr[-3000:]
