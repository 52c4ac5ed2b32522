"""Requests over the stand-in for TensorRT-LLM: the same contract as the torch engine, and nothing made up."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from tests.triton.llm_cases import (
    EOS,
    collect,
    engine_dir,
    generate,
    greedy_ids,
    library,
    llm_engine,
    request,
    running,
    submit,
)
from tests.waiting import WAIT_S
from trt_spec.errors import CapabilityError, MachineError, OverloadedError, RequestError
from trt_spec.triton.trtllm import adapter as trtllm_adapter
from trt_spec.triton.trtllm.adapter import Metrics, TrtLlm, is_compatible, read_arguments
from trt_spec.triton.trtllm.worker import UNKNOWN_CACHE, with_metrics

__all__ = ["engine_dir", "library"]


@pytest.fixture
def worker(engine_dir, library):
    with running(engine_dir) as started:
        yield started


@pytest.fixture
def llm(worker, library):
    """The stand-in's LLM behind `worker`."""
    return library.opened[-1]


def test_ids_text_counts_and_times(worker, library):
    done = generate(worker, request(logprobs=True))
    expected = greedy_ids(library.next_token, (5, 6), 10)
    assert done.token_ids == expected
    assert done.text == worker.tokenizer.decode(expected)
    assert done.logprobs == pytest.approx([-0.5 - token / 1000 for token in expected])
    end = done.completion
    assert (end.finish_reason, end.num_input_tokens, end.num_output_tokens) == ("length", 2, 10)
    assert end.cumulative_logprob == pytest.approx(sum(done.logprobs))
    # Steps of 1, 2, 3 and 4 tokens accept 0, 1, 2 and, when max_tokens cut them, an unknown part of 3 drafts.
    assert (end.total_draft_tokens, end.total_accepted_draft_tokens) == (12, 3)
    assert (end.num_drafts, end.accepted_per_position, done.token_origins) == (None, None, [])
    assert end.kv_cache.alloc_total_blocks == 4
    assert end.first_scheduled_time_ns in (end.arrival_time_ns + 7000, end.first_token_time_ns)
    assert end.arrival_time_ns <= end.first_scheduled_time_ns <= end.first_token_time_ns <= end.last_token_time_ns
    assert (worker.engine.stats.num_output_tokens, worker.engine.stats.num_draft_tokens) == (10, 12)


def test_a_stream_holds_each_token_once(worker):
    chunks = collect(submit(worker, request()))
    assert [len(chunk.token_ids) for chunk in chunks] == [1, 2, 3, 4]
    assert [chunk.is_last for chunk in chunks] == [False, False, False, True]


def test_what_is_sent_to_the_library(worker, llm):
    generate(worker, request(temperature=0.5, top_p=0.9, top_k=7, seed=3, stop_token_ids=(9,)))
    generate(worker, request())
    generate(worker, request(ignore_eos=True))
    sampled, greedy, endless = (params for _, params in llm.requests)
    assert (sampled.temperature, sampled.top_p, sampled.top_k, sampled.seed) == (0.5, 0.9, 7, 3)
    assert (sampled.end_id, sampled.stop_token_ids) == (EOS, [9])
    # Greedy by top_k alone; some versions refuse temperature 0, others read top_p as a wish to sample.
    assert (greedy.top_k, greedy.temperature, greedy.top_p) == (1, None, None)
    assert (endless.end_id, endless.ignore_eos) == (None, True)
    assert sampled.detokenize is greedy.detokenize is False
    assert sampled.include_stop_str_in_output is True  # an id that ends the text stays in it
    assert llm.requests[0][0] == [5, 6]


def test_no_two_requests_without_a_seed_share_one(worker, llm):
    for _ in range(3):
        generate(worker, request(temperature=1.0))
    assert len({params.seed for _, params in llm.requests}) == 3


def test_equal_seeds_give_equal_output(worker):
    first, second, other = (generate(worker, request(temperature=1.0, seed=seed)) for seed in (1, 1, 2))
    assert first.token_ids == second.token_ids != other.token_ids


