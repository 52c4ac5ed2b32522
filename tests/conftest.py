"""What all tests share."""

from __future__ import annotations

import logging
import signal
from logging.handlers import BufferingHandler

import pytest
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fails a test in which a drafter raised: the engine goes on without its drafts, which few assertions would see."""
    caught, logger = BufferingHandler(1000), logging.getLogger("trt_spec.runtime.drafters.guard")
    logger.addHandler(caught)
    try:
        result = yield
    finally:
        logger.removeHandler(caught)
    if caught.buffer and not item.get_closest_marker("drafter_raises"):
        pytest.fail(f"a drafter raised: {logging.Formatter().format(caught.buffer[0])}")
    return result
