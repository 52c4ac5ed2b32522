"""What all tests share."""

from __future__ import annotations

import torch
from hypothesis import settings

# Tiny tensors: a second thread only waits, and spins when the other core is busy with another test process.
torch.set_num_threads(1)

# The same examples on every run, and no time limit per example: the machine may be busy with something else.
settings.register_profile("trt_spec", derandomize=True, deadline=None)
settings.load_profile("trt_spec")
