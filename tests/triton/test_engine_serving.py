"""The inflight_batcher repository in a real tritonserver; only Triton's TensorRT-LLM backend is a stand-in."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc

from tests import tiny
from tests.stand_ins.tensorrt_llm import next_token
from tests.triton.engine_runs import engine_manifest, engine_run
from tests.triton.llm_cases import STAND_INS, greedy_ids
from tests.waiting import WAIT_S
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import CapabilityError, MachineError, RequestError
from trt_spec.triton import repository
from trt_spec.triton.errortext import to_error
from trt_spec.triton.server.installation import free_ports
from trt_spec.triton.server.server import TritonServer

pytestmark = pytest.mark.server
PROMPT = "the cat sat"


class Served:
    """A server on the repository of one run, whose engines are the stand-in."""

    def __init__(self, root, method, version, installation, drift="5"):
        config = engine_run(method, version)
        engine_dir = root / "engines" / config.name
        tiny.llama_checkpoint(engine_dir / "tokenizer")
        manifest = engine_manifest(config, vocab_size=320)
        (engine_dir / "manifest.json").write_text(json.dumps(manifest))
        self.repository = repository.emit(config, engine_dir, root / "triton_repo")
        for name in ("tensorrt_llm", "tensorrt_llm_draft"):
            if (self.repository / name).exists():
                self._replace_backend(name, drift if name.endswith("draft") else "0")
        self.log, self.tokenizer = root / "asked.jsonl", Tokenizer.load(engine_dir / "tokenizer")
        ports = free_ports(3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ENGINE_STAND_IN_LOG", str(self.log))
            self.server = TritonServer(
                self.repository,
                http_port=ports[0],
                grpc_port=ports[1],
                metrics_port=ports[2],
                log_path=root / "server.log",
                ready_timeout_s=WAIT_S,
                drain_timeout_s=2,
                installation=installation,
            ).start()

    def _replace_backend(self, name, drift):
        path = self.repository / name / "config.pbtxt"
        text = path.read_text().replace('backend: "tensorrtllm"', 'backend: "python"')
        path.write_text(text + f'parameters {{ key: "drift" value {{ string_value: "{drift}" }} }}\n')
        (self.repository / name / "1" / "model.py").write_text((STAND_INS / "engine_model.py").read_text())

    def post(self, model, **body):
        connection = http.client.HTTPConnection(self.server.http_url, timeout=WAIT_S)
        connection.request("POST", f"/v2/models/{model}/generate", json.dumps(body))
        response = connection.getresponse()
        data = json.loads(response.read())
        connection.close()
        return response.status, data

    def asked(self, model):
        """What a model was asked since the last look."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        self.log.write_text("")
        return [line for line in lines if line["model"] == model]

    def expected(self, count, text=PROMPT):
        ids = self.tokenizer.encode(text)
        return self.tokenizer.decode(greedy_ids(next_token, tuple(ids), count))


@pytest.fixture(scope="module")
def drafted(installation, tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("drafted"), "draft_model", "1.2.0", installation)
    yield served
    served.server.stop()


@pytest.fixture(scope="module")
def streaming(installation, tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("streaming"), "eagle", "0.21.0", installation)
    yield served
    served.server.stop()


def test_drafts_change_nothing_but_the_number_of_rounds(drafted):
    status, plain = drafted.post("tensorrt_llm_bls", text_input=PROMPT, max_tokens=30, num_draft_tokens=0)
    assert (status, plain["text_output"]) == (200, drafted.expected(30))
    assert len(drafted.asked("tensorrt_llm")) == 1
    status, found = drafted.post("tensorrt_llm_bls", text_input=PROMPT, max_tokens=30, return_perf_metrics=True)
    assert status == 200
    assert found["text_output"] == plain["text_output"]
    rounds = drafted.asked("tensorrt_llm")
    assert found["num_output_tokens"] == 30
    assert len(rounds) == 30 - found["total_accepted_draft_tokens"]  # each round gives one token of the target's own
    assert 0 < found["total_accepted_draft_tokens"] < found["total_draft_tokens"]
    assert found["acceptance_rate"] == pytest.approx(found["total_accepted_draft_tokens"] / found["total_draft_tokens"])


