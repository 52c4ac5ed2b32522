"""The gate on a real tritonserver and on the OpenAI front before it: both arms, all counts, the switch honoured."""

from __future__ import annotations

import pytest

from tests.serve.openai.conftest import built, client, front, installation, served, server
from trt_spec.clients.openai import OpenAIClient
from trt_spec.clients.prompts import Prompt
from trt_spec.clients.triton import ServedClient
from trt_spec.gate import metrics
from trt_spec.gate.arrivals import ClosedLoop
from trt_spec.gate.measure import Plan, measure
from trt_spec.gate.records import ARMS

__all__ = ["built", "client", "front", "installation", "served", "server"]  # fixtures

pytestmark = pytest.mark.server
NUM_TOKENS = 120  # enough for random weights to repeat themselves, which n-gram drafts need
PROMPTS = [Prompt("cat", "the cat sat on the mat and the cat"), Prompt("raw", "def f(x): return x", is_chat=False)]


def client_of(kind, server, front, served):
    if kind == "openai":
        return OpenAIClient(front.url, "tensorrt_llm")
    url = f"grpc://{server.grpc_url}" if kind == "grpc" else server.http_url
    return ServedClient(url, "tensorrt_llm", served.tokenizer)


@pytest.mark.parametrize("kind", ["http", "grpc", "openai"])
def test_a_run(kind, server, front, served):
    with client_of(kind, server, front, served) as client:
        found = measure(dict.fromkeys(ARMS, client), Plan([ClosedLoop(4)], PROMPTS, 2, NUM_TOKENS))
    rows = [row.trace for row in found]
    assert len(rows) == 6 * 4
    assert {row.num_output_tokens for row in rows} == {NUM_TOKENS}
    assert all(sum(row.chunk_tokens) == NUM_TOKENS for row in rows)
    assert all(row.ttft_ms > 0 for row in rows)
    by_arm = {arm: metrics.acceptance([row.trace for row in found if row.arm == arm]) for arm in ARMS}
    assert by_arm["plain"].num_draft_tokens == 0
    assert by_arm["speculation"].num_draft_tokens > 0
    assert by_arm["speculation"].rate_per_pos is not None
    inputs = {row.prompt: row.num_input_tokens for row in rows}
    assert inputs["cat"] > inputs["raw"]  # the chat template was there
