"""Any OpenAI-compatible server: streams of chat completions, and of completions for raw text and token ids.

Tokens are counted by the server from its ids (`usage`), never by cutting text again. Fields beyond OpenAI's API are
asked for, and left out from then on where the server refuses them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Set
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from trt_spec.clients.client import ABILITIES, Client, Params
from trt_spec.clients.http import Http, Refusal, ended_early
from trt_spec.clients.prompts import Prompt
from trt_spec.clients.trace import CountedChunk
from trt_spec.errors import MachineError, OverloadedError, RequestError, TrtSpecError
from trt_spec.runtime.request import Chunk, Completion, SamplingParams

SWITCH = "speculation"  # what the front of `trt-spec serve --openai-port` calls it
# What a server may refuse, and the ability that goes with it. Without the first, chunks are counted, not their tokens.
OPTIONAL = {"continuous_usage_stats": None, "ignore_eos": "ignore_eos", "return_perf_metrics": "draft_counts"}
_TIMEOUT_S = 600.0  # how long the next event may take
_FIELD_STATUSES = (400, 422)  # of a request with a field that is not known
_DEFAULTS = vars(SamplingParams())


class OpenAIClient(Client):
    """One OpenAI-compatible server.

    Args:
        url: http(s)://host:port[/v1].
        model_name: taken where the server lists it; else the only one that it lists.
        api_key: sent as a bearer token.
        has_switch: it honours `speculation`, and so every request says it and asks what was drafted.

    Raises:
        RequestError: the url is none, or it is not clear which model is meant.
        MachineError: nobody is there, or not such a server.
    """

    def __init__(self, url: str, model_name: str, *, api_key: str | None = None, has_switch: bool = True) -> None:
        self.name = self.url = url
        headers = {"Accept": "text/event-stream, application/json"}
        headers |= {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = Http(_base_url(url), timeout_s=_TIMEOUT_S, headers=headers)
        self._lock = threading.Lock()
        self.abilities = ABILITIES - {"output_ids", "logprobs", "token_origins"}
        self.abilities -= set() if has_switch else {"speculation_switch", "draft_counts"}
        self.model = self._find_model(model_name)

    def stream(self, prompt: Prompt, params: Params, *, request_id: str = "") -> Iterator[Chunk]:
        """See `Client.stream`. Chunks have no ids, the completion no times; without usage it is a MachineError."""
        heard = _Heard()
        with closing(self._events(prompt, params)) as events:
            for event in events:
                text, num_tokens = heard.read(event)
                if text or num_tokens is not None:
                    yield CountedChunk(request_id, text, num_tokens=num_tokens)
        yield CountedChunk(request_id, completion=heard.completion())

    def close(self) -> None:
        self._http.close()

    def _events(self, prompt: Prompt, params: Params) -> Iterator[dict[str, Any]]:
        path, body = self._request(prompt, params)
        while True:
            dropped = self.dropped
            try:
                for event in self._http.events(path, _without(body, dropped)):
                    if not isinstance(event, dict) or "error" in event:
                        said = str(event)[:400]
                        raise MachineError("the server failed on a request", where=self.url, got=said)
                    yield event
                return
            except Refusal as refusal:
                if refusal.status not in _FIELD_STATUSES or not self._drop(path, body, dropped, refusal):
                    raise self._error(refusal) from None

    def _request(self, prompt: Prompt, params: Params) -> tuple[str, Mapping[str, Any]]:
        """Path and body; what has its default is left out."""
        asked: dict[str, Any] = {"model": self.model}
        is_chat = prompt.is_chat and prompt.input_ids is None
        if is_chat:
            asked["messages"] = [{"role": "user", "content": prompt.text}]
        else:
            asked["prompt"] = prompt.text if prompt.input_ids is None else list(prompt.input_ids)
        if params.sampling.logprobs:
            self.require("logprobs", purpose="log-probabilities")
        asked |= {"max_tokens": params.sampling.max_tokens, "temperature": params.sampling.temperature, "stream": True}
        asked["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        given = {name: value for name, value in vars(params.sampling).items() if value != _DEFAULTS[name]}
        given |= {"max_draft_len": params.max_draft_len} if params.max_draft_len is not None else {}
        if "speculation_switch" in self.abilities:
            given |= {SWITCH: params.speculation, "return_perf_metrics": True}
        return "chat/completions" if is_chat else "completions", {**given, **asked}

    def _drop(self, path: str, body: Mapping[str, Any], dropped: frozenset[str], refusal: Refusal) -> bool:
        """Finds the optional fields that the server refuses; whether there was one, so that asking again helps.

        A server may name the field (OpenAI's `error.param`). Else it is asked for one token: without any of them, and
        where that passes, with each by itself.
        """
        with self._lock:
            if self.dropped != dropped:  # found by another thread
                return True
            options = [name for name in (*OPTIONAL, SWITCH) if name not in dropped and _has(body, name)]
            refused = {name for name in options if name == _param(refusal)}
            if not refused and self._passes(path, _without(body, {*dropped, *options})):
                rest = {name: {*dropped, *options} - {name} for name in options}
                refused = {name for name in options if not self._passes(path, _without(body, rest[name]))}
            if SWITCH in refused:
                raise RequestError(
                    "the server has no switch for speculation",
                    where=self.url,
                    got=_said(refusal),
                    remedy="give --plain-url with a server that does not speculate",
                )
            self.dropped |= refused
            self.abilities -= {OPTIONAL[name] for name in refused}
            return bool(refused)

    def _passes(self, path: str, body: Mapping[str, Any]) -> bool:
        try:
            for _ in self._http.events(path, {**body, "max_tokens": 1}):
                pass
        except Refusal as refusal:
            if refusal.status in _FIELD_STATUSES:
                return False
            raise self._error(refusal) from None
        return True

    def _find_model(self, wanted: str) -> str:
        try:
            names = [model["id"] for model in json.loads(self._http.get("models"))["data"]]
        except Refusal as refusal:
            raise self._error(refusal) from None
        except (ValueError, KeyError, TypeError) as error:
            where = f"{self.url} models"
            raise MachineError("this is no OpenAI-compatible server", where=where, got=str(error)) from None
        if wanted in names:
            return wanted
        if len(names) == 1:
            return names[0]
        raise RequestError(
            "which model is meant?", where=self.url, got=", ".join(names), remedy="--set serve.model_name=<one of them>"
        )

    def _error(self, refusal: Refusal) -> TrtSpecError:
        """What a server says with a status of its own, in our terms."""
        status, where, got = refusal.status, self.url, _said(refusal)
        if status == 429:
            return OverloadedError(
                "the server has too much to do", where=where, got=got, remedy="lower the concurrency"
            )
        if status in (401, 403):
            return RequestError("the server wants a key", where=where, got=got, remedy="set OPENAI_API_KEY")
        if refusal.is_request:
            return RequestError("the server refuses the request", where=where, got=got)
        return MachineError("the server failed on a request", where=where, got=got)


@dataclass
class _Heard:
    """What the events of one answer told so far."""

    usage: dict[str, Any] = field(default_factory=dict)
    drafts: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = ""
    stop_reason: str | int | None = None
    has_running_usage: bool = False

    def read(self, event: dict[str, Any]) -> tuple[str, int | None]:
        """Text of an event, and its tokens: None where it holds none, 0 where it does not say how many."""
        usage, choices = event.get("usage") or {}, event.get("choices") or ()
        num_tokens = usage.get("completion_tokens", 0) - self.usage.get("completion_tokens", 0)
        self.usage = usage or self.usage
        if not choices:
            return "", None
        choice, delta = choices[0], choices[0].get("delta") or {}
        self.drafts = choice.get("speculation") or self.drafts
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.stop_reason = choice.get("stop_reason") or self.stop_reason
        self.has_running_usage |= bool(usage)
        parts = (choice.get("text"), *map(delta.get, ("content", "reasoning_content", "reasoning")))
        text = next(filter(None, parts), "")
        if num_tokens > 0:
            return text, num_tokens
        return text, 0 if text and not self.has_running_usage else None

    def completion(self) -> Completion:
        """The end of the answer; MachineError where the stream broke off, or tells no tokens."""
        if not self.usage.get("completion_tokens"):
            raise MachineError(
                "the server does not tell how many tokens it sent",
                where="usage of the stream",
                got=self.usage or "no usage",
                expected="stream_options.include_usage honoured, and at least one token",
            )
        if not self.finish_reason:
            raise ended_early()
        names = ("num_drafts", "total_draft_tokens", "total_accepted_draft_tokens", "accepted_per_position")
        counts = (self.usage.get("prompt_tokens", 0), self.usage["completion_tokens"])
        drafts = [self.drafts.get(name) for name in names]
        return Completion(self.finish_reason, self.stop_reason, *counts, None, *drafts, 0, None, 0, 0)


def _base_url(url: str) -> str:
    """With a scheme and a path."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RequestError("this is no server's address", where="--openai-url", got=url, expected="http://host:port/v1")
    try:
        _ = parts.port
    except ValueError:
        raise RequestError("this is no port", where="--openai-url", got=url, expected="1 to 65535") from None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def _has(body: Mapping[str, Any], name: str) -> bool:
    return name in body or name in body["stream_options"]


def _without(body: Mapping[str, Any], names: Set[str]) -> Mapping[str, Any]:
    """The body without some of its fields and of its stream options."""
    options = {name: value for name, value in body["stream_options"].items() if name not in names}
    return {**{name: value for name, value in body.items() if name not in names}, "stream_options": options}


def _param(refusal: Refusal) -> str | None:
    """The field that OpenAI's error object names, without what it lies in."""
    try:
        return str(json.loads(refusal.text)["error"]["param"]).rpartition(".")[2]
    except (ValueError, KeyError, TypeError):
        return None


def _said(refusal: Refusal) -> str:
    text = re.sub(r"\s+", " ", refusal.text).strip()
    return f"status {refusal.status}: {text[:400]}"
