"""The llmapi model through a real tritonserver, on the stand-in for TensorRT-LLM: what clients see is the contract."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc

from tests.stand_ins.tensorrt_llm import next_token
from tests.triton.llm_cases import STAND_INS, greedy_ids, llmapi_config
from tests.waiting import WAIT_S, until
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.clients.triton import TritonClient
from trt_spec.engines.builder import build
from trt_spec.errors import CapabilityError, MachineError, OverloadedError, RequestError
from trt_spec.triton import repository
from trt_spec.triton.codec import merge
from trt_spec.triton.contract import OUTPUTS
from trt_spec.triton.server.installation import free_ports
from trt_spec.triton.server.server import TritonServer

pytestmark = pytest.mark.server
LONG = {"max_tokens": 3900, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A built engine, moved away afterwards together with its repository: both are found where they are."""
    root = tmp_path_factory.mktemp("llmapi")
    config = llmapi_config(root)
    result = build(config, engines_dir=root / "before" / "engines")
    repository.emit(config, result.engine_dir, root / "before" / "triton_repo")
    (root / "before").rename(root / "after")
    # The stub ignores PYTHONPATH, and looks beside the model first.
    version_dir = root / "after" / "triton_repo" / config.name / "tensorrt_llm" / "1"
    (version_dir / "tensorrt_llm").symlink_to(STAND_INS / "tensorrt_llm")
    return root / "after" / "engines" / config.name, root / "after" / "triton_repo" / config.name


def started(repository_dir, installation, tmp_path_factory, **environment):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        http_port, grpc_port, metrics_port = free_ports(3)
        server = TritonServer(
            repository_dir,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            log_path=tmp_path_factory.mktemp("log") / "server.log",
            ready_timeout_s=WAIT_S,
            drain_timeout_s=2,
            installation=installation,
        )
        server.start()
    return server


@pytest.fixture(scope="module")
def server(engine, installation, tmp_path_factory):
    running = started(engine[1], installation, tmp_path_factory, TRTLLM_STAND_IN_STEP_S="0.003")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(server):
    with TritonClient(server.http_url, server.grpc_url, "tensorrt_llm", timeout_s=WAIT_S) as connected:
        yield connected


@pytest.fixture(scope="module")
def tokenizer(engine):
    return Tokenizer.load(engine[0] / "target")


def series(server):
    with urllib.request.urlopen(server.metrics_url, timeout=WAIT_S) as response:
        lines = [line for line in response.read().decode().splitlines() if line.startswith("trt_spec_")]
    return {line.split("{")[0]: float(line.split()[-1]) for line in lines if "outcome" not in line}


def wait_until_idle(server):
    until(lambda: not series(server)["trt_spec_num_requests_in_flight"])


def ways(client):
    return {
        "generate": client.generate,
        "infer over gRPC": client.infer,
        "stream": lambda *args, **kwargs: merge(list(client.stream(*args, **kwargs))),
        "generate_stream": lambda *args, **kwargs: merge(list(client.generate_stream(*args, **kwargs))),
    }


def test_every_way_in_gives_the_same_answer(client, tokenizer):
    expected = greedy_ids(next_token, (5, 6), 12)
    for name, ask in ways(client).items():
        done = ask([5, 6], max_tokens=12, logprobs=True, return_cumulative_logprob=True)
        assert done.token_ids == expected, name
        assert done.text == tokenizer.decode(expected), name
        assert done.logprobs == pytest.approx([-0.5 - token / 1000 for token in expected]), name
        assert done.completion.num_output_tokens == 12
        assert done.completion.finish_reason == "length"
        assert done.completion.cumulative_logprob == pytest.approx(sum(done.logprobs), rel=1e-5)
        assert (done.completion.num_drafts, done.completion.mean_acceptance_length) == (None, None)
        # Steps of 1, 2, 3, 4, 1 and 1 tokens, with 3 drafts each.
        assert (done.completion.total_draft_tokens, done.completion.total_accepted_draft_tokens) == (18, 6)


def test_text_prompts_are_encoded_by_the_targets_tokenizer(client, tokenizer):
    ids = tokenizer.encode("the cat sat")
    assert client.generate("the cat sat", max_tokens=3).token_ids == greedy_ids(next_token, tuple(ids), 3)


def test_streams_are_deltas(client):
    chunks = list(client.stream([5, 6], max_tokens=12))
    assert [len(chunk.token_ids) for chunk in chunks] == [1, 2, 3, 4, 1, 1]
    assert chunks[-1].is_last