@pytest.mark.parametrize(
    ("params", "ids", "reason", "stop_reason"),
    [
        ({}, [7, 8, EOS], "eos", None),
        ({"stop_token_ids": (8,)}, [7, 8], "stop", 8),
        ({"ignore_eos": True, "max_tokens": 4}, [7, 8, EOS, 9], "length", None),
        ({"max_tokens": 2}, [7, 8], "length", None),
    ],
)
def test_ends_are_cut_where_plain_decoding_cuts(worker, llm, params, ids, reason, stop_reason):
    llm.script = [7, 8, EOS, 9, 10]
    done = generate(worker, request(**params))
    assert (done.token_ids, done.completion.finish_reason, done.completion.stop_reason) == (ids, reason, stop_reason)


def test_a_stop_string_ends_it_here_and_there(worker, llm):
    pieces = worker.tokenizer.encode("ab stop cd", add_special_tokens=False)
    llm.script = pieces
    done = generate(worker, request(stop=("stop",), max_tokens=40))
    assert done.text == "ab "
    assert done.completion.finish_reason == "stop"
    assert done.completion.stop_reason == "stop"
    assert done.completion.total_draft_tokens  # read from the library after it was told to stop
    assert worker.drain(WAIT_S)
    assert llm.outputs[-1].outputs[0].finish_reason == "cancelled"  # it does not go on there
    assert len(llm.outputs[-1].outputs[0].token_ids) < 40


def test_an_end_of_text_that_is_not_among_the_ids(worker, llm, monkeypatch):
    """Some versions leave the end id out; then the reason alone says it."""
    llm.script = [7, 8, EOS]
    real = trtllm_adapter.Generation._next

    def without_end(self):
        update = real(self)
        return replace(update, token_ids=[token for token in update.token_ids if token != EOS])

    monkeypatch.setattr(trtllm_adapter.Generation, "_next", without_end)
    done = generate(worker, request())
    assert (done.token_ids, done.completion.finish_reason) == ([7, 8], "eos")


def test_a_cancelled_request_ends_and_frees_its_place(worker, llm):
    llm.step_s = 0.5  # until the request is cancelled
    chunks = submit(worker, request((5, 6), "r", max_tokens=60, ignore_eos=True))
    stays = submit(worker, request((7, 8), "s", max_tokens=12))
    chunks.get(timeout=WAIT_S)
    worker.cancel("r")
    worker.cancel("r")
    worker.cancel("unknown")
    llm.step_s = 0
    last = collect(chunks)[-1]
    assert last.completion.finish_reason == "cancelled"
    assert last.completion.num_output_tokens < 60
    assert collect(stays)[-1].completion.finish_reason == "length"
    assert worker.num_in_flight == 0


def test_a_request_cancelled_before_it_started_never_starts(worker, llm):
    blocked = threading.Event()
    worker._loop.call_soon_threadsafe(blocked.wait, WAIT_S)  # the engine's thread is busy with something else
    chunks = submit(worker, request())
    worker.cancel("r")
    blocked.set()
    (last,) = collect(chunks)
    assert (last.completion.finish_reason, last.completion.num_output_tokens) == ("cancelled", 0)
    assert llm.requests == []


def test_an_engine_that_does_not_answer_an_abort_is_not_waited_for(worker, llm, monkeypatch):
    monkeypatch.setattr("trt_spec.triton.trtllm.worker.ABORT_S", 0.05)
    llm.step_s = 30
    chunks = submit(worker, request())
    time.sleep(0.05)
    worker.cancel("r")
    done = collect(chunks)[-1].completion
    assert done.finish_reason == "cancelled"
    assert (done.total_draft_tokens, done.kv_cache) == (None, UNKNOWN_CACHE)


def test_overload_is_refused_and_draining_too(worker, llm):
    llm.step_s = 0.5  # until one was refused
    waiting = [submit(worker, request((5, 6), f"r{number}", max_tokens=4)) for number in range(4)]
    with pytest.raises(OverloadedError):
        submit(worker, request())
    llm.step_s = 0
    for chunks in waiting:
        assert collect(chunks)[-1].completion.finish_reason == "length"
    assert worker.drain(WAIT_S)
    with pytest.raises(OverloadedError, match="draining"):
        submit(worker, request())


