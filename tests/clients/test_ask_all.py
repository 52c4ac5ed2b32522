"""Several requests at once: in one batch of a stepped engine, and over any client; answers may be empty."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.runtime.models import tiny_engine
from trt_spec.clients.client import Ask, Client, Params
from trt_spec.clients.engine import SteppedClient
from trt_spec.clients.prompts import Prompt
from trt_spec.clients.trace import trace_of
from trt_spec.errors import MachineError
from trt_spec.runtime.request import Chunk, Completion, Request, SamplingParams

SAMPLED = SamplingParams(max_tokens=9, temperature=1.0, logprobs=True)


def test_a_stepped_engine_answers_in_the_batches_of_generate():
    """More requests than the engine takes at once, by seeds: the same tokens as `Engine.generate` gives."""
    engine = tiny_engine("ngram")
    count = engine.limits.capacity + 3
    seeded = [replace(SAMPLED, seed=index) for index in range(count)]
    asks = [
        Ask(Prompt(f"p{i}", input_ids=(1, 2, 3, 1, i % 7)), Params(seeded[i], i % 3 > 0, 1 if i % 2 else None))
        for i in range(count)
    ]
    requests = [
        Request(f"r{i}", ask.prompt.input_ids, seeded[i], ask.params.speculation, ask.params.max_draft_len)
        for i, ask in enumerate(asks)
    ]
    wanted = tiny_engine("ngram").generate(requests)
    found = SteppedClient(engine).ask_all(asks)
    assert [list(trace.token_ids) for trace in found] == [answer.token_ids for answer in wanted]
    assert [list(trace.token_origins) for trace in found] == [answer.token_origins for answer in wanted]
    assert [trace.prompt for trace in found] == [ask.prompt.name for ask in asks]
    assert all(
        trace.drafts.num_drafts == 0 for trace, ask in zip(found, asks, strict=True) if not ask.params.speculation
    )
    assert not engine.has_work


class Echo(Client):
    """Says the prompt's ids back, in one chunk."""

    def stream(self, prompt, params, *, request_id=""):
        num = len(prompt.input_ids)
        done = Completion("length", None, num, num, None, 0, 0, 0, [], 0, None, 0, 0)
        yield Chunk(request_id, token_ids=list(prompt.input_ids), completion=done)


def test_answers_come_in_order_and_may_be_empty():
    prompts = [Prompt(str(i), input_ids=tuple(range(i))) for i in range(20)]
    found = Echo().ask_all([Ask(prompt, Params()) for prompt in prompts])
    assert [trace.token_ids for trace in found] == [prompt.input_ids for prompt in prompts]
    with pytest.raises(MachineError, match="without tokens"):
        Echo().ask(prompts[0], Params())
    with pytest.raises(MachineError, match="without tokens"):
        trace_of([], sent_ns=0, may_be_empty=True)