def test_what_the_engines_are_asked(drafted):
    drafted.asked("tensorrt_llm")
    drafted.post("tensorrt_llm_bls", text_input=PROMPT, max_tokens=12, temperature=0.7, top_k=40, seed=7)
    lines = [json.loads(line) for line in drafted.log.read_text().splitlines()]
    drafts = [line for line in lines if line["model"] == "tensorrt_llm_draft"]
    rounds = [line for line in lines if line["model"] == "tensorrt_llm"]
    for line in drafts:
        assert line["min_tokens"] == line["request_output_len"]
        assert line["runtime_top_k"] == [1]
        assert "draft_input_ids" not in line
    for line in rounds:
        length = len(line["draft_input_ids"]) if "draft_input_ids" in line else 0
        assert line["request_output_len"] == [length + 1]
        assert (line["temperature"], line["runtime_top_k"]) == ([pytest.approx(0.7)], [40])
        assert "min_tokens" not in line
    assert len({line["seed"][0] for line in rounds}) == len(rounds)  # not the same numbers every round
    first = [line["seed"] for line in rounds]
    drafted.log.write_text("")
    drafted.post("tensorrt_llm_bls", text_input=PROMPT, max_tokens=12, temperature=0.7, top_k=40, seed=7)
    assert [line["seed"] for line in drafted.asked("tensorrt_llm")] == first


def test_requests_without_a_seed_get_one_each(drafted):
    drafted.asked("tensorrt_llm")
    for _ in range(2):
        drafted.post("tensorrt_llm_bls", text_input=PROMPT, max_tokens=1, num_draft_tokens=0)
    assert len({line["seed"][0] for line in drafted.asked("tensorrt_llm")}) == 2


def test_stop_words_end_it_with_and_without_drafts(drafted):
    ids = greedy_ids(next_token, tuple(drafted.tokenizer.encode(PROMPT)), 30)
    words = [drafted.tokenizer.decode([token]) for token in ids]
    at = next(
        place
        for place in range(3, 30)  # a token that its own text stands for, and that does not come before
        if drafted.tokenizer.encode(words[place], add_special_tokens=False) == [ids[place]]
        and ids.index(ids[place]) == place
    )
    status, found = drafted.post("tensorrt_llm_bls", text_input=PROMPT, max_tokens=30, stop_words=[words[at]])
    assert (status, found["num_output_tokens"]) == (200, at + 1)
    assert found["text_output"] == drafted.expected(at + 1)


@pytest.mark.parametrize("min_tokens", [0, 3, 12, 30])
def test_the_end_id_ends_it_where_plain_decoding_ends(drafted, min_tokens):
    end = greedy_ids(next_token, tuple(drafted.tokenizer.encode(PROMPT)), 5)[-1]
    asked = {"text_input": PROMPT, "max_tokens": 30, "end_id": end, "min_tokens": min_tokens}
    _, plain = drafted.post("tensorrt_llm_bls", **asked, num_draft_tokens=0)
    _, found = drafted.post("tensorrt_llm_bls", **asked)
    assert found["text_output"] == plain["text_output"]
    if min_tokens <= 3:
        assert found["num_output_tokens"] == 5
    else:
        assert found["num_output_tokens"] >= min_tokens


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"num_draft_tokens": 5}, "num_draft_tokens"),
        ({"stream": True}, "stream"),
        ({"use_draft_logits": True}, "use_draft_logits"),
        ({"return_log_probs": True}, "return_log_probs"),
        ({"image_url_input": "http://a/b.png"}, "image_url_input"),
        ({"text_input": ""}, "the prompt is empty"),
    ],
)
def test_what_is_refused_is_named(drafted, parameters, words):
    status, found = drafted.post("tensorrt_llm_bls", **{"text_input": PROMPT, "max_tokens": 4, **parameters})
    assert status == 400
    assert words in found["error"]
    assert isinstance(to_error(found["error"]), (RequestError, CapabilityError))


def test_an_engines_own_error_is_the_machines(drafted):
    status, found = drafted.post(
        "tensorrt_llm_bls", text_input=PROMPT, max_tokens=4, embedding_bias_words=["a"], embedding_bias_weights=[1e9]
    )
    assert status in (400, 500)
    assert isinstance(to_error(found["error"]), MachineError)
    assert "engine: " in found["error"]


def test_what_goes_without_drafts(drafted):
    status, found = drafted.post(
        "tensorrt_llm_bls", text_input=PROMPT, max_tokens=4, num_draft_tokens=0, return_log_probs=True
    )
    assert (status, found["cum_log_probs"]) == (200, -1.5)


