"""Runs the front with uvicorn on a thread of its own, beside the server that it forwards to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from trt_spec.errors import MachineError
from trt_spec.serve.openai.requests import Upstream
from trt_spec.triton.server.installation import bind

if TYPE_CHECKING:
    import uvicorn

    from trt_spec.serve.openai.app import Front

HOST = "127.0.0.1"
PORT_OPTION = "--openai-port"
_START_S = 10.0
_STOP_S = 5.0  # beyond the time for draining
_KEEP_ALIVE_S = 75.0  # longer than clients keep an idle connection, so that they close it and never lose a request


class OpenAIServer:
    """One front. `bind` takes the port, `start` serves; `stop` finishes what runs.

    Args:
        port: on `host`; 0 takes a free one, which `url` tells.
        drain_timeout_s: how long requests in flight may take when it stops.
    """

    def __init__(self, port: int, *, host: str = HOST, drain_timeout_s: float = 30.0) -> None:
        self.host, self.drain_timeout_s = host, drain_timeout_s
        self._socket = bind(port, PORT_OPTION, host)
        self.port = self._socket.getsockname()[1]
        self._front: Front | None = None
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """What clients take as base_url."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/v1"

    def start(self, upstream: Upstream, grpc_url: str, check: Callable[[], None] | None = None) -> OpenAIServer:
        """Serves, from now on, what `app.Front` is given; MachineError where it does not start, or lacks a package."""
        try:
            import uvicorn

            from trt_spec.serve.openai.app import Front
        except ImportError as error:
            raise MachineError(
                "the OpenAI front lacks a package",
                got=error.name,
                remedy="run make setup, or pip install '.[serve]' in the checkout of this project",
            ) from None
        self._front = Front(upstream, grpc_url, check)
        config = uvicorn.Config(
            self._front.application(),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="on",
            access_log=False,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=int(_KEEP_ALIVE_S),
            timeout_graceful_shutdown=max(1, round(self.drain_timeout_s)),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="openai front", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise MachineError("the OpenAI front did not start", where=self.url)
            time.sleep(0.01)
        return self

    def _run(self) -> None:
        assert self._server is not None

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._socket])

        asyncio.run(serve())

    def check(self) -> None:
        """Raises MachineError where the front has ended by itself."""
        if self._thread is not None and not self._thread.is_alive():
            raise MachineError("the OpenAI front ended", where=self.url, remedy="start it again; see what it printed")

    def stop(self, *, is_failed: bool = False) -> None:
        """Takes no new requests, finishes those that run, and stops. May be called twice.

        Where what is behind it has failed, requests in flight are told so instead of being waited for.
        """
        if self._server is not None and self._thread is not None and self._thread.is_alive():
            if is_failed and self._loop is not None and self._front is not None:
                told = MachineError("the served model has failed", remedy="retry; see the server's log")
                self._loop.call_soon_threadsafe(self._front.forwarder.fail, told)
            self._server.should_exit = True
            self._thread.join(self.drain_timeout_s + _STOP_S)
        self._socket.close()
