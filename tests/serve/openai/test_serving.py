"""The front through the official client, unchanged, on a real tritonserver; and what other clients may do to it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.triton.conftest import MAX_BATCH_SIZE, MAX_DRAFT_LEN, MAX_QUEUE_SIZE, MAX_SEQ_LEN, MODEL_NAME
from tests.triton.test_serving import cancels, wait_for
from tests.waiting import WAIT_S
from trt_spec.errors import MachineError
from trt_spec.serve.openai.server import OpenAIServer
from trt_spec.triton.server.installation import free_ports

pytestmark = pytest.mark.server
PROMPT = "the cat sat on the mat and the cat"
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the cat sat"}]
GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}
SLOW = {"max_tokens": 3900, "temperature": 0, "extra_body": {"ignore_eos": True, "speculation": False}}


@pytest.fixture(autouse=True)
def idle(server):
    """No test starts, or ends, with another one's requests still running."""
    wait_for(server, running=0)
    yield
    wait_for(server, running=0)


def post(front, path, body):
    """Status, headers and body of a request that no client of OpenAI would send."""
    status, headers, data = send(front, "POST", f"/v1{path}", body if isinstance(body, bytes) else json.dumps(body))
    return status, headers, json.loads(data)


def send(front, method, path, body=None):
    """Status, headers and body over a connection of its own."""
    connection = http.client.HTTPConnection(front.host, front.port, timeout=WAIT_S)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, answer.headers, data


def complete(official, **fields):
    return official.completions.create(model=MODEL_NAME, **fields)


def chat(official, **fields):
    return official.chat.completions.create(model=MODEL_NAME, messages=MESSAGES, **fields)


# --- answers ---


def test_a_completion_is_what_triton_answers(official, client, served):
    expected = client.generate(PROMPT, max_tokens=30, ignore_eos=True, temperature=0)
    got = complete(official, prompt=PROMPT, max_tokens=30, **GREEDY)
    [choice] = got.choices
    assert (choice.text, choice.finish_reason, got.object) == (expected.text, "length", "text_completion")
    done = expected.completion
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (done.num_input_tokens, 30)
    assert got.usage.total_tokens == done.num_input_tokens + 30
    assert (got.model, got.id[:5]) == (MODEL_NAME, "cmpl-")
    by_ids = complete(official, prompt=served.tokenizer.encode(PROMPT), max_tokens=30, **GREEDY)
    assert by_ids.choices[0].text == choice.text


def test_a_chat_goes_through_the_template(official, client, served):
    text = served.tokenizer.apply_chat_template(MESSAGES)
    ids = served.tokenizer.encode(text, add_special_tokens=False)
    expected = client.generate(ids, max_tokens=20, ignore_eos=True, temperature=0)
    got = chat(official, max_completion_tokens=20, **GREEDY)
    message = got.choices[0].message
    assert (message.role, message.content, got.object) == ("assistant", expected.text, "chat.completion")
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (len(ids), 20)
    parts = [{**item, "content": [{"type": "text", "text": item["content"]}]} for item in MESSAGES]
    as_parts = official.chat.completions.create(model=MODEL_NAME, messages=parts, max_tokens=20, **GREEDY)
    assert as_parts.choices[0].message.content == expected.text


def test_a_streamed_completion_adds_up(official):
    whole = complete(official, prompt=PROMPT, max_tokens=50, **GREEDY)
    events = list(complete(official, prompt=PROMPT, max_tokens=50, stream=True, **GREEDY))
    assert "".join(event.choices[0].text for event in events) == whole.choices[0].text
    assert [event.choices[0].finish_reason for event in events] == [None] * (len(events) - 1) + ["length"]
    assert len(events) > 1
    assert {event.id for event in events} == {events[0].id}
    assert all(event.usage is None for event in events)


def test_a_streamed_chat_adds_up_and_tells_its_usage(official):
    whole = chat(official, max_tokens=50, **GREEDY)
    events = list(chat(official, max_tokens=50, stream=True, stream_options={"include_usage": True}, **GREEDY))
    *shown, last = events
    assert last.choices == []
    assert last.usage == whole.usage
    deltas = [event.choices[0].delta for event in shown]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert [event.choices[0].finish_reason for event in shown] == [None] * (len(shown) - 1) + ["length"]
    assert {event.object for event in events} == {"chat.completion.chunk"}


