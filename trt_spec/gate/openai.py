"""Any OpenAI-compatible server as a subject: streams of chat completions, or of completions for raw text.

Tokens are counted by the server from its ids (`usage`), never by cutting text again. Fields beyond OpenAI's API are
asked for, and left out from then on where a server refuses one by its name.
"""

from __future__ import annotations

import http.client
import json
import queue
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from trt_spec.clients.prompts import Prompt
from trt_spec.errors import MachineError, OverloadedError, RequestError, TrtSpecError
from trt_spec.gate.measure import Clock
from trt_spec.gate.records import Answer, Arm

# What a server may refuse. Without the first, chunks are counted but not their tokens; without the second, answers
# end where the model ends them.
OPTIONAL = ("continuous_usage_stats", "ignore_eos", "return_perf_metrics")
_TIMEOUT_S = 600.0
_REQUEST_STATUSES = (400, 401, 403, 404, 405, 413, 415, 422, 501)


class OpenAISubject:
    """OpenAI-compatible servers, one for each arm or the same for both.

    Args:
        urls: by arm; http(s)://host[:port][/v1]. Where both are the same, requests carry `speculation`, which the front
            of `trt-spec serve --openai-port` honours.
        model_name: taken where the server lists it; else the only one that it lists.
        api_key: sent as a bearer token.
    """

    def __init__(self, urls: Mapping[Arm, str], model_name: str, clock: Clock, api_key: str | None = None) -> None:
        self._clock = clock
        self._is_one_server = len(set(urls.values())) == 1
        self._servers = {url: _Server(url, model_name, api_key) for url in set(urls.values())}
        self._by_arm = {arm: self._servers[url] for arm, url in urls.items()}

    @property
    def dropped(self) -> list[str]:
        """Optional fields that a server refused."""
        return sorted({name for server in self._servers.values() for name in server.dropped})

    def ask(self, prompt: Prompt, arm: Arm, max_tokens: int, request_id: str) -> Answer:
        """See `latency.measure.Subject`.

        Raises:
            RequestError, OverloadedError, MachineError: what the server said, that there is none, or that it does not
                tell how many tokens it sent.
        """
        switch = {"speculation": arm == "speculation", "return_perf_metrics": True} if self._is_one_server else {}
        server = self._by_arm[arm]
        while True:
            try:
                return self._listen(server.stream(*_request(prompt, max_tokens, {**switch, "ignore_eos": True})))
            except RequestError as error:
                if server.drop_what_is_refused(error):
                    continue
                if self._is_one_server and "speculation" in str(error.got):
                    raise RequestError(
                        "the server has no switch for speculation",
                        where=server.url,
                        got=error.got,
                        remedy="give --plain-url with a server that does not speculate",
                    ) from None
                raise

    def _listen(self, events: Iterator[dict[str, Any]]) -> Answer:
        times: list[int] = []
        counts: list[int] = []
        usage: dict[str, Any] = {}
        told: dict[str, Any] = {}
        has_running_usage = False
        for event in events:
            now = self._clock.now_ns()
            choice = (event.get("choices") or [{}])[0]
            told = choice.get("speculation") or told
            new = (event.get("usage") or {}).get("completion_tokens", 0) - usage.get("completion_tokens", 0)
            usage = event.get("usage") or usage
            if event.get("choices"):
                has_running_usage = has_running_usage or bool(event.get("usage"))
                if new > 0 or (not has_running_usage and _text(choice)):
                    times.append(now)
                    counts.append(new)
        if not usage.get("completion_tokens") or not times:
            raise MachineError(
                "the server does not tell how many tokens it sent",
                where="usage of the stream",
                got=usage or "no usage",
                expected="stream_options.include_usage honoured, and at least one token",
            )
        # Counts that do not add up, as where only some events carry usage, are not told rather than wrong.
        total = usage["completion_tokens"]
        is_whole = has_running_usage and sum(counts) == total
        return Answer(
            tuple(times),
            tuple(counts) if is_whole else None,
            total,
            usage.get("prompt_tokens", 0),
            told.get("num_drafts"),
            told.get("total_draft_tokens"),
            told.get("total_accepted_draft_tokens"),
            tuple(told["accepted_per_position"]) if told.get("accepted_per_position") is not None else None,
        )

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


