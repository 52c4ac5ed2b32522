"""Traces: what they hold, their formulas, their sums, and their JSON form."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

from tests.runtime.models import prompts, tiny_engine
from trt_spec.clients.client import Params
from trt_spec.clients.engine import EngineClient, SteppedClient
from trt_spec.clients.prompts import Prompt
from trt_spec.clients.trace import Totals, Trace, trace_of
from trt_spec.errors import CapabilityError, MachineError, RequestError
from trt_spec.runtime.request import ACCEPTED, Chunk, Request, SamplingParams
from trt_spec.runtime.stats import DraftCounts


def trace(**changes) -> Trace:
    values = {
        "due_ns": 1_000_000,
        "sent_ns": 1_500_000,
        "chunk_ns": (3_000_000, 5_000_000, 9_000_000),
        "chunk_tokens": (1, 3, 1),
        "num_input_tokens": 4,
        "num_output_tokens": 5,
    }
    return Trace(**{**values, **changes})


def test_formulas():
    one = trace()
    assert one.ttft_ms == 2.0
    assert one.latency_ms == 8.0
    assert one.tpot_ms == 1.5
    assert one.inter_chunk_gaps_ms == [2.0, 4.0]
    assert trace(num_output_tokens=1).tpot_ms is None


def test_totals():
    counts = DraftCounts(1, 4, 2, [1, 1])
    both = Totals.of([trace(drafts=counts), trace(drafts=counts, num_output_tokens=3)])
    assert (both.num_answers, both.num_tokens, both.latency_ms, both.mean_ttft_ms) == (2, 8, 16.0, 2.0)
    assert both.tpot_ms == 12 / 6
    assert both.tokens_per_s == 500
    assert both.tokens_per_step == 6 / (6 - 4)
    assert both.drafts == DraftCounts(2, 8, 4, [2, 2])
    assert Totals.of([trace(drafts=counts), trace()]).tokens_per_step is None


def test_counts_add_up_and_divide():
    counts = DraftCounts()
    assert counts.acceptance_rate is counts.mean_acceptance_length is counts.rate_per_pos is None
    counts.count(4, 2)
    counts.count(3, 0)
    assert counts == DraftCounts(2, 7, 2, [1, 1])
    assert (counts.acceptance_rate, counts.mean_acceptance_length, counts.rate_per_pos) == (2 / 7, 2.0, [0.5, 0.5])


def test_json_round_trip():
    rich = trace(token_ids=(1, 2, 3, 4, 5), text="ä", token_origins=(0, 1, 1, 2, 0), logprobs=(-0.5,) * 5)
    rich = trace(**{**vars(rich), "drafts": DraftCounts(1, 3, 2, [1, 1]), "finish_reason": "stop", "stop_reason": 7})
    for one in (rich, trace()):
        assert Trace.from_dict(json.loads(json.dumps(asdict(one)))) == one
    with pytest.raises(TypeError, match="surprise"):
        Trace.from_dict({"surprise": 1})


def test_the_same_answer_from_the_stepped_engine_and_from_its_thread():
    ids = tuple(prompts(2, 32)[1])
    params = Params(SamplingParams(max_tokens=12, logprobs=True))
    stepped = SteppedClient(tiny_engine("ngram")).ask(Prompt("p", input_ids=ids), params)
    with EngineClient(lambda: tiny_engine("ngram")) as client:
        threaded = client.ask(Prompt("p", input_ids=ids), params)
        streamed = list(client.stream(Prompt("p", input_ids=ids), params))
        client.require("input_ids", "token_origins", purpose="a test")
    [reference] = tiny_engine("ngram").generate([Request("r", ids, params.sampling)])
    for found in (stepped, threaded):
        assert list(found.token_ids) == reference.token_ids
        assert list(found.token_origins) == reference.token_origins
        assert list(found.logprobs) == reference.logprobs
        assert (found.num_input_tokens, found.finish_reason) == (len(ids), "length")
        assert found.drafts == reference.completion.drafts
        assert found.drafts.num_accepted_tokens == found.token_origins.count(ACCEPTED)
        assert sum(found.chunk_tokens) == found.num_output_tokens == 12
    assert [token for chunk in streamed for token in chunk.token_ids] == reference.token_ids


def test_closing_a_stream_ends_its_request():
    engine = tiny_engine("ngram")
    chunks = SteppedClient(engine).stream(
        Prompt("p", input_ids=tuple(prompts(2, 32)[1])), Params(SamplingParams(max_tokens=64))
    )
    assert isinstance(next(chunks), Chunk)
    chunks.close()
    assert not engine.has_work


def test_an_arm_without_speculation_and_refusals():
    ids = tuple(prompts(2, 32)[1])
    plain = SteppedClient(tiny_engine("ngram"), speculation=False)
    assert plain.ask(Prompt("p", input_ids=ids), Params()).drafts == DraftCounts()
    with pytest.raises(RequestError, match="no tokenizer"):
        plain.ask(Prompt("p", "text"), Params())
    plain.abilities -= {"logprobs"}
    with pytest.raises(CapabilityError, match="cannot be used for"):
        plain.require("logprobs", purpose="a certificate")
    with pytest.raises(MachineError, match="without tokens"):
        trace_of([], sent_ns=0)


def test_every_number_is_a_plain_one():
    found = SteppedClient(tiny_engine("ngram")).ask(Prompt("p", input_ids=tuple(prompts(2, 32)[1])), Params())
    assert not any(isinstance(value, torch.Tensor) for value in found.token_ids)