def test_close_ends_what_is_left(engine_dir, library):
    with running(engine_dir) as worker:
        library.opened[-1].step_s = 0.5
        chunks = submit(worker, request((5, 6), max_tokens=60))
        chunks.get(timeout=WAIT_S)
    assert collect(chunks)[-1].completion.finish_reason == "cancelled"
    assert library.opened[-1].is_open is False
    assert not any(thread.name == "engine" for thread in threading.enumerate())


def test_a_failure_of_the_library_is_this_requests_own(worker, llm):
    llm.failure = RuntimeError("CUDA error")
    last = collect(submit(worker, request()))[-1]
    assert isinstance(last.error, MachineError)
    assert "CUDA error" in str(last.error)
    llm.failure = None
    assert generate(worker, request()).completion.finish_reason == "length"


@pytest.mark.parametrize("reason", ["timeout", "cancelled"])
def test_an_end_that_nobody_asked_for_is_an_error(worker, monkeypatch, reason):
    real = trtllm_adapter.Generation._next

    def ended(self):
        return replace(real(self), finish_reason=reason)

    monkeypatch.setattr(trtllm_adapter.Generation, "_next", ended)
    assert isinstance(collect(submit(worker, request()))[-1].error, MachineError)


def test_missing_logprobs_are_an_error_not_silence(worker, llm, monkeypatch):
    llm.step_s = 0.01
    real = trtllm_adapter.Generation._next
    monkeypatch.setattr(trtllm_adapter.Generation, "_next", lambda self: replace(real(self), logprobs=None))
    assert "log-probability" in str(collect(submit(worker, request(logprobs=True)))[-1].error)
    assert llm.outputs[-1]._is_aborted  # nobody waits for it any more


def test_a_text_that_ends_too_early_is_an_error(worker, llm, monkeypatch):
    llm.script = [7, EOS]
    monkeypatch.setattr(type(llm), "generate_async", _without_min_tokens(type(llm).generate_async))
    last = collect(submit(worker, request(min_tokens=4)))[-1]
    assert "shortest length" in str(last.error)


def _without_min_tokens(real):
    def generate_async(self, inputs, sampling_params=None, **others):
        sampling_params.min_tokens = None
        return real(self, inputs, sampling_params=sampling_params, **others)

    return generate_async


@pytest.mark.parametrize(("always_drafts", "told"), [(False, 0), (True, None)])
def test_counts_that_nobody_filled_in_are_no_counts(engine_dir, library, always_drafts, told):
    with running(engine_dir, llm_engine(always_drafts=always_drafts)) as worker:
        library.opened[-1].draft_len = 0
        done = generate(worker, request()).completion
        assert (done.total_draft_tokens, done.total_accepted_draft_tokens) == (told, told)
        assert generate(worker, request(max_tokens=1)).completion.total_draft_tokens == 0  # no step to draft for


# --- opening ---


def test_paths_are_those_of_the_engine(engine_dir, library):
    arguments = read_arguments(engine_dir)
    assert arguments["model"] == str(engine_dir / "target")
    with running(engine_dir) as worker:
        generate(worker, request(logit_bias={5: 1.0}))
        assert library.opened[-1].requests[-1][1].embedding_bias[5] == 1.0
        assert library.opened[-1].arguments["model"] == str(engine_dir / "target")


def test_the_drafts_path_too(tmp_path):
    (tmp_path / "llm_args.yaml").write_text("model: target\nspeculative_config: {speculative_model_dir: draft}\n")
    arguments = read_arguments(tmp_path)
    assert arguments["speculative_config"]["speculative_model_dir"] == str(tmp_path / "draft")


def test_without_the_library_it_says_where_to_run(engine_dir):
    with pytest.raises(MachineError, match="not installed") as caught:
        TrtLlm.open(engine_dir, "1.2.1")
    assert "container" in caught.value.remedy


def test_another_version_is_refused(engine_dir, library, monkeypatch):
    monkeypatch.setattr(library, "__version__", "1.1.0")
    with pytest.raises(MachineError, match="another version") as caught:
        TrtLlm.open(engine_dir, "1.2.1")
    assert (caught.value.got, caught.value.expected) == ("1.1.0", "1.2.1")


def test_drafts_accepted_unseen_are_refused(engine_dir, library, monkeypatch):
    monkeypatch.setenv("TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS", "3")
    with pytest.raises(MachineError, match="without judging them"):
        TrtLlm.open(engine_dir, "1.2.1")


