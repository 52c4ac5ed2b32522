"""The served model through a real tritonserver: all ways in, all that a client may do wrong, many at once."""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from scripts.docs.dashboard import ROWS
from tests.triton import abuse
from tests.triton.conftest import LONG, MAX_BATCH_SIZE, MAX_DRAFT_LEN, MAX_QUEUE_SIZE, MAX_SEQ_LEN, MODEL_NAME
from tests.waiting import WAIT_S, until
from trt_spec.clients import triton_wire as wire
from trt_spec.clients.triton import TritonClient
from trt_spec.errors import CapabilityError, MachineError, OverloadedError, RequestError
from trt_spec.runtime.loading import load_engine
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.triton.codec import merge
from trt_spec.triton.contract import OUTPUT_BY_NAME, WIRE_TYPES
from trt_spec.triton.served_request import ServedRequest, engine_requests

pytestmark = pytest.mark.server
PROMPT = "the cat sat on the mat and the cat"
# Between four tokens only, so that bigrams come back: what n-gram drafts live on.
OVERLOAD_STATUS = {"generate": 400, "generate_stream": 400, "infer": 503}  # of server 2.51
REPETITIVE = {"logit_bias": {100: 50.0, 101: 50.0, 102: 50.0, 103: 50.0}, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(built):
    """The same engine in this process, to compare with."""
    return load_engine(built.engine_dir)


@pytest.fixture(autouse=True)
def idle(server):
    """No test starts, or ends, with another one's requests still running."""
    wait_for(server, running=0)
    yield
    wait_for(server, running=0)


def metrics(server):
    """Our series: name with its label values, without the model's, to value."""
    with urllib.request.urlopen(server.metrics_url, timeout=WAIT_S) as response:
        lines = [line for line in response.read().decode().splitlines() if line.startswith("trt_spec_")]
    return {line.split()[0].replace(f'{{model="{MODEL_NAME}"}}', ""): float(line.split()[1]) for line in lines}


def wait_for(server, *, running):
    until(lambda: metrics(server)["trt_spec_num_requests_running"] == running, pause_s=0.02)


@contextmanager
def cancels(server, number=1):
    """In the block so many requests are left by their clients, and none of them runs to its end."""
    before = abuse.outcomes(server)
    yield
    until(lambda: (abuse.outcomes(server) - before).total() == number, pause_s=0.02)
    assert abuse.outcomes(server) - before == {"cancelled": number}
    wait_for(server, running=0)


def post(server, path, body):
    """Status and body of a plain HTTP request, without our client."""
    connection = http.client.HTTPConnection(server.http_url, timeout=WAIT_S)
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
    response = connection.getresponse()
    data = response.read().decode()
    connection.close()
    return response.status, data


def ways(client):
    """Every way to ask for an answer, as functions that return it whole."""
    return {
        "generate": client.generate,
        "infer over gRPC": client.infer,
        "infer over HTTP": lambda *args, **kwargs: client.infer(*args, transport="http", **kwargs),
        "stream": lambda *args, **kwargs: merge(list(client.stream(*args, **kwargs))),
        "generate_stream": lambda *args, **kwargs: merge(list(client.generate_stream(*args, **kwargs))),
    }


WAYS = ("generate", "infer over gRPC", "infer over HTTP", "stream", "generate_stream")


# --- answers ---


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_what_the_engine_gives(client, engine, way):
    params = SamplingParams(max_tokens=40, logprobs=True, **REPETITIVE)
    ids = engine.tokenizer.encode(PROMPT)
    (expected,) = engine.generate([Request("r", tuple(ids), params)])
    for prompt in (PROMPT, ids):
        got = ways(client)[way](prompt, max_tokens=40, logprobs=True, return_cumulative_logprob=True, **REPETITIVE)
        assert (got.text, got.token_ids) == (expected.text, expected.token_ids)
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        done = got.completion
        assert (done.finish_reason, done.num_input_tokens, done.num_output_tokens) == ("length", len(ids), 40)
        assert done.num_drafts == expected.completion.num_drafts > 0
        assert done.accepted_per_position == expected.completion.accepted_per_position
        assert done.total_accepted_draft_tokens == sum(done.accepted_per_position)
        assert done.cumulative_logprob == pytest.approx(sum(expected.logprobs), abs=1e-2)
        times = done.arrival_time_ns, done.first_scheduled_time_ns, done.first_token_time_ns, done.last_token_time_ns
        assert times[0] > 0
        assert list(times) == sorted(times)


def test_sampling_with_a_seed_repeats_and_agrees_with_the_engine(client, engine):
    params = {"max_tokens": 30, "temperature": 0.8, "top_p": 0.95, "seed": 2**64 - 1, "ignore_eos": True}
    ids = engine.tokenizer.encode(PROMPT)
    (expected,) = engine.generate([Request("r", tuple(ids), SamplingParams(**params))])
    assert client.generate(PROMPT, **params).token_ids == expected.token_ids
    assert client.infer(PROMPT, **params).token_ids == expected.token_ids
    texts = {client.generate(PROMPT, max_tokens=30, temperature=1.0, ignore_eos=True).text for _ in range(3)}
    assert len(texts) == 3  # no seed: no two alike


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_samples_are_those_of_the_engine_and_each_has_its_end(client, engine, transport):
    params = {"max_tokens": 20, "temperature": 1.0, "seed": 11, "ignore_eos": True, "logprobs": True}
    ids = engine.tokenizer.encode(PROMPT)
    served = ServedRequest(n=3, params=SamplingParams(**params))
    expected = engine.generate(engine_requests(served, "r", ids))
    got = client.samples(PROMPT, 3, transport=transport, **params)
    assert [chunk.token_ids for chunk in got] == [done.token_ids for done in expected]
    assert [chunk.text for chunk in got] == [done.text for done in expected]
    assert len({chunk.text for chunk in got}) == 3
    assert [chunk.completion.num_output_tokens for chunk in got] == [20] * 3
    assert client.generate(PROMPT, **params).token_ids == got[0].token_ids
    with pytest.raises(RequestError, match="samples"):
        client.generate(PROMPT, n=2)


@pytest.mark.parametrize("path", [f"{MODEL_NAME}/generate", f"{MODEL_NAME}_unary/generate"])
def test_samples_in_one_answer_can_be_told_apart(server, client, path):
    body = {"text_input": PROMPT, "sampling_param_n": 3, "sampling_param_best_of": 3, "sampling_param_seed": 11}
    body |= {"sampling_param_max_tokens": 20, "sampling_param_temperature": 1.0, "sampling_param_ignore_eos": True}
    status, text = post(server, f"/v2/models/{path}", body)
    answer = json.loads(text)
    assert status == 200
    single = client.samples(PROMPT, 3, max_tokens=20, temperature=1.0, seed=11, ignore_eos=True)
    assert answer["text_output"] == [chunk.text for chunk in single]
    assert answer["sequence_index"] == [0, 1, 2]
    assert answer["num_output_tokens"] == [20, 20, 20]
    assert answer["output_ids"] == [token for chunk in single for token in chunk.token_ids]
    assert answer["num_input_tokens"] == single[0].completion.num_input_tokens
    assert answer["finish_reason"] == ["length"] * 3


def test_samples_beyond_the_queue_are_refused_before_any_runs(client, server):
    refused = abuse.outcomes(server)["refused"] + 1
    with pytest.raises(RequestError, match="invalid request parameter n"):
        client.samples(PROMPT, MAX_BATCH_SIZE + MAX_QUEUE_SIZE + 1)
    assert len(client.samples(PROMPT, MAX_BATCH_SIZE + MAX_QUEUE_SIZE, max_tokens=2, ignore_eos=True)) == 12
    deltas = client.stream(PROMPT, n=MAX_BATCH_SIZE, **LONG)
    next(deltas)
    wait_for(server, running=MAX_BATCH_SIZE)
    with pytest.raises(OverloadedError):
        client.samples(PROMPT, MAX_QUEUE_SIZE + 1, max_tokens=2)
    until(lambda: abuse.outcomes(server)["refused"] > refused)
    with cancels(server):
        deltas.close()


@pytest.mark.parametrize("way", ["stream", "generate_stream"])
def test_a_stream_is_deltas(client, way):
    params = {"max_tokens": 200, **REPETITIVE}
    whole = client.generate(PROMPT, **params)
    chunks = list(getattr(client, way)(PROMPT, **params))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token for chunk in chunks for token in chunk.token_ids] == whole.token_ids
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(chunk.token_ids for chunk in chunks)
    assert 1 < len(chunks) < 200  # accepted drafts come together
    assert chunks[-1].completion.num_output_tokens == 200


