"""Ids to a stream of text: whole code points only, stop strings cut exactly, nothing held back longer than needed."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trt_spec.errors import RequestError

if TYPE_CHECKING:
    from trt_spec.checkpoints.tokenizer import Tokenizer


class Detokenizer:
    """Text of one request's output.

    Without a stop, all deltas and `finish()` in a row equal `tokenizer.decode(all ids)`. With one, they equal that text
    up to the first character of the stop string that completes first.

    Args:
        tokenizer: Gives the bytes of each id.
        stop: Stop strings; an empty one is refused.

    Raises:
        RequestError: A stop string is empty or not text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or not all(isinstance(text, str) and text for text in stop):
            raise RequestError("stop strings cannot be empty", where="stop", got=stop, expected="a list of texts")
        self._tokenizer = tokenizer
        self._stop = tuple(dict.fromkeys(stop))
        self._max_held = max(map(len, self._stop), default=1) - 1
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_at_start = True
        self._held = ""  # the end of the text so far, where it may be the beginning of a stop string
        self._stopped_by: str | None = None

    def push(self, token_id: int, check_stop: bool = True) -> tuple[str, str | None]:
        """The text that an output id releases, and the stop string that it completes, after which nothing is released.

        Args:
            check_stop: False lets complete stop strings pass (below min_tokens).
        """
        if self._stopped_by is not None:
            return "", self._stopped_by
        return self._take(self._utf8.decode(self._bytes_of(token_id)), check_stop), self._stopped_by

    def finish(self) -> str:
        """The rest: text held for a stop string that did not come, and U+FFFD for an unfinished code point."""
        if self._stopped_by is not None:
            return ""
        rest, self._held = self._held + self._utf8.decode(b"", final=True), ""
        return rest

    def _bytes_of(self, token_id: int) -> bytes:
        piece = self._tokenizer.id_to_bytes(token_id)
        if piece and self._is_at_start:
            self._is_at_start = False
            piece = self._tokenizer.strip_start(piece)
        return piece

    def _take(self, text: str, check_stop: bool) -> str:
        """Adds text; returns what can be released now."""
        if not text:
            return ""
        text = self._held + text
        if check_stop and (match := _first_to_complete(text, self._stop)):
            start, self._stopped_by = match
            self._held = ""
            return text[:start]
        num_held = _num_chars_of_a_beginning(text, self._stop, self._max_held)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]


def _first_to_complete(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """Start of the stop string whose last character comes first (of two, the longer) and the string itself.

    By completion, not by start: so the cut does not depend on how the text was split into tokens.
    """
    found = [(start + len(string), start, string) for string in stop if (start := text.find(string)) >= 0]
    if not found:
        return None
    _, start, string = min(found)
    return start, string


def _num_chars_of_a_beginning(text: str, stop: Sequence[str], longest: int) -> int:
    """Length of the longest end of `text` that begins a stop string without completing it."""
    for length in range(min(longest, len(text)), 0, -1):
        end = text[len(text) - length :]
        if any(len(string) > length and string.startswith(end) for string in stop):
            return length
    return 0
