"""The emitted models without a server, against a stand-in for Triton's module: who is told what, and when."""

from __future__ import annotations

import importlib
import json
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from tests.triton.rpc.ends import hang_up
from tests.triton.test_codec import completion, tensors
from tests.waiting import WAIT_S, until
from trt_spec.errors import MachineError, OverloadedError, RequestError
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.request import Chunk
from trt_spec.triton.errortext import to_error
from trt_spec.triton.host import hosting, streaming
from trt_spec.triton.rpc import client as rpc_client

FINAL = 1


# --- Triton's module ---


@dataclass
class Tensor:
    label: str
    array: np.ndarray

    def name(self):
        return self.label

    def as_numpy(self):
        return self.array


class TritonError:
    INVALID_ARG, UNAVAILABLE, INTERNAL = "INVALID_ARG", "UNAVAILABLE", "INTERNAL"

    def __init__(self, text, code="INTERNAL"):
        self.text, self.code_name = text, code

    def message(self):
        return self.text


@dataclass
class InferenceResponse:
    tensors: list = field(default_factory=list)
    failure: TritonError | None = None

    def __init__(self, output_tensors=(), error=None):
        self.tensors, self.failure = list(output_tensors), error

    def has_error(self):
        return self.failure is not None

    def error(self):
        return self.failure

    def output_tensors(self):
        return self.tensors

    def values(self):
        return {tensor.name(): tensor.as_numpy().tolist() for tensor in self.tensors}


class FakeRequest:
    """A request that notices what would crash the real server."""

    def __init__(self, request_id="", parameters=None, **inputs):
        self.id, self.given, self.tensors = request_id, parameters or {}, tensors(**inputs)
        self.sent, self.done, self.is_gone = [], threading.Event(), False
        self.misuse = []

    def inputs(self):
        return [Tensor(name, array) for name, array in self.tensors.items()]

    def parameters(self):
        return json.dumps(self.given)

    def request_id(self):
        return self.id

    def requested_output_names(self):
        return {"text_output"}

    def get_response_sender(self):
        return self

    def is_cancelled(self):
        if self.done.is_set():
            self.misuse.append("asked after the last response")
        return self.is_gone

    def send(self, response, flags):
        if self.done.is_set():
            self.misuse.append("sent after the last response")
        self.sent.append(response)
        if flags == FINAL:
            self.done.set()

    def answer(self):
        """The only response; its text where it is an error."""
        assert self.done.wait(WAIT_S)
        (response,) = self.sent
        return response


class Metric:
    def __init__(self):
        self.value = 0

    def increment(self, by):
        self.value += by

    def set(self, value):
        self.value = value


class MetricFamily:
    COUNTER, GAUGE = "counter", "gauge"
    all: ClassVar[dict] = {}

    def __init__(self, name, description, kind):
        self.name = name

    def Metric(self, labels):
        key = self.name, *(value for label, value in labels.items() if label != "model")
        return self.all.setdefault(key, Metric())


def metric(*key):
    """The value of a series by its name and label values; None where there is none yet."""
    found = MetricFamily.all.get(key)
    return None if found is None else found.value


@pytest.fixture
def pb_utils(monkeypatch):
    MetricFamily.all = {}
    module = SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=InferenceResponse,
        MetricFamily=MetricFamily,
        Logger=SimpleNamespace(log_error=lambda text: None, log_warn=lambda text: None),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)
    return module


def load(name):
    """The module of a model, which finds Triton's module of this test."""
    sys.modules.pop(f"trt_spec.triton.models.{name}", None)
    return importlib.import_module(f"trt_spec.triton.models.{name}")


# --- the streaming model ---


class FakeWorker:
    """An engine worker that does what the test says."""

    def __init__(self, engine):
        self.engine, self.failure, self.num_in_flight = engine() if callable(engine) else engine, None, 0
        self.requests, self.callbacks, self.cancelled = [], {}, []
        self.refusal = None

    def start(self):
        return self

    def submit_all(self, requests, on_chunk):
        if self.refusal is not None:
            raise self.refusal
        self.callbacks |= {request.request_id: on_chunk for request in requests}
        self.requests += requests  # last: tests wait for it on another thread

    def cancel(self, request_id):
        self.cancelled.append(request_id)

    def drain(self, timeout_s):
        return True

    def close(self):
        for request_id, on_chunk in self.callbacks.items():
            on_chunk(Chunk(request_id, completion=completion(finish_reason="cancelled")))

    def chunk(self, number, *args, **kwargs):
        request_id = self.requests[number].request_id
        last = kwargs.get("completion") or kwargs.get("error")
        (self.callbacks.pop if last else self.callbacks.get)(request_id)(Chunk(request_id, *args, **kwargs))