def test_the_wire_format_of_a_stream(front):
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 3, "stream": True}
    status, headers, data = send(front, "POST", "/v1/completions", json.dumps(body))
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    lines = data.decode().splitlines()
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line == "" or line.startswith("data: ") for line in lines)
    assert all(line == "" for line in lines[1::2])


def test_running_usage_counts_up(official):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = list(complete(official, prompt=PROMPT, max_tokens=20, stream=True, stream_options=options, **GREEDY))
    counts = [event.usage.completion_tokens for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 20
    assert len({event.usage.prompt_tokens for event in events}) == 1
    assert events[0].usage.prompt_tokens > 0


def test_several_choices_differ_and_repeat_with_a_seed(official):
    asked = {"prompt": PROMPT, "n": 3, "max_tokens": 20, "seed": 7, "extra_body": {"ignore_eos": True}}
    first, second = complete(official, **asked), complete(official, **asked)
    texts = [choice.text for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3  # temperature 1 is OpenAI's default
    assert texts == [choice.text for choice in second.choices]
    assert (first.usage.completion_tokens, first.usage.prompt_tokens) == (60, second.usage.prompt_tokens)
    streamed = ["", "", ""]
    for event in complete(official, stream=True, **asked):
        streamed[event.choices[0].index] += event.choices[0].text
    assert streamed == texts
    alone = complete(official, prompt=PROMPT, max_tokens=1)
    assert first.usage.prompt_tokens == alone.usage.prompt_tokens  # once, not per choice


def test_more_prompts_than_the_engine_holds_are_all_answered(official):
    prompts = [f"prompt {number}" for number in range(MAX_BATCH_SIZE + MAX_QUEUE_SIZE + 8)]
    got = complete(official, prompt=prompts, max_tokens=5, **GREEDY)
    assert [choice.index for choice in got.choices] == list(range(len(prompts)))
    for number in (0, 13, len(prompts) - 1):
        alone = complete(official, prompt=prompts[number], max_tokens=5, **GREEDY)
        assert got.choices[number].text == alone.choices[0].text


def test_stop_strings_and_echo(official):
    whole = complete(official, prompt=PROMPT, max_tokens=60, **GREEDY).choices[0].text
    string = whole[20:23]
    stopped = complete(official, prompt=PROMPT, max_tokens=60, stop=[string, "never"], **GREEDY).choices[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", string)
    assert whole.startswith(stopped.text + string)
    assert string not in stopped.text
    echoed = complete(official, prompt=PROMPT, max_tokens=5, echo=True, **GREEDY).choices[0].text
    assert echoed == PROMPT + whole[: len(echoed) - len(PROMPT)]
    events = complete(official, prompt=PROMPT, max_tokens=5, echo=True, stream=True, **GREEDY)
    assert "".join(event.choices[0].text for event in events) == echoed


def test_log_probabilities(official, client, served):
    expected = client.generate(PROMPT, max_tokens=12, ignore_eos=True, temperature=0, logprobs=True)
    got = complete(official, prompt=PROMPT, max_tokens=12, logprobs=0, **GREEDY).choices[0]
    assert got.logprobs.token_logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert len(got.logprobs.tokens) == 12
    for token, offset in zip(got.logprobs.tokens, got.logprobs.text_offset, strict=True):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert got.text[offset : offset + len(token)] == token
    whole = chat(official, max_tokens=12, logprobs=True, **GREEDY).choices[0].logprobs.content
    events = chat(official, max_tokens=12, logprobs=True, stream=True, **GREEDY)
    streamed = [
        item for event in events for item in (event.choices[0].logprobs.content if event.choices[0].logprobs else [])
    ]
    assert [item.token for item in streamed] == [item.token for item in whole]
    assert [item.logprob for item in streamed] == pytest.approx([item.logprob for item in whole], abs=1e-4)
    assert all(item.logprob <= 0 and item.top_logprobs == [] for item in whole)


def test_speculation_is_a_parameter_and_changes_nothing(official):
    asked = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "logit_bias": {"100": 50, "101": 50}}
    drafted, plain, short = (
        complete(official, extra_body={"ignore_eos": True, "return_perf_metrics": True, **extra}, **asked).choices[0]
        for extra in ({}, {"speculation": False}, {"max_draft_len": 1})
    )
    assert drafted.text == plain.text == short.text
    assert plain.speculation["num_drafts"] == 0 < drafted.speculation["num_drafts"]
    assert len(short.speculation["accepted_per_position"]) == 1


def test_the_default_of_a_chat_is_the_rest_of_the_context(official):
    ids = [5] * (MAX_SEQ_LEN - 100)
    got = complete(official, prompt=ids, max_tokens=1000, **GREEDY)
    assert (got.choices[0].finish_reason, got.usage.completion_tokens) == ("length", 100)
    assert (
        complete(official, prompt=PROMPT, temperature=0, extra_body={"ignore_eos": True}).usage.completion_tokens == 16
    )
    started = chat(official, stream=True, **GREEDY)
    for number, _ in enumerate(started):
        if number > 100:  # more than the contract's own default of 64
            started.close()
            break
    else:
        pytest.fail("the chat ended early")


def test_models_and_health(official, front):
    [model] = official.models.list().data
    assert model.id == MODEL_NAME
    assert official.models.retrieve(MODEL_NAME).id == MODEL_NAME
    with pytest.raises(openai.NotFoundError):
        official.models.retrieve("other/model")
    assert send(front, "GET", "/health")[0] == 200


# --- errors ---


def test_another_model_is_not_found(official):
    with pytest.raises(openai.NotFoundError) as caught:
        official.completions.create(model="gpt-4", prompt="a")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": -1}, "temperature", "temperature"),
        ({"top_p": 0}, "top_p", "top_p"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens"),
        ({"stop": [""]}, "stop", "non-empty"),
        ({"stop": ["\ud800"]}, "stop", "Unicode"),
        ({"seed": 2**64}, "seed", "seed"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"100000": 1}}, "logit_bias", "100000"),
        ({"n": 0}, "n", "1 to 128"),
        ({"n": 2.0}, "n", "1 to 128"),
        ({"logprobs": 5}, "logprobs", "no others"),
        ({"best_of": 3}, "best_of", "ranked"),
        ({"suffix": "end"}, "suffix", "suffix"),
        ({"temprature": 0.5}, "temprature", "unknown field"),
        ({"max_draft_len": MAX_DRAFT_LEN + 1}, "max_draft_len", "max_draft_len"),
        ({"top_k": -1}, "top_k", "top_k"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"prompt": [1.5]}, "prompt", "token ids"),
        ({"prompt": [100000]}, "prompt", "100000"),
        ({"prompt": []}, "prompt", "token ids"),
        ({"prompt": None}, "prompt", "no prompt"),
        ({"prompt": "\ud800"}, "prompt", "Unicode"),
        ({"prompt": [5] * MAX_SEQ_LEN}, "prompt", "longer than the context"),
        ({"tools": [{"type": "function"}]}, "tools", "unknown field"),
        ({"model": None}, "model", "no model"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_with_a_completion_is_named(front, fields, param, words, stream):
    body = {"model": MODEL_NAME, "prompt": "a", "max_tokens": 2, **({"stream": True} if stream else {}), **fields}
    status, _, answer = post(front, "/completions", body)
    error = answer["error"]
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert words in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "a", "name": "Bob"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "a " * MAX_SEQ_LEN}]}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 5, "max_tokens": 6}, "max_completion_tokens"),
        ({"top_logprobs": 5, "logprobs": True}, "top_logprobs"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"store": True}, "store"),
        ({"prompt": "a"}, "prompt"),
    ],
)
def test_what_is_wrong_with_a_chat_is_named(front, fields, param):
    status, _, answer = post(front, "/chat/completions", {"model": MODEL_NAME, "messages": MESSAGES, **fields})
    assert (status, answer["error"]["param"]) == (400, param)


