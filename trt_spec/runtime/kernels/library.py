"""The compiled kernels as a C library: found, checked against this processor, started on torch's threads."""

from __future__ import annotations

import ctypes
import functools
import os
import sysconfig
from pathlib import Path

import torch

INTERFACE = 1  # of kernels.h; raised with every change of a struct or a function
ISAS = {"avx2": 1, "avx512": 2}  # by what `trt_spec_start` takes; the last that the processor has is used
DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}  # of weights and caches, as in kernels.h


class Packed(ctypes.Structure):
    """`Packed` of kernels.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("format", "in_features", "out_features", "num_panels")),
        *((name, ctypes.c_int32) for name in ("is_gated", "unused")),
        *((name, ctypes.c_void_p) for name in ("panels", "bias")),
    ]


class Layer(ctypes.Structure):
    """`Layer` of kernels.h."""

    _fields_ = [
        *((name, Packed) for name in ("qkv", "output", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("input_norm", "post_norm", "q_norm", "k_norm")),
    ]


class Stack(ctypes.Structure):
    """`Stack` of kernels.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("hidden_size", "num_heads", "num_kv_heads", "head_dim")),
        *((name, ctypes.c_int32) for name in ("num_layers", "cache_format", "intermediate_size", "pad")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
        ("layers", ctypes.POINTER(Layer)),
        ("final_norm", ctypes.c_void_p),
    ]


class Step(ctypes.Structure):
    """`Step` of kernels.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("num_rows", "num_captured", "input_width", "cache_width")),
        *((name, ctypes.c_void_p) for name in ("x", "normed", "caches", "cache_rows", "slot_starts", "prefixes")),
        *((name, ctypes.c_void_p) for name in ("extra_starts", "extras", "cos", "sin", "capture", "captured")),
        *((name, ctypes.c_void_p) for name in ("out", "workspace")),
    ]


class Library:
    """The kernels of one instruction set.

    Args:
        parallel: GOMP_parallel of the OpenMP library that torch runs on.

    Attributes:
        isa: its name.
        width: floats of its vectors.
    """

    def __init__(self, path: Path, isa: str, parallel: ctypes.c_void_p):
        self.path, self.isa, self.c = path, isa, ctypes.CDLL(str(path))
        self.width = self.c.trt_spec_start(ISAS[isa], parallel)
        self.c.trt_spec_panel_bytes.restype = ctypes.c_int64
        self.c.trt_spec_workspace_floats.restype = ctypes.c_int64


def _parallel() -> ctypes.c_void_p | None:
    """GOMP_parallel of the OpenMP library that torch has loaded: a second one would fight it for the cores.

    None where torch runs on another one.
    """
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].rstrip() for line in maps if "libgomp" in line}
    of_torch = [path for path in sorted(paths) if Path(torch.__file__).parent.parent in Path(path).parents]
    found = [*of_torch, *sorted(paths)]
    return ctypes.cast(ctypes.CDLL(found[0]).GOMP_parallel, ctypes.c_void_p) if found else None


def find() -> Path | None:
    """What the installation compiled; None where it found no compiler, or compiled for an older state of this file."""
    path = Path(__file__).with_name(f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}")
    return path if path.is_file() and ctypes.CDLL(str(path)).trt_spec_interface() == INTERFACE else None


@functools.cache
def load() -> Library | None:
    """The kernels for this process, or None where there are none for it.

    ATEN_CPU_CAPABILITY, which limits torch's own kernels, limits these too: `avx2` forces AVX-512 down, `default`
    leaves torch alone.
    """
    path = find()
    if path is None:
        return None
    bits = ctypes.CDLL(str(path)).trt_spec_isa()
    wanted = os.environ.get("ATEN_CPU_CAPABILITY", "avx512").replace("_", "").lower()
    names = list(ISAS)
    allowed = names[: names.index(wanted) + 1] if wanted in names else names if wanted != "default" else []
    usable = [name for index, name in enumerate(names) if bits >> index & 1 and name in allowed]
    parallel = _parallel()
    return Library(path, usable[-1], parallel) if usable and parallel else None


def library_for(dtype: torch.dtype, device: torch.device) -> Library | None:
    """The kernels for weights of `dtype` on `device`, or None: torch computes there."""
    return load() if device.type == "cpu" and dtype in DTYPES else None


def activation_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What the layers hand on for weights of `dtype`: float32 where the kernels run, else the weights' own dtype."""
    return dtype if library_for(dtype, device) is None else torch.float32
