"""How an engine's threads wait: read off what OpenMP itself says it goes by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trt_spec.triton
from trt_spec.triton.host.threads import SPIN_COUNT

MODEL = Path(trt_spec.triton.__file__).parent / "models" / "streaming.py"
LOAD = f"""
import runpy, sys, types
sys.modules["triton_python_backend_utils"] = types.ModuleType("triton_python_backend_utils")
runpy.run_path({str(MODEL)!r})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings GNU OpenMP on Linux")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, f"GOMP_SPINCOUNT = '{SPIN_COUNT}'"),
        ({"GOMP_SPINCOUNT": "77"}, "GOMP_SPINCOUNT = '77'"),
        ({"OMP_WAIT_POLICY": "passive"}, "GOMP_SPINCOUNT = '0'"),
    ],
)
def test_the_streaming_models_idle_threads_soon_sleep(given, expected):
    """Of two engines on the same cores, one would otherwise spin away the time in which the other could compute."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    environment = {**inherited, **given, "OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run([sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=True)
    assert expected in done.stderr