@pytest.fixture
def model(pb_utils, monkeypatch, tmp_path):
    module = load("streaming")
    ended = []
    for module_that_ends in (hosting, streaming):
        monkeypatch.setattr(module_that_ends, "end_server", lambda pb, why: ended.append(why))
    engine = SimpleNamespace(
        tokenizer=SimpleNamespace(
            encode=lambda text: [*text.encode()], decode=lambda ids: bytes(ids).decode(), fewest_tokens=len
        ),
        limits=EngineLimits(max_batch_size=2, max_queue_size=4),
        scheduler=SimpleNamespace(running=[]),
        stats=SimpleNamespace(
            num_steps=0,
            num_output_tokens=0,
            num_drafts=0,
            num_draft_tokens=0,
            num_accepted_tokens=0,
            num_drafter_errors=0,
            num_accepted_tokens_per_pos=[],
        ),
    )
    monkeypatch.setattr(module, "load_engine", lambda path: engine)
    monkeypatch.setattr(module, "EngineWorker", FakeWorker)
    monkeypatch.setattr(module.repository, "checked_parameters", lambda args, _: module.repository.parameters_of(args))
    monkeypatch.setattr(module.repository, "check_loaded", lambda *args: None)
    model = module.TritonPythonModel()
    model.ended = ended
    config = {"parameters": {"engine_dir": {"string_value": "/e"}}}
    model.initialize({"model_config": json.dumps(config), "model_name": "m", "model_repository": str(tmp_path / "m")})
    yield model
    model.finalize()
    assert not model.sender.is_alive()


def test_a_whole_answer_is_one_final_response(model):
    request = FakeRequest(text_input="hi", max_tokens=3)
    model.execute([request])
    model.worker.chunk(0, "a", [1])
    model.worker.chunk(0, "b", [2, 3], completion=completion())
    values = request.answer().values()
    assert (values["text_output"], values["output_ids"], values["num_output_tokens"]) == ([b"ab"], [1, 2, 3], [3])
    assert model.worker.requests[0].input_ids == (104, 105)
    assert model.worker.requests[0].params.max_tokens == 3


def test_a_stream_is_its_deltas_and_the_last_one_is_final(model):
    request = FakeRequest(input_ids=[104, 105], streaming=True, exclude_input_from_output=False)
    model.execute([request])
    model.worker.chunk(0, "a", [1])
    until(lambda: request.sent)  # it does not wait for the end
    model.worker.chunk(0, "b", [2], completion=completion())
    assert request.done.wait(WAIT_S)
    assert [response.values()["text_output"] for response in request.sent] == [[b"hia"], [b"b"]]


def test_samples_of_one_request_come_in_one_answer_when_all_are_there(model):
    request = FakeRequest(text_input="hi", n=3, seed=5, exclude_input_from_output=False)
    model.execute([request])
    assert len({item.request_id for item in model.worker.requests}) == 3
    assert [item.input_ids for item in model.worker.requests] == [(104, 105)] * 3
    seeds = [item.params.seed for item in model.worker.requests]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    ids = [item.request_id for item in model.worker.requests]
    for index in (2, 0, 1):
        assert not request.sent
        on_chunk = model.worker.callbacks.pop(ids[index])
        on_chunk(Chunk(ids[index], "ab"[: index % 2 + 1], [index], completion=completion(num_output_tokens=1)))
    values = request.answer().values()
    assert (values["text_output"], values["sequence_index"]) == ([b"hia", b"hiab", b"hia"], [0, 1, 2])
    assert (values["output_ids"], values["num_output_tokens"]) == ([0, 1, 2], [1, 1, 1])
    assert (values["num_input_tokens"], values["num_drafts"], values["total_draft_tokens"]) == ([3], [6], [24])
    assert (values["finish_reason"], values["acceptance_rate"]) == ([b"stop"] * 3, [0.5])
    assert (values["accepted_per_position"], values["kv_cache_alloc_total_blocks"]) == ([6, 3, 3], [3])


