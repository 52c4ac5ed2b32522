"""HTTP for the clients: connections, server-sent events, and our errors for what goes wrong on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx2

from trt_spec.errors import MachineError

_IDLE_S = 2.0  # an idle connection is closed before servers close it (uvicorn: 5 s)


class Refusal(Exception):
    """A status other than 200, with the text of its body; of a stream of events, the first one's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status, self.text = status, text

    @property
    def is_request(self) -> bool:
        """Whether the request is at fault, by its status."""
        return self.status in (400, 401, 403, 404, 405, 413, 415, 422, 501)


class Http:
    """One server, asked directly and through no proxy. Any number of threads may ask at once.

    Args:
        url: http(s)://host:port[/path]; paths are added to it.
        timeout_s: how long the next piece of an answer may take.
        headers: sent with each request.
        keeps: whether connections are kept for the next request.
    """

    def __init__(
        self, url: str, *, timeout_s: float, headers: Mapping[str, str] | None = None, keeps: bool = True
    ) -> None:
        self.url = url
        limits = httpx2.Limits(max_keepalive_connections=None if keeps else 0, keepalive_expiry=_IDLE_S)
        self._client = httpx2.Client(
            base_url=url,
            headers={"Content-Type": "application/json", **(headers or {})},
            timeout=timeout_s,
            limits=limits,
            trust_env=False,
            verify=url.startswith("https:"),
        )

    def get(self, path: str) -> str:
        """The body of an answer; Refusal where its status is not 200, MachineError where nobody answers in time."""
        with self._errors():
            return _body(self._client.get(path))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON of an answer; raises as `get`, and MachineError where it is no JSON."""
        with self._errors():
            return self._parsed(_body(self._client.post(path, content=json.dumps(body))))

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """The JSON of each server-sent event, up to OpenAI's `[DONE]`; raises as `post`. Closing it hangs up."""
        with self._errors(), self._client.stream("POST", path, content=json.dumps(body)) as response:
            if response.status_code != 200:
                response.read()
                _body(response)
            for event in httpx2.EventSource(response, max_event_size=None):
                if event.data and event.data != "[DONE]":
                    yield self._parsed(event.data)

    def close(self) -> None:
        """Closes idle connections."""
        self._client.close()

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise MachineError("the server sent what is not JSON", where=self.url, got=ascii(text)[:200]) from None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TimeoutException:
            raise MachineError("the server did not answer in time", where=self.url) from None
        except httpx2.HTTPError as error:
            got = str(error) or type(error).__name__
            raise MachineError(
                "the server cannot be reached", where=self.url, got=got, remedy="is it running?"
            ) from None


def ended_early() -> MachineError:
    """A stream without its last response."""
    return MachineError("the stream ended before the answer did", remedy="see the server's log")


def _body(response: httpx2.Response) -> str:
    """Of a response that has been read."""
    if response.status_code == 200:
        return response.text
    text = response.text
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        text = next((event.data for event in httpx2.EventSource(response, max_event_size=None)), text)
    raise Refusal(response.status_code, text.strip())