def test_options_of_a_stream_need_a_stream(front):
    body = {"model": MODEL_NAME, "prompt": "a", "stream_options": {"include_usage": True}}
    status, _, answer = post(front, "/completions", body)
    assert (status, answer["error"]["param"]) == (400, "stream_options")
    assert "needs stream" in answer["error"]["message"]


def test_harmless_fields_are_ignored(official):
    got = chat(official, max_tokens=2, user="me", metadata={"a": "b"}, store=False, service_tier="auto", tools=[])
    assert got.usage.completion_tokens <= 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "no JSON object"),
        (b'{"model": "\xff"}', "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'{"model": "tensorrt_llm", "prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"model": "tensorrt_llm", "prompt": "a", "temperature": 1e999}', "temperature"),
        (b'{"model": "tensorrt_llm", "prompt": "a", "max_tokens": 1' + b"0" * 400 + b"}", "max_tokens"),
    ],
)
def test_a_body_that_is_none_is_a_bad_request(front, official, body, words):
    status, _, answer = post(front, "/completions", body)
    assert status == 400
    assert words in answer["error"]["message"]
    assert complete(official, prompt="a", max_tokens=1).usage.completion_tokens == 1


def test_paths_and_methods_that_are_not_there(front):
    for path, status in (("/nothing", 404), ("/completions", 405)):
        found, _, data = send(front, "GET", f"/v1{path}")
        assert (found, json.loads(data)["error"]["type"]) == (status, "invalid_request_error")