def test_speculation_can_be_turned_off_and_changes_nothing(client):
    params = {"max_tokens": 60, **REPETITIVE}
    plain, drafted = client.generate(PROMPT, speculation=False, **params), client.generate(PROMPT, **params)
    assert plain.token_ids == drafted.token_ids
    assert (plain.completion.num_drafts, plain.completion.total_draft_tokens) == (0, 0)
    short = client.generate(PROMPT, max_draft_len=1, **params)
    assert short.token_ids == plain.token_ids
    assert len(short.completion.accepted_per_position) == 1 < len(drafted.completion.accepted_per_position)


def test_stops_end_it_and_say_so(client):
    whole = client.generate(PROMPT, max_tokens=60, ignore_eos=True)
    string, token = whole.text[20:23], whole.token_ids[10]
    by_string = client.generate(PROMPT, max_tokens=60, ignore_eos=True, stop=[string, "never"])
    assert whole.text.startswith(by_string.text + string)
    assert (by_string.completion.finish_reason, by_string.completion.stop_reason) == ("stop", string)
    by_token = client.infer(PROMPT, max_tokens=60, ignore_eos=True, stop_token_ids=[token])
    assert by_token.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]
    assert (by_token.completion.finish_reason, by_token.completion.stop_reason) == ("stop", token)