def test_many_at_once(drafted):
    def ask(number):
        return drafted.post("tensorrt_llm_bls", text_input=f"{PROMPT} {number}", max_tokens=10)

    with ThreadPoolExecutor(8) as pool:
        for number, (status, found) in enumerate(pool.map(ask, range(8))):
            assert (status, found["text_output"]) == (200, drafted.expected(10, f"{PROMPT} {number}"))


def test_the_ensemble_answers_the_names_of_inflight_batcher(drafted):
    status, found = drafted.post(
        "ensemble", text_input=PROMPT, max_tokens=6, bad_words="", stop_words="", temperature=1.0, seed=3
    )
    assert (status, found["text_output"]) == (200, drafted.expected(6))


def test_an_ensemble_over_a_streaming_engine_streams(streaming):
    results = []
    with tritonclient.grpc.InferenceServerClient(streaming.server.grpc_url) as client:
        inputs = [
            tensor("text_input", np.array([[PROMPT.encode()]], np.object_), "BYTES"),
            tensor("max_tokens", np.array([[5]], np.int32), "INT32"),
            tensor("stream", np.array([[True]]), "BOOL"),
            tensor("random_seed", np.array([[3]], np.uint64), "UINT64"),
        ]
        client.start_stream(lambda result, error: results.append((result, error)))
        client.async_stream_infer("ensemble", inputs, enable_empty_final_response=True)
        client.stop_stream()
    assert all(error is None for _, error in results)
    texts = [result.as_numpy("text_output") for result, _ in results]
    parts = [text.item().decode() for text in texts if text is not None and text.size]
    assert len(parts) == 5
    expected = greedy_ids(next_token, tuple(streaming.tokenizer.encode(PROMPT)), 5)
    assert parts == [streaming.tokenizer.decode([token]) for token in expected]


def test_the_bls_over_a_streaming_engine_answers_once(streaming):
    status, found = streaming.post("tensorrt_llm_bls", text_input=PROMPT, max_tokens=6, random_seed=3)
    assert (status, found["text_output"]) == (200, streaming.expected(6))
    (asked,) = streaming.asked("tensorrt_llm")[-1:]
    assert asked["random_seed"] == [3]
    status, found = streaming.post("tensorrt_llm_bls", text_input=PROMPT, max_tokens=6, stream=True)
    assert status == 400
    assert "stream from the model ensemble" in found["error"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [({"temperature": 0.7}, "temperature"), ({"top_k": 5}, "top_k"), ({"top_p": 0.9}, "top_p")],
)
def test_an_engine_that_takes_the_best_token_refuses_to_sample(streaming, parameters, words):
    asked = {"text_input": PROMPT, "max_tokens": 4}
    status, found = streaming.post("tensorrt_llm_bls", **asked, **parameters)
    assert status == 400
    assert f"invalid request parameter {words}" in found["error"]
    for greedy in ({"top_k": 1, "temperature": 0.7}, {"temperature": 0.0}, {"top_p": 1.0}, {}):
        assert streaming.post("tensorrt_llm_bls", **asked, **greedy)[0] == 200


def tensor(name, array, kind):
    result = tritonclient.grpc.InferInput(name, list(array.shape), kind)
    result.set_data_from_numpy(array)
    return result


def test_a_rebuilt_engine_is_a_load_error(installation, tmp_path):
    config = engine_run("none", "1.2.0")
    engine_dir = tmp_path / "engines" / config.name
    tiny.llama_checkpoint(engine_dir / "tokenizer")
    (engine_dir / "manifest.json").write_text(json.dumps(engine_manifest(config, vocab_size=320)))
    emitted = repository.emit(config, engine_dir, tmp_path / "triton_repo")
    alone = tmp_path / "alone"  # what does not load here has to be the one model that is checked
    alone.mkdir()
    (emitted / "preprocessing").rename(alone / "preprocessing")
    rebuilt = {**engine_manifest(config, vocab_size=320), "digest": "e" * 64}
    (engine_dir / "manifest.json").write_text(json.dumps(rebuilt))
    path = alone / "preprocessing" / "config.pbtxt"
    path.write_text(path.read_text().replace("../../engines", "../engines"))
    ports = free_ports(3)
    server = TritonServer(
        alone,
        http_port=ports[0],
        grpc_port=ports[1],
        metrics_port=ports[2],
        log_path=tmp_path / "server.log",
        ready_timeout_s=WAIT_S,
        installation=installation,
    )
    with pytest.raises(MachineError, match="ended"):
        server.start()
    assert "manifest_digest" in (tmp_path / "server.log").read_text()
