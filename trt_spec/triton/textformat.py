"""Protocol buffer text format (what config.pbtxt is written in): a tree of fields to text, and text to a tree.

Knows nothing of Triton; `pbtxt` gives the fields their meaning. Grammar: https://protobuf.dev/reference/protobuf/textformat-spec/,
without extensions, `Any` and angle brackets, which no model configuration uses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from trt_spec.errors import ConfigError


class Enum(str):
    """A bare word: an enumeration value. A plain `str` is a quoted string."""

    __slots__ = ()


Value: TypeAlias = "bool | int | float | Enum | str | Message"


class Field(NamedTuple):
    """One `name: value` or `name { … }`; a repeated field occurs several times. `line` is 1-based, 0 = not read."""

    name: str
    value: Value
    line: int = 0


Message: TypeAlias = "tuple[Field, ...]"

_TOKEN = re.compile(
    r"""(?P<space>[\s]+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fF]?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<mark>[{}\[\]:,;])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SIMPLE_ESCAPES = {b"a": 7, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11}
_SIMPLE_ESCAPES |= {mark: mark[0] for mark in (b"\\", b"'", b'"', b"?")}
_MAX_DEPTH = 32


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int


def dumps(message: Message, indent: int = 0) -> str:
    """The text of a message, one field a line, nested messages indented by two spaces."""
    margin = "  " * indent
    lines = []
    for field in message:
        if isinstance(field.value, tuple):
            lines += [f"{margin}{field.name} {{", dumps(field.value, indent + 1), f"{margin}}}"]
        else:
            lines.append(f"{margin}{field.name}: {_scalar(field.value)}")
    return "\n".join(line for line in lines if line)


def loads(text: str, where: str = "config.pbtxt") -> Message:
    """The fields of a text, in the order in which they stand there.

    Args:
        text: the whole text.
        where: file name for messages.

    Raises:
        ConfigError: not text format; says where and what was found.
    """
    return _Parser(_tokens(text, where), where).message(closing=None, depth=0)


def _scalar(value: Value) -> str:
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    return repr(value)


def quote(text: str) -> str:
    """A string literal: UTF-8 kept readable, quotes, backslashes and control characters escaped."""
    named = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    escaped = (named.get(c) or (f"\\{ord(c):03o}" if ord(c) < 32 or ord(c) == 127 else c) for c in text)
    return '"' + "".join(escaped) + '"'


def _unquote(literal: str, fail: _Parser, line: int) -> str:
    def replace(match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, short, long, simple = match.groups()
        if octal:
            return bytes([int(octal, 8) & 0xFF])
        if hexadecimal:
            return bytes([int(hexadecimal, 16)])
        if short or long:
            return chr(int(short or long, 16)).encode()
        if simple not in _SIMPLE_ESCAPES:
            raise fail.error(line, f"the escape \\{simple.decode(errors='replace')} in a string", "a known escape")
        return bytes([_SIMPLE_ESCAPES[simple]])

    try:
        return _ESCAPE.sub(replace, literal[1:-1].encode()).decode()
    except (UnicodeError, ValueError, OverflowError):
        raise fail.error(line, literal, "a string in UTF-8") from None


def _tokens(text: str, where: str) -> list[_Token]:
    tokens, position, line = [], 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            got = text[position:].split("\n", 1)[0][:40]
            raise ConfigError("not protobuf text format", where=f"{where}:{line}", got=got)
        if match.lastgroup != "space":
            tokens.append(_Token(match.lastgroup or "", match.group(), line))
        line += match.group().count("\n")
        position = match.end()
    tokens.append(_Token("end", "end of file", line))
    return tokens


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[_Token], where: str) -> None:
        self.tokens = tokens
        self.where = where
        self.position = 0

    def error(self, line: int, got: str, expected: str) -> ConfigError:
        return ConfigError("not protobuf text format", where=f"{self.where}:{line}", got=got, expected=expected)

    def take(self) -> _Token:
        token = self.tokens[self.position]
        self.position += token.kind != "end"
        return token

    def peek(self, *texts: str) -> bool:
        token = self.tokens[self.position]
        return token.kind == "mark" and token.text in texts

    def message(self, closing: str | None, depth: int) -> Message:
        if depth > _MAX_DEPTH:
            raise self.error(self.tokens[self.position].line, "deeper nesting", f"at most {_MAX_DEPTH} levels")
        fields: list[Field] = []
        while True:
            token = self.take()
            if token.text == closing and token.kind == "mark":
                return tuple(fields)
            if token.kind == "end" and closing is None:
                return tuple(fields)
            if token.kind != "word":
                raise self.error(token.line, token.text, "a field name" + (f" or {closing}" if closing else ""))
            fields += self.field(token, depth)
            if self.peek(",", ";"):
                self.take()

    def field(self, name: _Token, depth: int) -> list[Field]:
        colon = self.peek(":")
        if colon:
            self.take()
        if not colon and not self.peek("{", "["):
            token = self.take()
            raise self.error(token.line, token.text, f"a colon or a brace after {name.text}")
        if not self.peek("["):
            return [Field(name.text, self.value(depth), name.line)]
        self.take()
        values: list[Field] = []
        while not self.peek("]"):
            if values:
                comma = self.take()
                if comma.text != ",":
                    raise self.error(comma.line, comma.text, "a comma or ]")
            values.append(Field(name.text, self.value(depth), self.tokens[self.position - 1].line))
        self.take()
        return values

    def value(self, depth: int) -> Value:
        token = self.take()
        if token.kind == "mark" and token.text == "{":
            return self.message("}", depth + 1)
        if token.kind == "string":
            text = _unquote(token.text, self, token.line)
            while self.tokens[self.position].kind == "string":  # adjacent literals are one string
                more = self.take()
                text += _unquote(more.text, self, more.line)
            return text
        if token.kind == "number":
            return self.number(token)
        if token.kind == "word":
            return {"true": True, "false": False}.get(token.text, Enum(token.text))
        raise self.error(token.line, token.text, "a value")

    def number(self, token: _Token) -> int | float:
        try:
            if re.fullmatch(r"[+-]?0[0-7]+", token.text):
                return int(token.text, 8)
            if re.fullmatch(r"[+-]?(\d+|0[xX][0-9a-fA-F]+)", token.text):
                return int(token.text, 0)
            return float(token.text.rstrip("fF"))
        except ValueError:
            raise self.error(token.line, token.text, "a number") from None