def test_the_prompt_can_be_put_before_the_text(client):
    plain = client.generate(PROMPT, max_tokens=5, ignore_eos=True)
    echoed = client.generate(PROMPT, max_tokens=5, ignore_eos=True, exclude_input_from_output=False)
    streamed = merge(list(client.stream(PROMPT, max_tokens=5, ignore_eos=True, exclude_input_from_output=False)))
    assert echoed.text == streamed.text == PROMPT + plain.text
    assert echoed.token_ids == plain.token_ids


def test_text_of_every_kind_comes_back_whole(client):
    prompt = 'quotes " and \\ and \0 and \n and é, 世界 🎉'
    for way in ways(client).values():
        assert way(prompt, max_tokens=1, ignore_eos=True, exclude_input_from_output=False).text.startswith(prompt)


def test_the_context_limit_cuts(client):
    ids = [5] * (MAX_SEQ_LEN - 2)
    answer = client.generate(ids, max_tokens=100, ignore_eos=True)
    assert (answer.completion.finish_reason, answer.completion.num_output_tokens) == ("length", 2)
    with pytest.raises(RequestError, match="input_ids"):
        client.generate([5] * MAX_SEQ_LEN, max_tokens=1)


# --- other people's clients ---


def test_the_answer_has_the_declared_types(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as other:
        declared = {t.name: t.datatype for t in other.get_model_metadata(MODEL_NAME).outputs}
        assert declared == {name: WIRE_TYPES[output.data_type] for name, output in OUTPUT_BY_NAME.items()}
        prompt = tritonclient.grpc.InferInput("text_input", [1], "BYTES")
        prompt.set_data_from_numpy(np.array([PROMPT.encode()], dtype=object))
        result = other.infer(f"{MODEL_NAME}_unary", [prompt], request_id="mine")
    response = result.get_response()
    assert response.id == "mine"
    assert {output.name: output.datatype for output in response.outputs}.items() <= declared.items()
    assert result.as_numpy("acceptance_rate").dtype == np.float32
    assert result.as_numpy("num_output_tokens").tolist() == [len(result.as_numpy("output_ids"))]


def test_a_client_gets_only_the_outputs_that_it_asks_for(server):
    with tritonclient.http.InferenceServerClient(server.http_url) as other:
        prompt = tritonclient.http.InferInput("text_input", [1], "BYTES")
        prompt.set_data_from_numpy(np.array([PROMPT.encode()], dtype=object))
        wanted = [tritonclient.http.InferRequestedOutput("num_output_tokens")]
        response = other.infer(f"{MODEL_NAME}_unary", [prompt], outputs=wanted).get_response()
    assert [output["name"] for output in response["outputs"]] == ["num_output_tokens"]


def test_a_client_of_llmapi_works_unchanged(server):
    body = {
        "text_input": PROMPT,
        "sampling_param_max_tokens": 5,
        "sampling_param_beam_width": 1,
        "sampling_param_best_of": 1,
        "sampling_param_exclude_input_from_output": True,
        "sampling_param_return_perf_metrics": True,
        "return_finish_reason": True,
        "return_cumulative_logprob": True,
        "streaming": False,
    }
    status, text = post(server, f"/v2/models/{MODEL_NAME}/generate", body)
    answer = json.loads(text)
    assert status == 200
    assert isinstance(answer["text_output"], str)
    assert isinstance(answer["acceptance_rate"], float)
    assert answer["kv_cache_reused_block"] == 0
    assert answer["cumulative_logprob"] < 0


# --- errors ---


@pytest.mark.parametrize("model", [MODEL_NAME, f"{MODEL_NAME}_unary"])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text_input": "a", "max_tokens": 5}, ["unknown request parameter max_tokens", "sampling_param_max_tokens"]),
        ({"text_input": "a", "temprature": 0.5}, ["unknown request parameter temprature"]),
        ({"sampling_param_max_tokens": 5}, ["no prompt"]),
        ({"text_input": "a", "input_ids": [1]}, ["two prompts"]),
        ({"text_input": "a", "sampling_param_n": 0}, ["sampling_param_n", "at least 1"]),
        ({"text_input": "a", "sampling_param_best_of": 2}, ["sampling_param_best_of", "not supported"]),
        ({"text_input": "a", "lora_id": 1}, ["lora_id", "not supported"]),
        ({"text_input": "a", "sampling_param_top_p": 2.0}, ["top_p"]),
        ({"text_input": "a", "max_draft_len": MAX_DRAFT_LEN + 1}, ["max_draft_len"]),
        ({"input_ids": [100000]}, ["input_ids", "100000"]),
        ({"text_input": "a", "sampling_param_max_tokens": "five"}, []),
    ],
)
def test_what_is_wrong_with_a_request_is_said(server, model, body, words):
    status, text = post(server, f"/v2/models/{model}/generate", body)
    assert status in (400, 500)
    message = json.loads(text)["error"]
    assert all(word in message for word in words)