def test_samples_in_a_stream_say_which_one_they_are_and_only_the_last_is_final(model):
    request = FakeRequest(text_input="hi", n=2, streaming=True, exclude_input_from_output=False)
    model.execute([request])
    assert [item.params.seed for item in model.worker.requests] == [None, None]  # each draws its own
    ids = [item.request_id for item in model.worker.requests]
    ends = [completion(finish_reason="eos"), completion(finish_reason="length")]
    for index, text, end in ((1, "x", None), (0, "a", None), (1, "y", ends[1]), (0, "b", None), (0, "c", ends[0])):
        model.worker.callbacks[ids[index]](Chunk(ids[index], text, [1], completion=end))
    until(lambda: len(request.sent) == 5)
    assert request.done.wait(WAIT_S)
    assert request.misuse == []  # nothing came after the final one
    seen = [(item.values()["sequence_index"][0], item.values()["text_output"][0]) for item in request.sent]
    assert seen == [(1, b"hix"), (0, b"hia"), (1, b"y"), (0, b"b"), (0, b"c")]
    assert [item.values().get("finish_reason") for item in request.sent] == [None, None, [b"length"], None, [b"eos"]]
    model.worker.callbacks.clear()


def test_all_samples_end_when_their_client_goes_or_stops_them(model):
    gone, stopped = FakeRequest("g", text_input="hi", n=3), FakeRequest("s", text_input="hi", n=2)
    model.execute([gone, stopped])
    ids = [item.request_id for item in model.worker.requests]
    model.execute([FakeRequest("s", stop=True)])
    assert model.worker.cancelled == ids[3:]
    gone.is_gone = True
    until(lambda: set(model.worker.cancelled) == set(ids))


def test_an_error_of_one_sample_ends_the_request_once_and_cancels_the_others(model):
    request = FakeRequest(text_input="hi", n=2, streaming=True)
    model.execute([request])
    ids = [item.request_id for item in model.worker.requests]
    model.worker.callbacks[ids[1]](Chunk(ids[1], error=MachineError("not finite")))
    model.worker.callbacks[ids[0]](Chunk(ids[0], "late", [1], completion=completion()))
    assert "not finite" in request.answer().error().message()
    until(lambda: ids[0] in model.worker.cancelled)
    assert model.flights == {}
    time.sleep(0.05)
    assert (len(request.sent), request.misuse) == (1, [])
    model.worker.callbacks.clear()


def test_two_clients_with_one_id_do_not_disturb_each_other(model):
    requests = [FakeRequest("same", text_input=text) for text in "ab"]
    model.execute(requests)
    assert len({request.request_id for request in model.worker.requests}) == 2
    for number, text in enumerate("ab"):
        model.worker.chunk(number, text, [1], completion=completion())
    assert [request.answer().values()["text_output"] for request in requests] == [[b"a"], [b"b"]]


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (
            FakeRequest(text_input="a", parameters={"max_tokens": 1}),
            "INVALID_ARG",
            "unknown request parameter max_tokens",
        ),
        (FakeRequest(max_tokens=1), "INVALID_ARG", "no prompt"),
        (FakeRequest(text_input="a", n=0), "INVALID_ARG", "sampling_param_n"),
        (FakeRequest(text_input="a", n=7), "INVALID_ARG", "parameter n"),
        (FakeRequest(text_input="a", n=2, best_of=3), "INVALID_ARG", "sampling_param_best_of"),
        (FakeRequest(text_input="a", best_of=2), "INVALID_ARG", "sampling_param_best_of"),
    ],
    ids=["unknown", "no prompt", "n", "n beyond the queue", "best_of above n", "best_of alone"],
)
def test_bad_requests_are_answered_and_not_submitted(model, request_, code, text):
    model.execute([request_])
    error = request_.answer().error()
    assert error.code_name == code
    assert text in error.message()
    assert model.worker.requests == []


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (OverloadedError("queue full"), "UNAVAILABLE"),
        (RequestError("too long"), "INVALID_ARG"),
        (MachineError("engine failed"), "INTERNAL"),
    ],
)
def test_what_the_engine_refuses_is_answered(model, refusal, code):
    model.worker.refusal = refusal
    request = FakeRequest(text_input="a")
    model.execute([request])
    error = request.answer().error()
    assert (error.code_name, str(to_error(error.message()))) == (code, str(refusal))
    assert request.misuse == []
    assert model.flights == {}


def test_an_error_in_the_middle_ends_the_request(model):
    request = FakeRequest(text_input="a", streaming=True)
    model.execute([request])
    model.worker.chunk(0, "a", [1])
    model.worker.chunk(0, error=MachineError("not finite"))
    assert request.done.wait(WAIT_S)
    assert "not finite" in request.sent[-1].error().message()


