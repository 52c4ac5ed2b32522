"""The routes, as an ASGI application on Starlette: read, forward, answer; a client that leaves cancels its requests."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from trt_spec.clients.triton_aio import AsyncTritonClient
from trt_spec.errors import RequestError, TrtSpecError
from trt_spec.runtime.request import Chunk
from trt_spec.serve.openai import errors
from trt_spec.serve.openai.forwarding import Forwarder
from trt_spec.serve.openai.requests import Call, Kind, Upstream, read
from trt_spec.serve.openai.responses import Writer

MAX_BODY_BYTES = 64 << 20
Chunks = AsyncIterator[tuple[int, Chunk]]
T = TypeVar("T")


class _Gone(Exception):
    """The client has left; nobody reads an answer."""


class Front:
    """The application's handlers.

    Args:
        upstream: the model.
        grpc_url: where Triton serves it.
        check: raises TrtSpecError where the server is not sound; called on a thread.
    """

    def __init__(self, upstream: Upstream, grpc_url: str, check: Callable[[], None] | None = None) -> None:
        self.upstream, self.grpc_url, self._check_server = upstream, grpc_url, check
        self.forwarder: Forwarder

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/completions", functools.partial(self._answer, "completion"), methods=["POST"]),
            Route("/v1/chat/completions", functools.partial(self._answer, "chat"), methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._model, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
        ]
        handlers = {HTTPException: _on_http, TrtSpecError: _refusal, Exception: _on_unexpected}
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        client = AsyncTritonClient(self.grpc_url, self.upstream.model_name)
        self.forwarder = Forwarder(client, self.upstream.max_batch_size)
        yield
        await client.close()

    # --- handlers ---

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._shown_model()]})

    async def _model(self, request: Request) -> Response:
        self.upstream.check_name(request.path_params["name"])
        return JSONResponse(self._shown_model())

    def _shown_model(self) -> dict[str, object]:
        # `max_model_len` is not OpenAI's; load testers look for it.
        name, limit = self.upstream.model_name, self.upstream.max_seq_len
        return {"id": name, "object": "model", "created": 0, "owned_by": "trt-spec", "max_model_len": limit}

    async def _health(self, request: Request) -> Response:
        """200 exactly when the model answers; asked each time, nothing is remembered."""
        if self._check_server is not None:
            await asyncio.to_thread(self._check_server)
        await self.forwarder.client.check()
        return JSONResponse({"status": "ok"})

    async def _answer(self, kind: Kind, request: Request) -> Response:
        body = await _json(request)
        # On a thread: a long prompt takes the tokenizer a while, and other streams must not wait for it.
        call = await asyncio.to_thread(read, kind, body, self.upstream)
        writer = Writer(call, self.upstream.model_name, self.upstream.tokenizer)
        chunks = self.forwarder.chunks(call)
        try:
            if not call.stream:
                return JSONResponse(writer.whole(await _while_there(request.receive, _collect(chunks, call))))
            first = await _while_there(request.receive, anext(chunks))  # a refusal comes first, and has its HTTP status
        except _Gone:
            return Response(status_code=499)  # nobody reads it
        except TrtSpecError as error:
            return await _refusal(request, error, call)
        finally:
            if not call.stream:
                await chunks.aclose()
        return EventStream(first, chunks, writer)


class EventStream:
    """A response of server-sent events; closes the chunks when it is through or the client has left.

    Written out because what ends a stream early is all that is difficult here: Starlette's own response leaves it to
    the server's version whether a client that leaves is noticed before the next event.
    """

    def __init__(self, first: tuple[int, Chunk], chunks: Chunks, writer: Writer) -> None:
        self.first, self.chunks, self.writer = first, chunks, writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events while the client is there."""
        try:
            with suppress(_Gone):
                await _while_there(receive, self._send_all(send))
        finally:
            await self.chunks.aclose()

    async def _send_all(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await self._send_chunk(send, *self.first)
            async for index, chunk in self.chunks:
                await self._send_chunk(send, index, chunk)
            if self.writer.call.include_usage:
                await _send_event(send, self.writer.last_event())
        except TrtSpecError as error:  # too late for a status
            await _send_event(send, errors.body_of(error, self.writer.call))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    async def _send_chunk(self, send: Send, index: int, chunk: Chunk) -> None:
        for event in self.writer.events(index, chunk):
            await _send_event(send, event)


async def _send_event(send: Send, event: Mapping[str, Any]) -> None:
    data = f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _collect(chunks: Chunks, call: Call) -> list[list[Chunk]]:
    found: list[list[Chunk]] = [[] for _ in range(call.num_choices)]
    async for index, chunk in chunks:
        found[index].append(chunk)
    return found


async def _while_there(receive: Receive, work: Awaitable[T]) -> T:
    """The result of some work; cancels it and raises _Gone when the client leaves."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _Gone
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        with suppress(BaseException):
            await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _json(request: Request) -> Any:
    """The body as JSON; raises RequestError where it is none, HTTPException where it is too large."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        parts.append(part)
    try:
        return await asyncio.to_thread(json.loads, b"".join(parts))
    except (ValueError, RecursionError) as error:  # not UTF-8 is a ValueError too
        raise RequestError(f"the body is not JSON: {ascii(str(error))[1:-1][:200]}") from None


# --- errors ---


async def _refusal(request: Request, error: TrtSpecError, call: Call | None = None) -> Response:
    return JSONResponse(
        errors.body_of(error, call), status_code=errors.status_of(error), headers=dict(errors.headers_of(error))
    )


async def _on_http(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = errors.body(message, "invalid_request_error", None, None)
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _on_unexpected(request: Request, error: Exception) -> Response:
    return JSONResponse(errors.body("the front failed on this request", "server_error"), status_code=500)