def _request(prompt: Prompt, max_tokens: int, extra: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Path and body; raw text goes to completions."""
    asked = {"messages": [{"role": "user", "content": prompt.text}]} if prompt.is_chat else {"prompt": prompt.text}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**asked, "max_tokens": max_tokens, "temperature": 0, "stream": True, "stream_options": options, **extra}
    return "chat/completions" if prompt.is_chat else "completions", body


def _text(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta") or {}
    return choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""


class _Server:
    """One server: its model, its open connections, and the fields that it refused."""

    def __init__(self, url: str, model_name: str, api_key: str | None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(
                "this is no server's address", where="--openai-url", got=url, expected="http://host:port/v1"
            )
        try:
            self._port = parts.port
        except ValueError:
            raise RequestError("this is no port", where="--openai-url", got=url, expected="1 to 65535") from None
        self.url, self._host, self._is_tls = url, parts.hostname, parts.scheme == "https"
        self._base = parts.path.rstrip("/") or "/v1"
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._idle: queue.SimpleQueue[http.client.HTTPConnection] = queue.SimpleQueue()
        self.dropped: set[str] = set()
        self.model = self._find_model(model_name)

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of one streamed answer; errors come from the iterator."""
        body = {"model": self.model, **{name: value for name, value in body.items() if name not in self.dropped}}
        options = body["stream_options"]
        body["stream_options"] = {name: value for name, value in options.items() if name not in self.dropped}
        connection, response = self._send("POST", path, body)
        try:
            while line := response.readline():
                data = line.partition(b"data:")[2].strip() if line.startswith(b"data:") else b""
                if data == b"[DONE]":
                    break
                if data:
                    yield _event(data, self.url)
            response.read()  # to the end, so that the connection may serve again
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unreachable(error) from None
        except BaseException:
            connection.close()
            raise
        self._idle.put(connection)

    def drop_what_is_refused(self, error: RequestError) -> bool:
        """Leaves out a field that an error names; False where it names none that may be left out."""
        named = next((name for name in OPTIONAL if name not in self.dropped and name in str(error)), None)
        if named is not None:
            self.dropped.add(named)
        return named is not None

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def _find_model(self, wanted: str) -> str:
        connection, response = self._send("GET", "models", None)
        try:
            names = [model["id"] for model in json.loads(response.read())["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise MachineError(
                "this is no OpenAI-compatible server", where=f"{self.url} models", got=str(error)
            ) from None
        finally:
            connection.close()
        if wanted in names:
            return wanted
        if len(names) == 1:
            return names[0]
        raise RequestError(
            "which model is meant?", where=self.url, got=", ".join(names), remedy="--set serve.model_name=<one of them>"
        )

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A connection and its answer, of status 200. A connection that went stale while idle is replaced once."""
        payload = None if body is None else json.dumps(body)
        for is_fresh in (False, True):
            connection = self._connection(is_fresh)
            try:
                connection.request(method, f"{self._base}/{path}", payload, self._headers)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if is_fresh:
                    raise self._unreachable(error) from None
                continue
            if response.status != 200:
                text = response.read().decode(errors="replace")
                connection.close()
                raise _refusal(response.status, text, self.url)
            return connection, response
        raise AssertionError("unreachable")

    def _connection(self, is_fresh: bool) -> http.client.HTTPConnection:
        if not is_fresh:
            with suppress(queue.Empty):
                return self._idle.get_nowait()
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=_TIMEOUT_S)

    def _unreachable(self, error: Exception) -> MachineError:
        if isinstance(error, TimeoutError):
            return MachineError("the server did not answer in time", where=self.url)
        got = str(error) or type(error).__name__
        return MachineError("the server cannot be reached", where=self.url, got=got, remedy="is it running?")


def _event(data: bytes, url: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        raise MachineError("the server sent what is not JSON", where=url, got=ascii(data)[:200]) from None
    if not isinstance(event, dict) or "error" in event:
        raise MachineError("the server failed on a request", where=url, got=str(event)[:400])
    return event


def _refusal(status: int, text: str, url: str) -> TrtSpecError:
    """What a server says with a status of its own, in our terms."""
    said = re.sub(r"\s+", " ", text).strip()[:400]
    got = f"status {status}: {said}"
    if status == 429:
        return OverloadedError("the server has too much to do", where=url, got=got, remedy="lower the concurrency")
    if status in (401, 403):
        return RequestError("the server wants a key", where=url, got=got, remedy="set OPENAI_API_KEY")
    if status in _REQUEST_STATUSES:
        return RequestError("the server refuses the request", where=url, got=got)
    return MachineError("the server failed on a request", where=url, got=got)
