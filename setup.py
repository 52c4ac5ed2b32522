"""Compiles the kernels of the decode step where a C++ compiler is found; pyproject.toml has all the rest.

Without one the package installs all the same, computes with torch, and `trt-spec doctor` says so.
"""

import platform
import sys

from setuptools import Extension, setup

KERNELS = "trt_spec/runtime/kernels"

kernels = Extension(
    "trt_spec.runtime.kernels._kernels",  # a C library that ctypes loads: no module of Python's
    sources=[f"{KERNELS}/{name}.cc" for name in ("step", "avx2", "avx512")],
    depends=[f"{KERNELS}/{name}" for name in ("kernels.h", "kernels.inl")],
    extra_compile_args=["-O3", "-g0", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-w"],
    language="c++",
    optional=True,
)
is_ours = sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")
setup(ext_modules=[kernels] if is_ours else [])