def test_a_client_that_goes_away_is_cancelled_once(model):
    gone, stays = FakeRequest(text_input="a"), FakeRequest(text_input="b")
    model.execute([gone, stays])
    gone.is_gone = True
    until(lambda: model.worker.cancelled)
    time.sleep(0.1)
    assert model.worker.cancelled == [model.worker.requests[0].request_id]
    for number in (0, 1):
        model.worker.chunk(number, "", [], completion=completion())
    assert gone.done.wait(WAIT_S)
    assert stays.done.wait(WAIT_S)
    time.sleep(0.1)
    assert gone.misuse == stays.misuse == []


def test_many_clients_are_all_looked_at(model):
    requests = [FakeRequest(text_input="a") for _ in range(100)]
    model.execute(requests)
    for request in requests:
        request.is_gone = True
    until(lambda: len(model.worker.cancelled) == 100)
    assert len(set(model.worker.cancelled)) == 100


def test_stop_by_id(model):
    running = FakeRequest("r1", text_input="a")
    stop, wrong = FakeRequest("r1", stop=True), FakeRequest("r2", stop=True)
    model.execute([running, stop, wrong])
    assert stop.answer().values()["output_ids"] == []
    assert "no request in flight" in wrong.answer().error().message()
    assert model.worker.cancelled == [model.worker.requests[0].request_id]


def test_an_output_that_cannot_be_encoded_loses_its_own_request_only(model):
    bad, good = FakeRequest(text_input="a"), FakeRequest(text_input="b")
    model.execute([bad, good])
    model.worker.chunk(0, "", [2**70], completion=completion())
    model.worker.chunk(1, "x", [1], completion=completion())
    assert "failed on this request" in bad.answer().error().message()
    assert good.answer().values()["text_output"] == [b"x"]


def test_finalize_answers_what_is_left(model):
    request = FakeRequest(text_input="a")
    model.execute([request])
    model.finalize()
    assert request.answer().values()["finish_reason"] == [b"cancelled"]


def test_metrics_follow_the_engine(model):
    stats = model.worker.engine.stats
    stats.num_steps, stats.num_drafts, stats.num_accepted_tokens_per_pos = 5, 3, [2, 1]
    stats.num_drafter_errors = 7
    request = FakeRequest(text_input="a")
    model.execute([request])
    model.worker.chunk(0, "a", [1], completion=completion(finish_reason="eos"))
    request.answer()
    until(lambda: metric("trt_spec_steps_total") == 5)
    until(lambda: metric("trt_spec_num_accepted_tokens_per_pos_total", "1") == 1)  # published after the steps
    assert metric("trt_spec_num_drafter_errors_total") == 7
    assert metric("trt_spec_requests_total", "eos") == 1
    assert metric("trt_spec_engine_up") == 1
    model.worker.failure = RuntimeError()
    model.execute([FakeRequest()])
    model.wake()
    until(lambda: metric("trt_spec_engine_up") == 0)


def test_a_failed_engine_ends_the_server_once_when_all_are_answered(model):
    ping = FakeRequest(parameters={"ping": True})
    model.execute([ping])
    assert not ping.answer().has_error()
    request = FakeRequest(text_input="a")
    model.execute([request])
    model.worker.failure = RuntimeError("CUDA error")
    time.sleep(0.1)
    assert model.ended == []
    model.worker.chunk(0, error=MachineError("the engine has failed"))
    until(lambda: model.ended)
    assert request.answer().error().code_name == "INTERNAL"
    assert "CUDA error" in model.ended[0]
    pings = [FakeRequest(parameters={"ping": True}) for _ in range(2)]
    model.execute(pings)
    assert [ping.answer().error().code_name for ping in pings] == ["INTERNAL"] * 2
    time.sleep(0.1)
    assert len(model.ended) == 1


# --- the unary alias ---


@pytest.fixture
def alias(pb_utils, model, tmp_path):
    """The alias of that streaming model, over its socket."""
    module = load("unary")
    alias = module.TritonPythonModel()
    parameters = {"streaming_model": "m", "tokenizer_dir": "/nowhere"}
    config = {"parameters": {key: {"string_value": value} for key, value in parameters.items()}}
    alias.initialize({"model_config": json.dumps(config), "model_repository": str(tmp_path / "m_unary")})
    alias._tokenizer = model.tokenizer
    yield alias
    alias.finalize()
    assert not alias.sender.is_alive()


def test_the_alias_serves_many_at_once_with_the_engine_of_the_streaming_model(alias, model):
    requests = [FakeRequest(text_input=str(number)) for number in range(6)]
    alias.execute(requests)
    until(lambda: len(model.worker.requests) == 6)
    assert [item.input_ids for item in model.worker.requests] == [(48 + number,) for number in range(6)]
    assert len({item.request_id for item in model.worker.requests}) == 6
    for number in (5, 3, 0, 1, 2, 4):
        model.worker.chunk(number, "a", [1])
        model.worker.chunk(number, str(number), [2], completion=completion())
    answers = [request.answer().values()["text_output"] for request in requests]
    assert answers == [[f"a{number}".encode()] for number in range(6)]
    until(lambda: metric("trt_spec_requests_total", "stop") == 6)  # counted where the engine is
    assert [request.misuse for request in requests] == [[]] * 6


