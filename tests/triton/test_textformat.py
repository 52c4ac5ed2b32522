"""Text format: what is written reads back, here and in protobuf's own parser; what is wrong is named with its line."""

from __future__ import annotations

from contextlib import suppress

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from trt_spec.errors import ConfigError
from trt_spec.triton.textformat import Enum, Field, dumps, loads, quote

# Surrogates are not text; protobuf refuses them as well.
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
SCALARS = st.one_of(TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), NAMES.map(lambda word: Enum(word.upper())))
MESSAGES = st.recursive(
    st.lists(st.tuples(NAMES, SCALARS), max_size=4).map(lambda pairs: tuple(Field(*pair) for pair in pairs)),
    lambda inner: st.lists(st.tuples(NAMES, st.one_of(SCALARS, inner)), max_size=4).map(
        lambda pairs: tuple(Field(*pair) for pair in pairs)
    ),
    max_leaves=12,
)


def without_lines(message):
    return tuple(
        (name, type(value), without_lines(value) if isinstance(value, tuple) else value) for name, value, _ in message
    )


@given(MESSAGES)
def test_what_is_written_reads_back(message):
    assert without_lines(loads(dumps(message))) == without_lines(message)


@given(TEXT)
def test_protobuf_reads_our_strings(text):
    parsed = text_format.Parse(f"name: {quote(text)}", model_config_pb2.ModelConfig())
    assert parsed.name == text


@given(TEXT)
def test_we_read_the_strings_of_protobuf(text):
    for as_utf8 in (True, False):
        written = text_format.MessageToString(model_config_pb2.ModelConfig(name=text), as_utf8=as_utf8)
        assert [field.value for field in loads(written)] == ([text] if text else [])


def test_every_spelling_of_the_grammar():
    text = """
    # a comment
    name: 'single' "and double"   # adjacent literals are one string
    input [ { name: "a" dims: [1, -1] }, { name: "b", dims: 2; } ]
    policy: { on: true; kind: KIND_CPU }
    empty { } list: [] octal: 017 hex: 0x1F float: 1.5e-3 negative: -2
    """
    fields = [(name, value) for name, value, _ in loads(text)]
    assert fields[0] == ("name", "singleand double")
    assert without_lines(fields[1][1]) == (("name", str, "a"), ("dims", int, 1), ("dims", int, -1))
    assert without_lines(fields[2][1]) == (("name", str, "b"), ("dims", int, 2))
    assert without_lines(fields[3][1]) == (("on", bool, True), ("kind", Enum, Enum("KIND_CPU")))
    assert fields[4:] == [("empty", ()), ("octal", 15), ("hex", 31), ("float", 0.0015), ("negative", -2)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('name: "a\n', 1),
        ("\nname: @", 2),
        ("\n\nname", 3),
        ("name 5", 1),
        ("input {\n name: 'a'\n", 3),
        ("dims: [1 2]", 1),
        ("dims: [1,", 1),
        ("}", 1),
        (": 5", 1),
        (r'name: "\q"', 1),
        (r'name: "\777"', 1),
        (r'name: "\uD800"', 1),
        (r'name: "\U00110000"', 1),
        ("a {" * 40 + "}" * 40, 1),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, line):
    with pytest.raises(ConfigError) as caught:
        loads(text, "some/config.pbtxt")
    assert caught.value.where == f"some/config.pbtxt:{line}"


@given(st.text("ab:{}[]\"'\\#,;0-.\n ", max_size=40))
def test_any_text_parses_or_raises_our_error(text):
    with suppress(ConfigError):
        loads(text)
