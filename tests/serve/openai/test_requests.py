"""Bodies to calls: prompts of every kind, defaults, names, and seeds."""

from __future__ import annotations

import pytest

from tests import tiny
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import CapabilityError, RequestError
from trt_spec.runtime.request import SamplingParams
from trt_spec.serve.openai.requests import MAX_CHOICES, UnknownModelError, Upstream, read
from trt_spec.triton.served_request import ServedRequest, engine_requests


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    tiny.byte_level_tokenizer(directory)
    return Upstream("m", 100, 4, Tokenizer.load(directory))


BARE = Upstream("m", 100, 4)


def completion(served, **given):
    return read("completion", {"model": "m", "prompt": "a", **given}, served)


def chat(served, *contents, **given):
    messages = [{"role": "user", "content": content} for content in contents or ("hi",)]
    return read("chat", {"model": "m", "messages": messages, **given}, served)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ([1, 2],)), ([[1], [2, 3]], ([1], [2, 3])), ("", ("",))],
)
def test_prompts_of_every_kind(served, prompt, prompts):
    assert completion(served, prompt=prompt).prompts == prompts


@pytest.mark.parametrize("prompt", [[], [[]], ["a", 1], [1, "a"], [True], 5, {"a": 1}, [None], [[1], "a"]])
def test_what_is_no_prompt(served, prompt):
    with pytest.raises(RequestError) as caught:
        completion(served, prompt=prompt)
    assert caught.value.where == "prompt"


def test_defaults_are_openais(served):
    assert completion(served).parameters == {
        "temperature": 1.0,
        "max_tokens": 16,
        "logprobs": False,
        "return_perf_metrics": False,
    }
    assert chat(served).parameters["max_tokens"] == 100  # the context limit ends it
    assert completion(served, temperature=None, max_tokens=None).parameters["temperature"] == 1.0


def test_parameters_keep_their_names_and_the_newer_max_tokens_is_remembered(served):
    call = chat(served, max_completion_tokens=5, top_k=3, speculation=False, logit_bias={"7": -1})
    assert call.parameters["max_tokens"] == 5
    assert call.sent_names == {"max_tokens": "max_completion_tokens"}
    assert (call.parameters["top_k"], call.parameters["speculation"]) == (3, False)
    assert call.parameters["logit_bias"] == {7: -1}


def test_choices_of_one_prompt_have_the_seeds_of_the_contracts_sequences(served):
    call = completion(served, prompt=["a", "b"], n=2, seed=7)
    asked = ServedRequest(params=SamplingParams(seed=7), n=2)
    seeds = [request.params.seed for request in engine_requests(asked, "r", [1])]
    assert [call.choice(index) for index in range(4)] == [
        (prompt, {**call.parameters, "seed": seed}) for prompt in ("a", "b") for seed in seeds
    ]
    assert seeds[0] == 7 != seeds[1]
    assert "seed" not in completion(served, n=2).choice(1)[1]
    assert completion(served, seed=-1).parameters["seed"] == 2**64 - 1  # OpenAI's seeds are signed


def test_a_chat_is_the_template_in_ids(served):
    call = chat(served, "hello")
    text = served.tokenizer.apply_chat_template([{"role": "user", "content": "hello"}])
    assert call.prompts == (served.tokenizer.encode(text, add_special_tokens=False),)
    developer = read("chat", {"model": "m", "messages": [{"role": "developer", "content": "x"}]}, served)
    system = read("chat", {"model": "m", "messages": [{"role": "system", "content": "x"}]}, served)
    assert developer.prompts == system.prompts


def test_an_answer_can_be_sent_back_as_it_is(served):
    said = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "annotations": []}
    assert read("chat", {"model": "m", "messages": [said]}, served).prompts


def test_echo_and_running_usage_of_ids_and_texts(served):
    ids = served.tokenizer.encode("the cat")
    call = completion(
        served, prompt=[ids, ids], echo=True, stream=True, stream_options={"continuous_usage_stats": True}
    )
    assert call.echoes == ("the cat", "the cat")
    assert call.num_prompt_tokens == 2 * len(ids)
    as_text = completion(served, prompt="the cat", stream=True, stream_options={"continuous_usage_stats": True})
    assert (as_text.prompts, as_text.num_prompt_tokens) == ((ids,), len(ids))


def test_another_model_is_unknown(served):
    with pytest.raises(UnknownModelError):
        completion(served, model="n")
    with pytest.raises(RequestError, match="no model is named"):
        read("completion", {"prompt": "a"}, served)


def test_calls_have_a_bound(served):
    with pytest.raises(RequestError, match=str(MAX_CHOICES)):
        completion(served, prompt=["a"] * (MAX_CHOICES // 2 + 1), n=2)


def test_without_a_tokenizer_only_ids_are_understood():
    assert completion(BARE, prompt=[1, 2]).prompts == ([1, 2],)
    for given in ({"logprobs": 0}, {"prompt": [1], "echo": True}):
        with pytest.raises(CapabilityError, match="no tokenizer"):
            completion(BARE, **given)
    with pytest.raises(CapabilityError, match="no tokenizer"):
        chat(BARE)


def test_types_are_checked_before_anything_is_sent(served):
    for given in ({"temperature": "hot"}, {"max_tokens": 1.5}, {"stop": [1]}, {"ignore_eos": 1}, {"seed": True}):
        [name] = given
        with pytest.raises(RequestError) as caught:
            completion(served, **given)
        assert caught.value.where == name
