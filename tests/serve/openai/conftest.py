"""The front on the tiny engine in a real tritonserver, once for all tests that need it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.triton.conftest import MAX_BATCH_SIZE, MAX_SEQ_LEN, MODEL_NAME, built, client, installation, server
from tests.waiting import WAIT_S
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.serve.openai.requests import Upstream
from trt_spec.serve.openai.server import OpenAIServer

__all__ = ["built", "client", "installation", "server"]  # fixtures


@pytest.fixture(scope="session")
def served(built) -> Upstream:
    """What the front knows of the tiny engine."""
    return Upstream(MODEL_NAME, MAX_SEQ_LEN, MAX_BATCH_SIZE, Tokenizer.load(built.engine_dir / "target"))


@pytest.fixture(scope="session")
def front(server, served) -> Iterator[OpenAIServer]:
    """The front, on a port of its own."""
    running = OpenAIServer(0, drain_timeout_s=5)
    running.start(served, server.grpc_url, server.check)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def official(front) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, which does not retry, so that every refusal is seen."""
    with openai.OpenAI(base_url=front.url, api_key="none", max_retries=0, timeout=WAIT_S) as connected:
        yield connected