def test_which_versions_read_the_same_arguments():
    assert is_compatible("1.2.0", "1.2.1")
    assert is_compatible("1.2.1+cu130", "1.2.1")
    assert not is_compatible("1.2.0rc8", "1.2.1")
    assert not is_compatible("1.3.0rc20", "1.3.0rc19")
    assert not is_compatible("1.1.0", "1.2.1")


def test_a_library_that_does_not_load_is_reported(engine_dir, library, monkeypatch):
    monkeypatch.setenv("TRTLLM_STAND_IN_FAIL", "out of memory")
    with pytest.raises(MachineError, match="could not load") as caught, running(engine_dir):
        pass
    assert "out of memory" in caught.value.got


# --- what is refused ---


def refused(engine, **params):
    with pytest.raises((CapabilityError, RequestError)) as caught:
        engine.check(request(**params))
    return caught.value.where


def test_what_an_engine_would_ignore_is_refused_by_name():
    one_model = llm_engine(placement="one_model")
    assert refused(llm_engine(), repetition_penalty=1.1) == "sampling_param_repetition_penalty"
    assert refused(one_model, min_p=0.1, temperature=1.0) == "sampling_param_min_p"
    assert refused(one_model, logit_bias={5: 1.0}) == "sampling_param_logit_bias"
    assert refused(one_model, seed=1, temperature=1.0) == "sampling_param_seed"
    assert refused(llm_engine("1.1"), min_p=0.1, temperature=1.0) == "sampling_param_min_p"
    assert refused(llm_engine(serves_sampling=False), temperature=1.0) == "sampling_param_temperature"
    assert refused(llm_engine(), speculation=False) == "speculation"
    one_model.check(request(seed=1))  # greedy output follows no seed
    llm_engine("1.4").check(request(repetition_penalty=1.1, presence_penalty=0.5))
    llm_engine("1.2").check(request(min_p=0.1, temperature=1.0, logit_bias={5: 1.0}))
    llm_engine(placement="none").check(request(speculation=False))


def test_min_tokens_goes_with_one_end_id_only():
    assert refused(llm_engine(eos_token_ids=(2, 3)), min_tokens=2) == "sampling_param_min_tokens"
    assert refused(llm_engine(), min_tokens=2, stop_token_ids=(9,)) == "sampling_param_min_tokens"
    llm_engine(eos_token_ids=(2, 3)).check(request(min_tokens=2, ignore_eos=True))


def test_every_id_that_ends_a_text_is_said():
    several = llm_engine(eos_token_ids=(2, 3, 4))
    said = several.sampling(request(stop_token_ids=(9, 3)), 7)
    assert (said["end_id"], said["stop_token_ids"]) == (2, [3, 4, 9])
    endless = several.sampling(request(stop_token_ids=(9,), ignore_eos=True), 7)
    assert ("end_id" in endless, endless["stop_token_ids"]) == (False, [9])


def test_times_stay_in_order_whatever_was_measured(worker):
    done = generate(worker, request()).completion
    late = with_metrics(done, Metrics(queue_ns=10**15))
    assert late.first_scheduled_time_ns == done.first_token_time_ns
    assert with_metrics(done, Metrics()).first_scheduled_time_ns is None


def test_another_draft_length_per_request_is_refused():
    engine = llm_engine()
    engine.check(replace(request(), max_draft_len=3))
    for length in (0, 2, 4):
        with pytest.raises(CapabilityError, match="drafts for every request alike"):
            engine.check(replace(request(), max_draft_len=length))


def test_prompts_and_ids_are_checked():
    assert refused(llm_engine(), ids=tuple(range(3, 67))) == "input_ids"
    assert refused(llm_engine(), ids=(400,)) == "input_ids"
    assert refused(llm_engine(), stop_token_ids=(320,)) == "stop_token_ids"


def test_a_bias_becomes_a_row_and_the_context_bounds_the_length():
    said = llm_engine().sampling(request(tuple(range(3, 63)), max_tokens=50, logit_bias={4: -1.5}), 7)
    assert said["embedding_bias"][4] == -1.5
    assert len(said["embedding_bias"]) == 320
    assert said["max_tokens"] == 4  # 64 tokens of context, 60 of them prompt
