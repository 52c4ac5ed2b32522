"""The compiled kernels as a C library: found, checked against this processor, started on torch's threads."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
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
        *((name, ctypes.c_int32) for name in ("num_layers", "intermediate_size")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
        ("layers", ctypes.POINTER(Layer)),
        ("final_norm", ctypes.c_void_p),
    ]


class Step(ctypes.Structure):
    """`Step` of kernels.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("num_rows", "num_captured", "input_width", "cache_width")),
        *((name, ctypes.c_int32) for name in ("cache_format", "unused")),
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
        self.isa, self.c = isa, ctypes.CDLL(str(path))
        self.width = self.c.trt_spec_start(ISAS[isa], parallel)
        self.c.trt_spec_panel_bytes.restype = ctypes.c_int64
        self.c.trt_spec_workspace_floats.restype = ctypes.c_int64


def _parallel() -> ctypes.c_void_p | None:
    """GOMP_parallel of the OpenMP library that torch is linked with: a second one would fight it for the cores.

    None where torch runs on another kind.
    """
    try:
        linked = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
        return ctypes.cast(linked.GOMP_parallel, ctypes.c_void_p)  # found among what it is linked with
    except (OSError, AttributeError):
        return None


def find() -> Path | None:
    """What the installation compiled; None where it found no compiler, or the file is damaged or of another state."""
    path = Path(__file__).with_name(f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}")
    try:
        return path if _is_whole(path) and ctypes.CDLL(str(path)).trt_spec_interface() == INTERFACE else None
    except (OSError, AttributeError):
        return None


def _is_whole(path: Path) -> bool:
    """Whether an ELF file reaches to its section table, which lies at its end: mapping a cut one ends the process."""
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:4] != b"\x7fELF":
        return False
    [start], (entry_size, num_entries) = struct.unpack_from("<Q", header, 40), struct.unpack_from("<2H", header, 58)
    return path.stat().st_size >= start + entry_size * num_entries


@functools.cache
def load() -> Library | None:
    """The kernels for this process, or None where there are none for it.

    ATEN_CPU_CAPABILITY, which limits torch's own kernels, limits these too: `avx2` forces AVX-512 down, `default`
    leaves torch alone.
    """
    path = find()
    if path is None:
        return None
    bits, names = ctypes.CDLL(str(path)).trt_spec_isa(), list(ISAS)
    limit = os.environ.get("ATEN_CPU_CAPABILITY", "")
    allowed = [] if limit == "default" else names[: names.index(limit) + 1] if limit in names else names
    usable = [name for index, name in enumerate(names) if bits >> index & 1 and name in allowed]
    parallel = _parallel()
    return Library(path, usable[-1], parallel) if usable and parallel else None


def library_for(dtype: torch.dtype, device: torch.device) -> Library | None:
    """The kernels for weights of `dtype` on `device`, or None: torch computes there."""
    return load() if device.type == "cpu" and dtype in DTYPES else None


def activation_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What the layers hand on for weights of `dtype`: float32 where the kernels run, else the weights' own dtype."""
    return dtype if library_for(dtype, device) is None else torch.float32
