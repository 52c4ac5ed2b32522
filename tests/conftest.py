"""What all tests share."""

from __future__ import annotations

import signal

import torch
from hypothesis import settings

# Tiny tensors: a second thread only waits, and spins when the other core is busy with another test process.
torch.set_num_threads(1)

# A shell that starts tests in the background has SIGINT ignored, and programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run, and no time limit per example: the machine may be busy with something else.
settings.register_profile("trt_spec", derandomize=True, deadline=None)
settings.load_profile("trt_spec")
