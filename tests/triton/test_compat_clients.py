"""Clients written for inflight_batcher, on a real tritonserver: its names, its batch axis, its ways in."""

from __future__ import annotations

import http.client
import json
import queue
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.triton.conftest import LONG, MAX_BATCH_SIZE, MAX_DRAFT_LEN, MAX_QUEUE_SIZE
from tests.triton.test_server import make_server
from tests.triton.test_serving import cancels, metrics, wait_for
from tests.waiting import WAIT_S
from trt_spec.errors import OverloadedError
from trt_spec.triton import repository

pytestmark = pytest.mark.server
MODELS = ("ensemble", "tensorrt_llm_bls")
PROMPT = "the cat sat on the mat and the cat"
PLAIN = {"text_input": PROMPT, "max_tokens": 20, "bad_words": "", "stop_words": ""}  # of TensorRT-LLM's README
TYPES = {bool: "BOOL", int: "INT32", float: "FP32", str: "BYTES"}


def post(server, path, body):
    connection = http.client.HTTPConnection(server.http_url, timeout=WAIT_S)
    connection.request("POST", f"/v2/models/{path}", json.dumps(body))
    response = connection.getresponse()
    data = response.read().decode()
    connection.close()
    return response.status, data


def generate(server, model="ensemble", **body):
    status, text = post(server, f"{model}/generate", {**PLAIN, **body})
    assert status == 200, text
    return json.loads(text)


def events(server, **body):
    status, text = post(server, "ensemble/generate_stream", {**PLAIN, "stream": True, **body})
    assert status == 200, text
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def tensors(module, **values):
    """[1, 1] of each, as TensorRT-LLM's clients send them."""
    made = []
    for name, value in values.items():
        kind = TYPES[type(value)] if name not in ("seed", "random_seed") else "UINT64"
        array = {"BYTES": object, "UINT64": np.uint64, "INT32": np.int32, "FP32": np.float32, "BOOL": bool}[kind]
        tensor = module.InferInput(name, [1, 1], kind)
        tensor.set_data_from_numpy(np.array([[value.encode() if isinstance(value, str) else value]], array))
        made.append(tensor)
    return made


def grpc_stream(server, **values):
    """Everything that a gRPC stream answers, until the final flag."""
    answers = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as other:
        other.start_stream(lambda result, error: answers.put(error or result))
        inputs = tensors(tritonclient.grpc, **values)
        other.async_stream_infer("ensemble", inputs, request_id="1", enable_empty_final_response=True)
        found = []
        while True:
            found.append(answers.get(timeout=WAIT_S))
            if isinstance(found[-1], Exception):
                return found
            if found[-1].get_response().parameters["triton_final_response"].bool_param:
                return found


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_generate_answers_what_the_streaming_model_does(server, client, model):
    expected = client.generate(PROMPT, max_tokens=20)
    answer = generate(server, model)
    assert answer["text_output"] == expected.text
    assert (answer["sequence_index"], answer["batch_index"]) == (0, 0)
    assert "cum_log_probs" not in answer
    assert "acceptance_rate" not in answer
    sampled = {"top_p": 0.9, "temperature": 0.8, "random_seed": 2**63 + 1}
    expected = client.generate(PROMPT, max_tokens=20, top_p=0.9, temperature=0.8, seed=2**63 + 1)
    assert generate(server, model, **sampled)["text_output"] == expected.text


def test_generate_stream_sends_deltas_that_add_up(server, client):
    found = events(server, max_tokens=60, return_log_probs=True, return_num_output_tokens=True, end_id=-1)
    expected = client.generate(PROMPT, max_tokens=60, ignore_eos=True, logprobs=True)
    assert "".join(event["text_output"] for event in found) == expected.text
    assert found[-1]["num_output_tokens"] == 60
    assert found[-1]["cum_log_probs"] == pytest.approx(sum(expected.logprobs), abs=1e-3)
    probs = [event["output_log_probs"] for event in found]
    flat = [value for item in probs for value in (item if isinstance(item, list) else [item])]
    assert flat == pytest.approx(expected.logprobs, abs=1e-4)
    assert len(found) > 1


def test_a_grpc_stream_has_the_older_shapes_and_a_final_flag(server, client):
    found = grpc_stream(
        server, text_input=PROMPT, max_tokens=20, stream=True, beam_width=1, temperature=1.0, return_perf_metrics=True
    )
    text = b"".join(result.as_numpy("text_output")[0, 0] for result in found).decode()
    assert text == client.generate(PROMPT, max_tokens=20).text
    assert found[-1].as_numpy("acceptance_rate").shape == (1, 1)
    assert found[-1].as_numpy("total_draft_tokens").dtype == np.int32
    assert all(result.get_response().id == "1" for result in found)
    assert not any(isinstance(result, Exception) for result in found)


@pytest.mark.parametrize("module", [tritonclient.grpc, tritonclient.http])
def test_plain_inference_is_answered_by_the_bls(server, client, module):
    url = server.grpc_url if module is tritonclient.grpc else server.http_url
    with module.InferenceServerClient(url) as other:
        values = {"text_input": PROMPT, "max_tokens": 20, "return_log_probs": True, "seed": 3, "top_k": 50}
        result = other.infer("tensorrt_llm_bls", tensors(module, **values), request_id="7")
    expected = client.generate(PROMPT, max_tokens=20, top_k=50, seed=3, logprobs=True)
    assert result.as_numpy("text_output").tolist() == [[expected.text.encode()]]
    assert result.as_numpy("output_log_probs").shape == (1, 1, len(expected.token_ids))
    assert result.as_numpy("cum_log_probs")[0, 0] == pytest.approx(sum(expected.logprobs), abs=1e-3)