# --- many at once, and those that go away ---


def test_overload_is_429_and_nothing_is_lost(official, front):
    total = 3 * (MAX_BATCH_SIZE + MAX_QUEUE_SIZE)

    def ask(number):
        try:
            asked = {"prompt": f"p{number}", "max_tokens": 200, "stream": bool(number % 2), **GREEDY}
            answer = complete(official, **asked)
            if number % 2:
                return [event for event in answer][-1].choices[0].finish_reason
            return answer.choices[0].finish_reason
        except openai.RateLimitError as error:
            return f"refused, retry after {error.response.headers['retry-after']} s"

    with ThreadPoolExecutor(total) as pool:
        results = list(pool.map(ask, range(total)))
    assert set(results) == {"length", "refused, retry after 1 s"}
    assert results.count("length") >= MAX_BATCH_SIZE


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slots(official, server, front, stream):
    body = json.dumps(
        {
            "model": MODEL_NAME,
            "prompt": PROMPT,
            "n": 2,
            "stream": stream,
            "temperature": 0,
            "max_tokens": 3900,
            "ignore_eos": True,
            "speculation": False,
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with cancels(server, 2), socket.create_connection((front.host, front.port)) as raw:
        raw.sendall(head + body)
        wait_for(server, running=2)


def test_a_closed_stream_of_the_official_client_frees_its_slot(official, server):
    stream = complete(official, prompt=PROMPT, stream=True, **SLOW)
    next(stream)
    wait_for(server, running=1)
    with cancels(server):
        stream.close()


# --- the front itself ---


def test_without_triton_it_is_not_ready(served):
    [port] = free_ports(1)
    alone = OpenAIServer(0, drain_timeout_s=1).start(served, f"127.0.0.1:{port}")
    try:
        client = openai.OpenAI(base_url=alone.url, api_key="none", max_retries=0)
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as caught:
                client.completions.create(model=MODEL_NAME, prompt="a", stream=stream)
            assert (caught.value.status_code, caught.value.code) == (503, "not_ready")
        assert send(alone, "GET", "/health")[0] == 503
    finally:
        alone.stop()


def test_a_stopping_front_finishes_what_runs(server, served):
    front = OpenAIServer(0, drain_timeout_s=WAIT_S).start(served, server.grpc_url)
    client = openai.OpenAI(base_url=front.url, api_key="none", max_retries=0)
    events = client.completions.create(
        model=MODEL_NAME,
        prompt=PROMPT,
        stream=True,
        max_tokens=600,
        temperature=0,
        extra_body={"ignore_eos": True, "speculation": False},
        stream_options={"include_usage": True},
    )
    next(events)
    stopping = threading.Thread(target=front.stop)
    stopping.start()
    *_, last = events
    assert last.usage.completion_tokens == 600
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    with pytest.raises(openai.APIConnectionError):
        client.models.list()


def test_a_front_whose_server_failed_tells_its_clients(server, served):
    front = OpenAIServer(0, drain_timeout_s=WAIT_S).start(served, server.grpc_url)
    client = openai.OpenAI(base_url=front.url, api_key="none", max_retries=0)
    events = client.completions.create(model=MODEL_NAME, prompt=PROMPT, stream=True, **SLOW)
    next(events)
    stopping = threading.Thread(target=front.stop, kwargs={"is_failed": True})
    stopping.start()
    with pytest.raises(openai.APIError, match="has failed"):
        list(events)
    stopping.join(WAIT_S)
    assert not stopping.is_alive()


def test_a_front_that_ended_by_itself_ends_the_watch_of_the_server(server, served):
    front = OpenAIServer(0, drain_timeout_s=1).start(served, server.grpc_url)
    try:
        front.check()
        front._server.should_exit = True  # as uvicorn does after an error of its own
        with pytest.raises(MachineError, match="the OpenAI front ended"):
            server.wait(threading.Event(), front.check, period_s=0.05)
    finally:
        front.stop()
