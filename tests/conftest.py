"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# The same examples on every run, and no time limit per example: the machine may be busy with something else.
settings.register_profile("trt_spec", derandomize=True, deadline=None)
settings.load_profile("trt_spec")
