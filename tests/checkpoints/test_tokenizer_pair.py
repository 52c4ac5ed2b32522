"""Two tokenizers fit when every id means the same; sizes prove nothing, padding breaks nothing."""

from __future__ import annotations

import json

import pytest

from tests import tiny
from trt_spec.checkpoints import tokenizer_pair
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import CheckpointError, PairError


@pytest.fixture
def pair(tmp_path):
    target, draft = tmp_path / "target", tmp_path / "draft"
    for folder in (target, draft):
        size = tiny.byte_level_tokenizer(folder)
    return target, draft, size


def check_tokenizer_pair(target, draft, **sizes):
    return tokenizer_pair.check_tokenizer_pair(Tokenizer.load(target), Tokenizer.load(draft), **sizes)


def edit_added(folder, token_id: int, content: str) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    entry = next(entry for entry in tokenizer["added_tokens"] if entry["id"] == token_id)
    vocab = tokenizer["model"]["vocab"]
    del vocab[entry["content"]]
    vocab[content] = token_id
    entry["content"] = content
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def test_equal_tokenizers(pair):
    target, draft, size = pair
    report = check_tokenizer_pair(target, draft)
    assert report.num_shared == size
    assert report.target_padded_ids == report.draft_padded_ids == (size, size)


def test_padding_is_accepted_and_named(pair):
    target, draft, size = pair
    report = check_tokenizer_pair(target, draft, target_vocab_size=size + 9)
    assert report.target_padded_ids == (size, size + 9)
    assert report.draft_padded_ids == (size, size)
    assert check_tokenizer_pair(target, draft, draft_vocab_size=size + 4).draft_padded_ids == (size, size + 4)


def test_one_swap_among_equal_sizes_is_named(pair):
    target, draft, _ = pair
    tiny.swap_ids(draft, 50, 51)
    with pytest.raises(PairError) as caught:
        check_tokenizer_pair(target, draft)
    assert caught.value.code == "E-VOCAB"
    assert caught.value.what == "the tokenizers differ at 2 ids"
    assert [line.split(":")[0] for line in caught.value.details] == ["id 50", "id 51"]
    assert "ngram" in caught.value.remedy


def test_a_permutation_counts_all_and_shows_ten(pair):
    target, draft, _ = pair
    for first in range(20, 80, 2):
        tiny.swap_ids(draft, first, first + 1)
    with pytest.raises(PairError, match="differ at 60 ids") as caught:
        check_tokenizer_pair(target, draft)
    assert len(caught.value.details) == 11
    assert caught.value.details[-1] == "and 50 more"


def test_an_added_token_that_one_side_lacks_is_named_not_refused(pair):
    target, draft, size = pair
    tiny.byte_level_tokenizer(target, added=("<tool>",))
    assert check_tokenizer_pair(target, draft).target_only_ids == (size,)
    assert check_tokenizer_pair(draft, target).draft_only_ids == (size,)


def test_ordinary_words_that_one_side_lacks_are_refused(pair):
    target, draft, _ = pair
    size = tiny.byte_level_tokenizer(draft, vocab_size=280)
    with pytest.raises(PairError, match="differ at") as caught:
        check_tokenizer_pair(target, draft)
    assert f"id {size}" in str(caught.value)


def test_a_reserved_name_is_tolerated_and_a_used_one_is_not(pair):
    target, draft, _ = pair
    edit_added(draft, 0, "<|reserved_special_token_7|>")
    assert check_tokenizer_pair(target, draft).tolerated_ids == (0,)
    edit_added(draft, 2, "<|eot|>")
    with pytest.raises(PairError, match="differ at one id"):
        check_tokenizer_pair(target, draft)


def test_kinds_that_differ(tmp_path):
    tiny.byte_level_tokenizer(tmp_path / "a")
    tiny.byte_fallback_tokenizer(tmp_path / "b")
    with pytest.raises(PairError):
        check_tokenizer_pair(tmp_path / "a", tmp_path / "b")


def test_a_draft_without_a_tokenizer(pair):
    target, draft, _ = pair
    (draft / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        check_tokenizer_pair(target, draft)