@pytest.mark.parametrize("way", WAYS)
def test_errors_have_their_kind_whatever_the_way(client, way):
    ask = ways(client)[way]
    with pytest.raises(RequestError, match="temperature"):
        ask("a", temperature=-1.0)
    with pytest.raises(RequestError, match="max_draft_len"):
        ask("a", max_draft_len=MAX_DRAFT_LEN + 1)
    with pytest.raises(CapabilityError, match="sampling_param_best_of"):
        ask("a", best_of=2)
    with pytest.raises(RequestError, match="finite"):
        ask("a", temperature=float("nan"))
    with pytest.raises(RequestError):
        ask("a", temperature=float("inf"))


@pytest.mark.parametrize("model", [MODEL_NAME, f"{MODEL_NAME}_unary"])
def test_a_wrong_data_type_and_an_unknown_input_are_refused(server, model):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as other:
        for name, datatype, words in (
            ("sampling_param_max_tokens", "FP32", "INT32"),
            ("sampling_param_typo", "FP32", "sampling_param_typo"),
        ):
            tensor = tritonclient.grpc.InferInput(name, [1], datatype)
            tensor.set_data_from_numpy(np.array([1.0], np.float32))
            if model == MODEL_NAME:
                answers = []
                other.start_stream(lambda result, error, answers=answers: answers.append(error))
                other.async_stream_infer(model, [tensor])
                other.stop_stream()
                assert words in str(answers[0])
            else:
                with pytest.raises(tritonclient.grpc.InferenceServerException, match=words):
                    other.infer(model, [tensor])


def test_the_alias_does_not_stream(client):
    with pytest.raises(RequestError, match="streaming"):
        client.infer("a", streaming=True)


def test_a_server_that_is_not_there_is_a_machine_error():
    with TritonClient("127.0.0.1:1", "127.0.0.1:1", timeout_s=5) as nobody:
        assert not nobody.is_ready()
        for way in ways(nobody).values():
            with pytest.raises(MachineError, match="cannot be reached"):
                way("a", max_tokens=1)


