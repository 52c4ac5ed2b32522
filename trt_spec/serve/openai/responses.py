"""Chunks of the served model as OpenAI's objects: whole answers, stream events, usage and log-probabilities."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import MachineError
from trt_spec.runtime.request import Chunk, Completion
from trt_spec.serve.openai.requests import Call
from trt_spec.triton.codec import merge

_PREFIXES = {"completion": "cmpl", "chat": "chatcmpl"}
_FINISH_REASONS = {"length": "length", "stop": "stop", "eos": "stop"}


def finish_reason(done: Completion) -> str:
    """OpenAI's word for why an answer ended; MachineError where it was stopped from elsewhere, and is not whole."""
    if done.finish_reason not in _FINISH_REASONS:
        raise MachineError("the server stopped this request before its end", got=done.finish_reason, remedy="retry")
    return _FINISH_REASONS[done.finish_reason]


class _Tokens:
    """The texts of one choice's tokens, and where in its text each begins; the deltas of a stream add up."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset, self._has_text = 0, False

    def add(self, token_id: int) -> tuple[bytes, int]:
        """Bytes of a token (of a special one, its name), and how many characters of text are before it."""
        piece, before = self._tokenizer.id_to_bytes(token_id), self._offset
        if not self._has_text:
            piece = self._tokenizer.strip_start(piece)
        self._has_text = self._has_text or bool(piece)
        self._offset += len(self._decoder.decode(piece))
        with suppress(UnicodeDecodeError):  # whole characters begin behind the U+FFFD of an unfinished one
            before = self._offset - len(piece.decode())
        return piece or self._tokenizer.raw_bytes(token_id), before


@dataclass
class Writer:
    """Writes the answer to one call.

    Attributes:
        usage: tokens so far, over all choices; the prompts' are known when their answers end.
    """

    call: Call
    model_name: str
    tokenizer: Tokenizer | None
    id: str = ""
    created: int = 0
    num_completion_tokens: int = 0
    _prompt_tokens: dict[int, int] = field(default_factory=dict)
    _tokens: dict[int, _Tokens] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.id = f"{_PREFIXES[self.call.kind]}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    # --- whole answers ---

    def whole(self, chunks: Sequence[Sequence[Chunk]]) -> dict[str, object]:
        """The answer without streaming, from the chunks of every choice."""
        choices = []
        for index, parts in enumerate(chunks):
            chunk = merge(list(parts))
            self._count(index, chunk)
            choices.append(self._choice(index, chunk, self._echo(index) + chunk.text))
        return {**self._head(is_chunk=False), "choices": choices, "usage": self.usage()}

    def _choice(self, index: int, chunk: Chunk, text: str) -> dict[str, object]:
        if self.call.kind == "chat":
            said: dict[str, object] = {"message": {"role": "assistant", "content": text, "refusal": None}}
        else:
            said = {"text": text}
        return {"index": index, **said, "logprobs": self._logprobs(index, chunk), **self._end(chunk)}

    # --- streams ---

    def events(self, index: int, chunk: Chunk) -> list[dict[str, object]]:
        """The stream events that one chunk makes: its text, and for the last one the end."""
        self._count(index, chunk)
        choices, is_first = [], index not in self._seen
        self._seen.add(index)
        if self.call.kind == "chat":
            if is_first:
                choices.append({"index": index, "delta": {"role": "assistant", "content": ""}})
            if chunk.text or chunk.token_ids:
                logprobs = self._logprobs(index, chunk)
                choices.append({"index": index, "delta": {"content": chunk.text}, "logprobs": logprobs})
            if chunk.is_last:
                choices.append({"index": index, "delta": {}})
        else:
            text = (self._echo(index) if is_first else "") + chunk.text
            choices.append({"index": index, "text": text, "logprobs": self._logprobs(index, chunk)})
        shown = [{"logprobs": None, "finish_reason": None, **choice} for choice in choices]
        if chunk.is_last:
            shown[-1] |= self._end(chunk)
        return [{**self._head(is_chunk=True), "choices": [choice], **self._event_usage()} for choice in shown]

    def _event_usage(self) -> dict[str, object]:
        if self.call.has_running_usage:
            return {"usage": self.usage()}
        return {"usage": None} if self.call.include_usage else {}

    def last_event(self) -> dict[str, object]:
        """The event of a stream that carries its usage and no choice."""
        return {**self._head(is_chunk=True), "choices": [], "usage": self.usage()}

    # --- parts ---

    def _head(self, *, is_chunk: bool) -> dict[str, object]:
        of = "text_completion" if self.call.kind == "completion" else "chat.completion" + ".chunk" * is_chunk
        return {"id": self.id, "object": of, "created": self.created, "model": self.model_name}

    def _echo(self, index: int) -> str:
        return self.call.echoes[index // self.call.n] if self.call.echoes else ""

    def _end(self, chunk: Chunk) -> dict[str, object]:
        done = chunk.completion
        assert done is not None
        end: dict[str, object] = {"finish_reason": finish_reason(done), "stop_reason": done.stop_reason}
        if self.call.parameters.get("return_perf_metrics"):
            names = ("num_drafts", "total_draft_tokens", "total_accepted_draft_tokens", "accepted_per_position")
            end["speculation"] = {name: getattr(done, name) for name in names}
        return end

    def _count(self, index: int, chunk: Chunk) -> None:
        self.num_completion_tokens += len(chunk.token_ids)
        if chunk.completion is not None:
            self._prompt_tokens[index // self.call.n] = chunk.completion.num_input_tokens

    def usage(self) -> dict[str, int]:
        """Tokens of the prompts, each once, and of all choices."""
        prompt = self.call.num_prompt_tokens or sum(self._prompt_tokens.values())
        completion = self.num_completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _logprobs(self, index: int, chunk: Chunk) -> dict[str, object] | None:
        if not self.call.parameters.get("logprobs") or chunk.logprobs is None:
            return None
        assert self.tokenizer is not None
        tokens = self._tokens.setdefault(index, _Tokens(self.tokenizer))
        pieces = [tokens.add(token_id) for token_id in chunk.token_ids]
        texts = [piece.decode(errors="replace") for piece, _ in pieces]
        if self.call.kind == "completion":
            offsets = [offset for _, offset in pieces]
            return {"tokens": texts, "token_logprobs": chunk.logprobs, "top_logprobs": None, "text_offset": offsets}
        content = [
            {"token": text, "logprob": logprob, "bytes": list(piece), "top_logprobs": []}
            for text, logprob, (piece, _) in zip(texts, chunk.logprobs, pieces, strict=True)
        ]
        return {"content": content, "refusal": None}