def test_several_sequences(server, client):
    expected = [chunk.text for chunk in client.samples(PROMPT, 3, max_tokens=8, top_k=50, seed=4, ignore_eos=True)]
    body = {"num_return_sequences": 3, "top_k": 50, "seed": 4, "max_tokens": 8, "end_id": -1}
    assert generate(server, **body)["text_output"] == expected
    texts = ["", "", ""]
    for event in events(server, **body):
        texts[event["sequence_index"]] += event["text_output"]
    assert texts == expected


def test_bias_and_words(server, client, built):
    plain = client.generate(PROMPT, max_tokens=20, ignore_eos=True)
    stop = plain.text[6:9]
    assert generate(server, stop_words=[stop, "never"], end_id=-1)["text_output"] == plain.text.split(stop)[0]
    biased = generate(server, embedding_bias_words=["q"], embedding_bias_weights=[100.0], max_tokens=3)
    assert set(biased["text_output"].replace(" ", "")) == {"q"}
    both = {"embedding_bias_words": ["q"], "embedding_bias_weights": [100.0], "bad_words": ["q"]}
    assert "q" not in generate(server, **both, max_tokens=3)["text_output"]


def test_drafting_can_be_asked_for_and_turned_off(server):
    metered = {"return_perf_metrics": True, "max_tokens": 40, "end_id": -1}
    assert generate(server, **metered, num_draft_tokens=0)["total_draft_tokens"] == 0
    assert "total_draft_tokens" in generate(server, **metered, num_draft_tokens=MAX_DRAFT_LEN)
    status, text = post(server, "ensemble/generate", {**PLAIN, "num_draft_tokens": MAX_DRAFT_LEN + 1})
    assert status == 400
    assert "invalid request parameter num_draft_tokens" in text


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"sampling_param_max_tokens": 5}, "did you mean the input max_tokens"),
        ({"max_tokenz": 5}, "unknown request parameter max_tokenz"),
        ({"beam_width": 2}, "request parameter beam_width is not supported"),
        ({"return_context_logits": True}, "return_context_logits is not supported"),
        ({"lora_task_id": 1}, "lora_task_id is not supported"),
        ({"max_tokens": 0}, "invalid request parameter max_tokens"),
        ({"top_p": 1.5}, "invalid request parameter top_p"),
        ({"num_return_sequences": 100}, "invalid request parameter n"),
        ({"end_id": 10**6}, "invalid request parameter stop_token_ids"),
    ],
)
def test_what_is_wrong_is_an_error_that_names_it(server, model, body, words):
    status, text = post(server, f"{model}/generate", {**PLAIN, **body})
    assert status == 400
    assert words in json.loads(text)["error"]


def test_the_bls_does_not_stream(server):
    status, text = post(server, "tensorrt_llm_bls/generate", {**PLAIN, "stream": True})
    assert status == 400
    assert "stream from the model ensemble" in text


def test_a_client_that_leaves_frees_its_slot(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as other:
        answers = queue.Queue()
        other.start_stream(lambda result, error: answers.put(error or result))
        inputs = tensors(tritonclient.grpc, text_input=PROMPT, max_tokens=LONG["max_tokens"], stream=True, end_id=-1)
        other.async_stream_infer("ensemble", inputs)
        assert not isinstance(answers.get(timeout=WAIT_S), Exception)
        wait_for(server, running=1)
        with cancels(server):
            other.stop_stream(cancel_requests=True)


def test_many_at_once_share_steps_and_overload_is_refused_with_its_code(server):
    total = 2 * (MAX_BATCH_SIZE + MAX_QUEUE_SIZE + 4)
    before = metrics(server)["trt_spec_steps_total"]

    def ask(number):
        body = {"text_input": f"p{number}", "max_tokens": 100, "end_id": -1, "num_draft_tokens": 0}
        return post(server, "tensorrt_llm_bls/generate" if number % 2 else "ensemble/generate", body)

    with ThreadPoolExecutor(total) as pool:
        answers = list(pool.map(ask, range(total)))
    good = [text for status, text in answers if status == 200 and "text_output" in json.loads(text)]
    refused = [(status, text) for status, text in answers if f"code: {OverloadedError.default_code}" in text]
    assert len(good) + len(refused) == total
    assert len(good) >= MAX_BATCH_SIZE
    wait_for(server, running=0)
    assert metrics(server)["trt_spec_steps_total"] - before < 100 * len(good) / 2
    server.check()


@pytest.mark.parametrize("mode", [True, False])
def test_both_stream_or_both_answer_as_the_config_says(built, tmp_path, installation, mode):
    """As decoupled_mode of that layout's templates: on, both stream; off, both answer plain inference."""
    config = built.config.model_copy(update={"serve": built.config.serve.model_copy(update={"decoupled_mode": mode})})
    repository_dir = repository.emit(config, built.engine_dir, tmp_path)
    with make_server(repository_dir, installation=installation) as server:
        texts = {model: generate(server, model, end_id=-1)["text_output"] for model in MODELS}
        for model in MODELS:
            status, text = post(server, f"{model}/generate_stream", {**PLAIN, "end_id": -1, "stream": True})
            assert status == (200 if mode else 400), text
            assert text.count("data: ") > 1 or not mode
            with tritonclient.grpc.InferenceServerClient(server.grpc_url) as other:
                inputs = tensors(tritonclient.grpc, text_input=PROMPT, max_tokens=20, end_id=-1)
                if mode:
                    with pytest.raises(tritonclient.grpc.InferenceServerException, match="decoupled"):
                        other.infer(model, inputs)
                else:
                    answer = other.infer(model, inputs).as_numpy("text_output")
                    assert answer.tolist() == [[texts["ensemble"].encode()]]
    assert len(set(texts.values())) == 1