@pytest.mark.parametrize("refusal", [OverloadedError("full"), RequestError("too long"), MachineError("failed")])
def test_refusals_keep_their_kind_on_the_way_through(alias, model, refusal):
    model.worker.refusal = refusal
    request = FakeRequest(text_input="a", n=2)
    alias.execute([request])
    error = to_error(request.answer().error().message())
    assert (type(error), error.what) == (type(refusal), refusal.what)
    assert alias.flights == {}


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (FakeRequest(text_input="a", parameters={"zz": 1}), "unknown request parameter zz"),
        (FakeRequest(text_input="a", streaming=True), "stream from the model m"),
        (FakeRequest("r", stop=True), "no request in flight"),
    ],
    ids=["unknown", "streaming", "stop"],
)
def test_the_alias_refuses_what_it_cannot_do(alias, request_, text):
    alias.execute([request_])
    error = request_.answer().error()
    assert error.code_name == "INVALID_ARG"
    assert text in error.message()


def test_a_client_of_the_alias_that_goes_away_is_cancelled_in_the_engine(alias, model):
    request = FakeRequest(text_input="a")
    alias.execute([request])
    until(lambda: model.worker.requests)
    request.is_gone = True
    until(lambda: model.worker.cancelled)
    assert model.worker.cancelled == [model.worker.requests[0].request_id]
    model.worker.chunk(0, completion=completion(finish_reason="cancelled"))
    request.answer()
    time.sleep(0.1)
    assert request.misuse == []


def test_stop_by_id_reaches_what_was_sent_to_either_model(alias, model):
    here, there = FakeRequest("r1", text_input="a"), FakeRequest("r2", text_input="b")
    alias.execute([here])
    until(lambda: model.worker.requests)
    model.execute([there])
    stops = [FakeRequest("r1", stop=True), FakeRequest("r2", stop=True)]
    alias.execute(stops)
    assert [stop.answer().has_error() for stop in stops] == [False, False]
    until(lambda: len(model.worker.cancelled) == 2)
    model.worker.chunk(0, completion=completion(finish_reason="cancelled"))
    assert here.answer().values()["finish_reason"] == [b"cancelled"]


def test_metrics_are_published_while_only_other_models_have_requests(alias, model):
    model.worker.num_in_flight = 1
    alias.execute([FakeRequest(text_input="a")])
    until(lambda: model.worker.requests)
    model.worker.engine.stats.num_steps = 7
    until(lambda: metric("trt_spec_steps_total") == 7)
    model.worker.num_in_flight = 0
    model.worker.chunk(0, "x", [1], completion=completion())


def test_an_alias_finishes_what_it_took_before_the_engine_goes(alias, model, monkeypatch):
    request = FakeRequest(text_input="a")
    alias.execute([request])
    until(lambda: model.worker.requests)
    unloading = threading.Thread(target=model.finalize)
    unloading.start()
    until(lambda: alias.worker._current is None)
    assert not request.done.wait(0.1)
    model.worker.chunk(0, "whole", [1], completion=completion())
    assert request.answer().values()["text_output"] == [b"whole"]
    unloading.join(WAIT_S)
    assert not unloading.is_alive()
    assert model.ended == []
    monkeypatch.setattr(rpc_client, "CONNECT_S", 0)
    late, ping = FakeRequest(text_input="a"), FakeRequest(parameters={"ping": True})
    alias.execute([late, ping])
    assert "is not loaded" in late.answer().error().message()
    assert "is not loaded" in ping.answer().error().message()


def test_an_alias_ends_the_server_where_the_engine_dies_although_nobody_asks(alias, model):
    until(lambda: model.rpc._sessions and alias.worker._current)
    model.rpc.is_closing = True  # so that it is the alias that ends the server
    with socket.fromfd(model.rpc._sessions[0].connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.shutdown(socket.SHUT_RDWR)
    until(lambda: model.ended)
    assert model.ended == ["the engine has failed: the Python process of model m died"]


def test_the_server_ends_where_the_process_of_another_model_died(alias, model):
    until(lambda: model.rpc._sessions and alias.worker._current)
    hang_up(alias.worker)
    until(lambda: any("another of its models died" in why for why in model.ended))
