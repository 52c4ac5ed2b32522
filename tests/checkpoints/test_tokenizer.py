"""Decoding on bytes agrees with transformers; templates too; kinds that have no bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests import tiny
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import CheckpointError, RequestError

MESSAGES = [{"role": "user", "content": "Hi <b>you</b> & 世界"}, {"role": "assistant", "content": "Hello"}]
TEXTS = st.text(st.sampled_from("abch the \n世🎉é́👨‍👩‍👧\x00<|>"), max_size=30)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizers")
    tiny.byte_level_tokenizer(root / "byte_level", added=("<think>", "｜end｜"))
    tiny.byte_fallback_tokenizer(root / "byte_fallback")
    tiny.byte_fallback_tokenizer(root / "unstripped", strip=False)
    return root


@pytest.fixture(scope="module", params=["byte_level", "byte_fallback", "unstripped"])
def both(request, folders):
    folder = folders / request.param
    return Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)


@given(text=TEXTS)
@settings(max_examples=60)
def test_encoding_and_decoding_agree_with_transformers(both, text):
    ours, theirs = both
    ids = ours.encode(text)
    assert ids == theirs(text).input_ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@given(data=st.data())
@settings(max_examples=100)
def test_any_ids_of_a_byte_level_vocabulary_decode_alike(folders, data):
    ours = Tokenizer.load(folders / "byte_level")
    theirs = AutoTokenizer.from_pretrained(folders / "byte_level")
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size + 3), max_size=12))
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@given(data=st.data())
@settings(max_examples=100)
def test_byte_fallback_agrees_where_the_bytes_are_text(folders, data):
    ours = Tokenizer.load(folders / "byte_fallback")
    theirs = AutoTokenizer.from_pretrained(folders / "byte_fallback")
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=8))
    text = ours.decode(ids)
    if "\ufffd" not in text:
        assert text == theirs.decode(ids, skip_special_tokens=True)


def test_ids_and_bytes(folders):
    tokenizer = Tokenizer.load(folders / "byte_level")
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.bos_token_id == 1
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.id_to_bytes(2) == b""
    assert tokenizer.raw_bytes(2) == b"<|im_end|>"
    assert tokenizer.id_to_bytes(tokenizer.vocab_size) == b""
    assert not tokenizer.has_id(tokenizer.vocab_size)
    assert not tokenizer.has_id(-1)
    assert {tokenizer.raw_bytes(i) for i in range(tokenizer.vocab_size)} >= {bytes([byte]) for byte in range(256)}


def test_every_source_of_eos_counts(tmp_path):
    tiny.byte_level_tokenizer(tmp_path)
    tiny.write_json(tmp_path / "config.json", {"eos_token_id": 7})
    assert Tokenizer.load(tmp_path).eos_token_ids == {2, 7}
    tiny.write_json(tmp_path / "generation_config.json", {"eos_token_id": [8, 9]})
    assert Tokenizer.load(tmp_path).eos_token_ids == {2, 8, 9}


def test_a_limit_left_in_the_file_is_not_applied(tmp_path):
    tiny.byte_level_tokenizer(tmp_path)
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    tiny.edit_json(tmp_path / "tokenizer.json", truncation=truncation)
    assert len(Tokenizer.load(tmp_path).encode("a b c d e f g h")) > 4


def test_chat_templates_agree_with_transformers(folders):
    ours = Tokenizer.load(folders / "byte_level")
    theirs = AutoTokenizer.from_pretrained(folders / "byte_level")
    for generate in (True, False):
        want = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=generate)
        assert ours.apply_chat_template(MESSAGES, add_generation_prompt=generate) == want


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}{% for m in messages %}\n    {{ m.content | tojson }}\n{% endfor %}",
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m['content'] | trim }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}",
        "{% if tools is not none %}tools{% else %}plain{% endif %}{% if documents %}documents{% endif %}",
        "{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    ],
)
def test_template_features_agree_with_transformers(tmp_path, template):
    tiny.byte_level_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    want = theirs.apply_chat_template(MESSAGES, tokenize=False)
    assert Tokenizer.load(tmp_path).apply_chat_template(MESSAGES, add_generation_prompt=False) == want


def test_a_template_in_tokenizer_config(tmp_path):
    tiny.byte_level_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    for value, want in (("plain", "plain"), (named, "yes")):
        tiny.edit_json(tmp_path / "tokenizer_config.json", chat_template=value)
        assert Tokenizer.load(tmp_path).apply_chat_template(MESSAGES) == want


def test_templates_that_cannot_be_used(tmp_path, folders):
    with pytest.raises(CheckpointError, match="no chat template"):
        Tokenizer.load(folders / "byte_fallback").apply_chat_template(MESSAGES)
    tiny.byte_level_tokenizer(tmp_path)
    path = tmp_path / "chat_template.jinja"
    path.write_text("{% if %}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="not valid Jinja"):
        Tokenizer.load(tmp_path).apply_chat_template(MESSAGES)
    path.write_text("{{ raise_exception('roles must alternate') }}", encoding="utf-8")
    with pytest.raises(RequestError, match="roles must alternate"):
        Tokenizer.load(tmp_path).apply_chat_template(MESSAGES)
    path.write_text("{{ messages.__class__.__mro__ }}", encoding="utf-8")
    with pytest.raises(RequestError):
        Tokenizer.load(tmp_path).apply_chat_template(MESSAGES)


def test_tokenizers_that_cannot_be_used(tmp_path):
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    tiny.word_piece_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match="not defined on bytes"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.load(tmp_path)


def test_text_that_is_not_unicode(folders):
    with pytest.raises(RequestError, match="not valid Unicode"):
        Tokenizer.load(folders / "byte_level").encode("a\ud800")


@pytest.mark.parametrize("make", [tiny.byte_level_tokenizer, tiny.byte_fallback_tokenizer])
def test_no_text_has_fewer_tokens_than_said(tmp_path, make):
    make(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)

    @given(st.text())
    def holds(text):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))

    holds()
    for text in ("the cat sat on the mat " * 50, " " * 500, "<|endoftext|>" * 40, "世界🎉" * 40):
        assert 0 < tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "aa"}, "content": "a"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}},
    ],
)
def test_a_tokenizer_that_may_leave_out_text_has_no_bound(tmp_path, changes):
    tiny.byte_level_tokenizer(tmp_path)
    tiny.edit_json(tmp_path / "tokenizer.json", **changes)
    assert Tokenizer.load(tmp_path).fewest_tokens("a" * 10_000) == 0