def test_the_client_knows_when_the_models_are_ready(client, server):
    assert client.is_ready()
    assert not TritonClient(server.http_url, model_name="other").is_ready()
    with pytest.raises(RequestError, match="other"):
        TritonClient(server.http_url, model_name="other").generate("a")


# --- many at once, and those that go away ---


@pytest.mark.parametrize("way", WAYS)
def test_eight_requests_run_at_the_same_time_and_do_not_mix(client, server, way):
    prompts = [f"prompt {number}" for number in range(MAX_BATCH_SIZE)]
    alone = [client.generate(prompt, max_tokens=300, ignore_eos=True, speculation=False).text for prompt in prompts]
    before = metrics(server)["trt_spec_steps_total"]
    with ThreadPoolExecutor(MAX_BATCH_SIZE) as pool:
        ask = ways(client)[way]
        answers = list(
            pool.map(lambda prompt: ask(prompt, max_tokens=300, ignore_eos=True, speculation=False).text, prompts)
        )
    assert answers == alone
    time.sleep(0.1)
    steps = metrics(server)["trt_spec_steps_total"] - before
    assert steps < 300 * MAX_BATCH_SIZE / 2  # one after the other they would take 300 each


def test_overload_is_refused_and_nothing_is_lost(client):
    total = 3 * (MAX_BATCH_SIZE + MAX_QUEUE_SIZE)

    def ask(number):
        try:
            return (client.generate if number % 2 else client.infer)(
                f"p{number}", max_tokens=200, ignore_eos=True, speculation=False
            ).completion.num_output_tokens
        except OverloadedError:
            return "refused"

    with ThreadPoolExecutor(total) as pool:
        results = list(pool.map(ask, range(total)))
    assert set(results) == {200, "refused"}
    assert results.count(200) >= MAX_BATCH_SIZE


def test_an_overloaded_server_says_so_in_every_protocol(client, server):
    """HTTP generate has one status for every refusal of a model; the text's last line says which it is."""
    body = wire.to_infer(wire.request_values(PROMPT, {"max_tokens": 2}), "")
    deltas = client.stream(PROMPT, n=MAX_BATCH_SIZE + MAX_QUEUE_SIZE, **LONG)
    next(deltas)
    found = {
        "generate": post(server, f"/v2/models/{MODEL_NAME}/generate", {"text_input": PROMPT}),
        "generate_stream": post(server, f"/v2/models/{MODEL_NAME}/generate_stream", {"text_input": PROMPT}),
        "infer": post(server, f"/v2/models/{MODEL_NAME}_unary/infer", body),
    }
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as other:
        prompt = tritonclient.grpc.InferInput("text_input", [1], "BYTES")
        prompt.set_data_from_numpy(np.array([PROMPT.encode()], dtype=object))
        with pytest.raises(tritonclient.grpc.InferenceServerException, match="queue is full") as caught:
            other.infer(f"{MODEL_NAME}_unary", [prompt])
    deltas.close()
    assert {way: status for way, (status, _) in found.items()} == OVERLOAD_STATUS
    assert all("queue is full" in text and "code: overloaded" in text for _, text in found.values())
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


@pytest.mark.parametrize("way", ["stream", "generate_stream"])
def test_a_closed_stream_frees_its_slot(client, server, way):
    deltas = getattr(client, way)(PROMPT, **LONG)
    next(deltas)
    wait_for(server, running=1)
    with cancels(server):
        deltas.close()


@pytest.mark.parametrize("model", [MODEL_NAME, f"{MODEL_NAME}_unary"])
def test_a_request_is_stopped_by_its_id(client, server, model):
    unary = model != MODEL_NAME
    with ThreadPoolExecutor(1) as pool:
        ask = client.infer if unary else client.generate
        answer = pool.submit(ask, PROMPT, request_id="long one", **LONG)
        wait_for(server, running=1)
        client.stop("long one", unary=unary)
        done = answer.result(WAIT_S).completion
    assert done.finish_reason == "cancelled"
    assert 0 < done.num_output_tokens < LONG["max_tokens"]
    with pytest.raises(RequestError, match="no request in flight"):
        client.stop("long one", unary=unary)


def test_a_grpc_deadline_on_the_alias_frees_the_slot(server):
    before = abuse.outcomes(server)["length"]
    with TritonClient(server.http_url, server.grpc_url, timeout_s=0.3) as hasty:
        with pytest.raises(MachineError, match="in time"):
            hasty.infer(PROMPT, **LONG)
        wait_for(server, running=0)
    assert abuse.outcomes(server)["length"] == before  # it did not run to its end; it may not have begun


