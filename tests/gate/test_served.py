"""The gate on a real tritonserver and on the OpenAI front before it: both arms, all counts, the switch honoured."""

from __future__ import annotations

import pytest

from tests.serve.openai.conftest import built, client, front, installation, served, server
from trt_spec.clients.prompts import Prompt
from trt_spec.gate import metrics
from trt_spec.gate.arrivals import ClosedLoop
from trt_spec.gate.measure import Plan, SystemClock, measure
from trt_spec.gate.openai import OpenAISubject
from trt_spec.gate.subjects import TritonSubject, encoder

__all__ = ["built", "client", "front", "installation", "served", "server"]  # fixtures

pytestmark = pytest.mark.server
NUM_TOKENS = 120  # enough for random weights to repeat themselves, which n-gram drafts need
PROMPTS = [Prompt("cat", "the cat sat on the mat and the cat"), Prompt("raw", "def f(x): return x", is_chat=False)]


def subject_of(kind, server, front, served):
    if kind == "openai":
        return OpenAISubject(dict.fromkeys(("plain", "speculation"), front.url), "tensorrt_llm", SystemClock())
    url = f"grpc://{server.grpc_url}" if kind == "grpc" else server.http_url
    urls = dict.fromkeys(("plain", "speculation"), url)
    return TritonSubject(urls, "tensorrt_llm", encoder(served.tokenizer), SystemClock())


@pytest.mark.parametrize("kind", ["http", "grpc", "openai"])
def test_a_run(kind, server, front, served):
    subject = subject_of(kind, server, front, served)
    rows = measure(subject, Plan([ClosedLoop(4)], PROMPTS, 2, NUM_TOKENS), clock=SystemClock())
    subject.close()
    assert len(rows) == 6 * 4
    assert {row.num_output_tokens for row in rows} == {NUM_TOKENS}
    assert all(sum(row.chunk_tokens) == NUM_TOKENS for row in rows)
    assert all(metrics.ttft_ms(row) > 0 for row in rows)
    by_arm = {arm: metrics.acceptance([row for row in rows if row.arm == arm]) for arm in ("plain", "speculation")}
    assert by_arm["plain"]["num_draft_tokens"] == 0
    assert by_arm["speculation"]["num_draft_tokens"] > 0
    assert by_arm["speculation"]["rate_per_pos"] is not None
    inputs = {row.prompt: row.num_input_tokens for row in rows}
    assert inputs["cat"] > inputs["raw"]  # the chat template was there
