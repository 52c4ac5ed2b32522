"""Text to the tensors of an engine: shapes, types and conventions of TensorRT-LLM's preprocessing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import tiny
from tests.triton.engine_runs import engine_run
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import CapabilityError, RequestError
from trt_spec.triton.contract import NUMPY_TYPES
from trt_spec.triton.trtllm import engine_text, inflight_batcher

ENGINE = {"engine": {"vocab_size": 320}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    tiny.byte_level_tokenizer(directory)
    tiny.write_json(directory / "generation_config.json", {"eos_token_id": [2, 3]})
    return Tokenizer.load(directory)


def strings(*texts):
    return np.array([[text.encode() for text in texts]], np.object_)


def arrays(*prompts, **others):
    size = len(prompts)
    query = np.array([[prompt.encode()] for prompt in prompts], np.object_)
    return {"QUERY": query, "REQUEST_OUTPUT_LEN": np.full((size, 1), 9, np.int32), **others}


def test_a_prompt(tokenizer):
    found = engine_text.preprocess(arrays("the cat"), tokenizer, 320)
    ids = tokenizer.encode("the cat")
    assert found["INPUT_ID"].tolist() == [ids]
    assert found["REQUEST_INPUT_LEN"].tolist() == [[len(ids)]]
    assert found["REQUEST_OUTPUT_LEN"].tolist() == [[9]]
    assert found["OUT_END_ID"].tolist() == [[2]]
    # The engine has one end id; the other ids that end a text are stop words.
    assert engine_text.words_of(found["STOP_WORDS_IDS"][0]) == [[3]]
    assert found["BAD_WORDS_IDS"].shape == (1, 2, 0)
    assert found["EMBEDDING_BIAS"].shape == (1, 0)


def test_every_output_is_declared_in_its_type(tokenizer):
    given = arrays("a", "b b", PROMPT_TABLE_EXTRA_ID=np.array([[1], [2]], np.uint64))
    found = engine_text.preprocess(given, tokenizer, 320)
    models = inflight_batcher.models(engine_run("none", "1.2.0"), Path("/e"), Path("/r"), {"digest": "", **ENGINE})
    declared = {tensor.name: tensor for tensor in models[0].outputs}
    for name, array in found.items():
        assert array.dtype == NUMPY_TYPES[declared[name].data_type], name
        assert array.shape[0] == 2, name
        assert len(array.shape) == len(declared[name].dims) + 1, name


def test_prompts_of_a_batch_are_padded_on_the_right(tokenizer):
    found = engine_text.preprocess(arrays("the cat sat", "a", PAD_ID=np.full((2, 1), 7, np.int32)), tokenizer, 320)
    long, short = tokenizer.encode("the cat sat"), tokenizer.encode("a")
    assert found["INPUT_ID"][0].tolist() == long
    assert found["INPUT_ID"][1].tolist() == short + [7] * (len(long) - len(short))
    assert found["REQUEST_INPUT_LEN"].ravel().tolist() == [len(long), len(short)]


def test_words(tokenizer):
    given = arrays("a", STOP_WORDS_DICT=strings("cat", "the end"), END_ID=np.array([[5]], np.int32))
    found = engine_text.preprocess(given, tokenizer, 320)
    words = [tokenizer.encode(word, add_special_tokens=False) for word in ("cat", "the end")]
    assert engine_text.words_of(found["STOP_WORDS_IDS"][0]) == words  # an end id of the request's own stands alone
    assert found["OUT_END_ID"].tolist() == [[5]]
    flat, ends = found["STOP_WORDS_IDS"][0].tolist()
    assert flat == [*words[0], *words[1]]
    assert ends[:2] == [len(words[0]), len(words[0]) + len(words[1])]
    assert set(ends[2:]) <= {-1}


def test_word_lists_of_unequal_length():
    lists = engine_text.word_lists([[[1, 2], [3]], []])
    assert lists.tolist() == [[[1, 2, 3], [2, 3, -1]], [[0, 0, 0], [-1, -1, -1]]]
    assert engine_text.words_of(lists[0]) == [[1, 2], [3]]
    assert engine_text.words_of(lists[1]) == []


def test_bias(tokenizer):
    weights = np.array([[2.0, -1.0]], np.float32)
    given = arrays("a", EMBEDDING_BIAS_WORDS=strings("a", "b"), EMBEDDING_BIAS_WEIGHTS=weights)
    (row,) = engine_text.preprocess(given, tokenizer, 400)["EMBEDDING_BIAS"]
    one, other = (tokenizer.encode(text, add_special_tokens=False)[0] for text in "ab")
    assert (row[one], row[other], row.shape) == (2.0, -1.0, (400,))
    with pytest.raises(RequestError, match="do not match"):
        engine_text.preprocess(arrays("a", EMBEDDING_BIAS_WORDS=strings("a")), tokenizer, 400)


@pytest.mark.parametrize("name", engine_text.REFUSED)
def test_inputs_of_other_models_are_refused_by_name(tokenizer, name):
    with pytest.raises(CapabilityError, match=name):
        engine_text.preprocess(arrays("a", **{name: strings("x")}), tokenizer, 320)


def test_bad_prompts(tokenizer):
    with pytest.raises(RequestError, match="empty"):
        engine_text.preprocess(arrays(""), tokenizer, 320)
    with pytest.raises(RequestError, match="UTF-8"):
        engine_text.preprocess({**arrays("a"), "QUERY": np.array([[b"\xff"]], np.object_)}, tokenizer, 320)


def test_ids_to_text(tokenizer):
    ids = tokenizer.encode("the cat", add_special_tokens=False)
    tokens = np.array([[[*ids, 9, 9]], [[*ids[:1], 2, *ids[1:], 0]]], np.int32)[:, :, : len(ids) + 2]
    texts = engine_text.postprocess(tokens, np.array([[len(ids)], [2]]), tokenizer)
    assert texts.tolist() == [[b"the cat"], [tokenizer.decode(ids[:1]).encode()]]  # special tokens give no text