def test_what_is_not_available_is_left_out(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as plain:
        declared = {item["name"] for item in plain.get_model_metadata("tensorrt_llm_unary", as_json=True)["outputs"]}
        tensor = tritonclient.grpc.InferInput("input_ids", [2], "INT32")
        tensor.set_data_from_numpy(np.array([5, 6], np.int32))
        found = plain.infer("tensorrt_llm_unary", [tensor]).get_response()
    assert declared == {output.name for output in OUTPUTS}  # the same contract as the torch target
    names = {output.name for output in found.outputs if output.shape != [0]}
    assert not names & {"num_drafts", "accepted_per_position", "token_origins"}
    assert {"acceptance_rate", "total_draft_tokens", "kv_cache_hit_rate", "first_scheduled_time_ns"} <= names


def test_what_this_engine_would_ignore_is_refused_by_name(client):
    with pytest.raises(CapabilityError, match="repetition_penalty"):
        client.generate([5, 6], repetition_penalty=1.2)
    with pytest.raises(CapabilityError, match="drafts for every request"):
        client.generate([5, 6], speculation=False)
    with pytest.raises(RequestError, match="longer than the context"):
        client.generate([5] * 4000)
    with pytest.raises(RequestError, match="unknown request parameter"):
        client.generate([5, 6], max_token=3)


def test_clients_of_inflight_batcher_are_served(server, tokenizer):
    body = json.dumps({"text_input": "the cat sat", "max_tokens": 6, "bad_words": "", "stop_words": ""}).encode()
    url = f"http://{server.http_url}/v2/models/tensorrt_llm_bls/generate"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=WAIT_S) as response:
        found = json.loads(response.read())
    ids = greedy_ids(next_token, tuple(tokenizer.encode("the cat sat")), 6)
    assert found["text_output"] == tokenizer.decode(ids)


def test_samples_of_one_prompt_differ(client):
    answers = client.samples([5, 6], n=3, max_tokens=8, temperature=1.0)
    assert len({tuple(one.token_ids) for one in answers}) == 3


def test_samples_in_one_response_too(server):
    body = json.dumps({"input_ids": [5, 6], "sampling_param_n": 2, "sampling_param_max_tokens": 12}).encode()
    url = f"http://{server.http_url}/v2/models/tensorrt_llm_unary/generate"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=WAIT_S) as response:
        found = json.loads(response.read())
    assert (found["total_draft_tokens"], found["num_output_tokens"]) == (36, [12, 12])
    assert not set(found) & {"num_drafts"}


def test_a_client_that_leaves_frees_its_place(client, server):
    stream = client.stream([5, 6], **LONG)
    next(stream)
    stream.close()
    wait_until_idle(server)
    assert client.generate([5, 6], max_tokens=3).completion.finish_reason == "length"


def test_a_request_is_stopped_by_its_id(client, server):
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.generate, [5, 6], request_id="mine", **LONG)
        until(lambda: series(server)["trt_spec_num_requests_in_flight"])
        client.stop("mine")
        done = answer.result(timeout=WAIT_S)
    assert done.completion.finish_reason == "cancelled"
    assert done.completion.num_output_tokens < 3900


def test_many_at_once_and_none_lost(client, server):
    def ask(number):
        try:
            return client.generate([5, 3 + number], max_tokens=20).token_ids
        except OverloadedError:
            return None

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(ask, range(24)))
    served = [(number, ids) for number, ids in enumerate(answers) if ids is not None]
    assert len(served) >= 12  # 8 slots and 4 places in the queue
    for number, ids in served:
        assert ids == greedy_ids(next_token, (5, 3 + number), 20)
    wait_until_idle(server)


def test_metrics_are_those_that_are_known(client, server):
    before = series(server)
    client.generate([5, 6], max_tokens=12)
    name = "trt_spec_num_output_tokens_total"
    until(lambda: series(server)[name] - before[name] == 12)
    after = series(server)
    assert set(after) == {
        "trt_spec_num_output_tokens_total",
        "trt_spec_num_draft_tokens_total",
        "trt_spec_num_accepted_tokens_total",
        "trt_spec_num_requests_in_flight",
    }


def test_another_version_of_the_library_is_a_load_error(engine, installation, tmp_path_factory):
    with pytest.raises(MachineError) as caught:
        started(engine[1], installation, tmp_path_factory, TRTLLM_STAND_IN_VERSION="1.1.0")
    assert "another version of TensorRT-LLM" in str(caught.value)


def test_a_rebuilt_engine_is_a_load_error(engine, installation, tmp_path_factory):
    manifest = engine[0] / "manifest.json"
    text = manifest.read_text()
    try:
        manifest.write_text(text.replace('"tensorrt_llm_version": "1.2.1"', '"tensorrt_llm_version": "1.1.0"'))
        with pytest.raises(MachineError) as caught:
            started(engine[1], installation, tmp_path_factory)
    finally:
        manifest.write_text(text)
    assert "do not belong together" in str(caught.value)


def test_samples_and_inflight_batchers_names_are_served_by_this_engine_too(server, client, tokenizer):
    expected = tokenizer.decode(greedy_ids(next_token, (5, 6), 8))
    answers = client.samples([5, 6], 3, max_tokens=8, ignore_eos=True)
    assert [chunk.text for chunk in answers] == [expected] * 3
    assert [chunk.sequence_index for chunk in answers] == [0, 1, 2]
    assert [chunk.completion.num_output_tokens for chunk in answers] == [8] * 3
    prompt = "the cat"
    plain = client.generate(prompt, max_tokens=8)
    body = {"text_input": prompt, "max_tokens": 8, "bad_words": "", "stop_words": "", "return_num_output_tokens": True}
    for model in ("ensemble", "tensorrt_llm_bls"):
        url = f"http://{server.http_url}/v2/models/{model}/generate"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=WAIT_S) as response:
            answer = json.load(response)
        assert (answer["text_output"], answer["num_output_tokens"]) == (plain.text, len(plain.token_ids))
    wait_until_idle(server)