def test_a_client_that_goes_disturbs_no_neighbour(client, server):
    alone = client.generate(PROMPT, max_tokens=400, ignore_eos=True, speculation=False)
    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(client.generate, PROMPT, max_tokens=400, ignore_eos=True, speculation=False)
        for _ in range(4):
            deltas = client.stream("another prompt", **LONG)
            next(deltas)
            deltas.close()
        assert neighbour.result(WAIT_S).token_ids == alone.token_ids


def test_a_connection_that_is_reset_frees_its_slot(server):
    host, port = server.http_url.split(":")
    body = json.dumps(
        {"text_input": PROMPT, "streaming": True, "sampling_param_max_tokens": 3900, "speculation": False}
    )
    with cancels(server), socket.create_connection((host, int(port))) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing sends a reset
        head = (
            f"POST /v2/models/{MODEL_NAME}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        raw.sendall((head + body).encode())
        raw.recv(100)


def test_requests_and_errors_and_cancellations_mixed(client, server):
    """A short form of the soak that the models were made with: the server stays up, the rest is right."""
    expected = client.generate("p", max_tokens=30, ignore_eos=True).text

    def one(number):
        way = WAYS[number % len(WAYS)]
        try:
            if number % 7 == 0:
                deltas = (client.stream if number % 2 else client.generate_stream)("p", **LONG)
                next(deltas)
                deltas.close()
                return True
            if number % 11 == 0:
                ways(client)[way]("p", temperature=-1.0)
                return False
            return ways(client)[way]("p", max_tokens=30, ignore_eos=True).text == expected
        except RequestError:
            return number % 11 == 0
        except OverloadedError:
            return True

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(400)))
    server.check()


# --- metrics ---


def test_the_metrics_count_what_was_done(client, server):
    before = metrics(server)
    done = client.generate(PROMPT, max_tokens=60, **REPETITIVE).completion
    assert done.total_accepted_draft_tokens > 0
    with pytest.raises(RequestError):
        client.generate(PROMPT, temperature=-1.0)

    def gained(name):
        return metrics(server).get(f"trt_spec_{name}", 0) - before.get(f"trt_spec_{name}", 0)

    def series(position):
        return f'num_accepted_tokens_per_pos_total{{model="{MODEL_NAME}",position="{position}"}}'

    # The counters that are published last of all.
    until(lambda: [gained(series(at)) for at in range(MAX_DRAFT_LEN)] == list(done.accepted_per_position))
    wait_for(server, running=0)
    after = metrics(server)
    assert gained("num_output_tokens_total") == 60
    assert gained("num_drafts_total") == done.num_drafts
    assert gained("num_draft_tokens_total") == done.total_draft_tokens
    assert gained("num_accepted_tokens_total") == done.total_accepted_draft_tokens
    assert 0 < gained("steps_total") <= 60
    assert gained(f'requests_total{{model="{MODEL_NAME}",outcome="length"}}') == 1
    assert gained(f'requests_total{{model="{MODEL_NAME}",outcome="refused"}}') == 1
    assert (after["trt_spec_kv_slots"], after["trt_spec_kv_slots_used"]) == (MAX_BATCH_SIZE, 0)
    assert (after["trt_spec_num_requests_waiting"], after["trt_spec_engine_up"]) == (0, 1)


def test_every_metric_of_the_dashboard_is_exported(client, server):
    client.generate(PROMPT, max_tokens=60, **REPETITIVE)
    client.infer(PROMPT, max_tokens=1)

    def exported():
        with urllib.request.urlopen(server.metrics_url, timeout=WAIT_S) as response:
            lines = [line for line in response.read().decode().splitlines() if line and not line.startswith("#")]
        return {re.split(r"[{ ]", line)[0] for line in lines}

    queries = [query for _, panels in ROWS for panel in panels for query in panel.queries.values()]
    queried = {name for query in queries for name in re.findall(r"\b(?:trt_spec|nv)_\w+", query)}
    assert len(queried) > 10
    until(lambda: queried - exported() == {"trt_spec_num_requests_in_flight"})  # the llmapi model's
