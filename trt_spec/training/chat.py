"""Prompts as a chat: the target's template taken apart, and messages read from a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import RequestError
from trt_spec.training.files import read_json_lines

_MARK = "\u2063TEXT\u2063"  # stands for the user's message while the template is taken apart


class ChatFormat:
    """The chat template taken apart: what stands before and behind the user's message.

    Without a template a prompt is its text, and the target cannot write prompts.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self.opening, self.closing = tokenizer, None, None
        self._around: tuple[str, str] | None = None
        if tokenizer.chat_template is not None:
            text = self._render(_MARK)
            opening, mark, closing = text.partition(_MARK)
            if mark:
                self.opening, self.closing = self._encode(opening), self._encode(closing)
                self._around = (opening, closing)

    @property
    def can_open(self) -> bool:
        """Whether the target can be asked to write the user's turn."""
        return bool(self.opening)

    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end the user's turn, beside EOS: a special token right behind it."""
        first = self.closing[:1] if self.closing else []
        return tuple(token for token in first if token in self.tokenizer.special_ids)

    def prompt(self, message: str) -> list[int]:
        """Ids of a message of the user, up to where the reply starts."""
        if self.tokenizer.chat_template is None:
            return self.tokenizer.encode(message)
        if self._around is not None and message == message.strip():  # templates may strip; rendering is slow
            opening, closing = self._around
            return self._encode(f"{opening}{message}{closing}")
        return self._encode(self._render(message))

    def _render(self, message: str) -> str:
        return self.tokenizer.apply_chat_template([{"role": "user", "content": message}])

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


def read_prompts(path: Path) -> list[str]:
    """User messages of a JSONL file: each line a string, or an object with `prompt`, `text` or `messages`.

    Of `messages` the first of the user is taken. Blank lines are skipped.

    Raises:
        RequestError: a line is none of these, or there is no prompt at all.
    """
    prompts = []
    for number, value in read_json_lines(path):
        prompt = _message_of(value)
        if not isinstance(prompt, str) or not prompt.strip():
            raise RequestError(
                "this line holds no prompt",
                where=f"{path}:{number}",
                got=json.dumps(value)[:120],
                expected='"text", {"prompt": "text"} or {"messages": [{"role": "user", "content": "text"}]}',
            )
        prompts.append(prompt)
    if not prompts:
        raise RequestError("the file of prompts is empty", where=str(path))
    return prompts


def _message_of(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    messages = value.get("messages")
    if isinstance(messages, list):
        turns = [turn for turn in messages if isinstance(turn, dict) and turn.get("role") == "user"]
        return turns[0].get("content") if turns else None
    return value.get("prompt", value.get("text"))


def prompts_digest(prompts: Sequence[str]) -> str:
    """A short name for given prompts."""
    return hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()[:12] if prompts else ""
