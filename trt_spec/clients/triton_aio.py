"""Streams of the served model for asyncio: as `TritonClient.stream`, for many requests on one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from trt_spec.clients import triton_wire as wire
from trt_spec.clients.http import ended_early
from trt_spec.clients.triton import CHANNEL_OPTIONS, chunk_of, grpc_errors
from trt_spec.clients.triton_wire import ChunkReader
from trt_spec.errors import MachineError, TrtSpecError
from trt_spec.runtime.request import Chunk
from trt_spec.triton.host.watch import PING

_PING_TIMEOUT_S = 5.0


class AsyncTritonClient:
    """Talks to one streaming model over gRPC (host:port). Make it on the event loop that uses it."""

    def __init__(self, grpc_url: str, model_name: str) -> None:
        import grpc
        from tritonclient.grpc import service_pb2_grpc

        self.grpc_url, self.model_name = grpc_url, model_name
        self._channel = grpc.aio.insecure_channel(grpc_url, options=CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        """Closes the connection; requests in flight are cancelled."""
        await self._channel.close()

    async def stream(
        self, prompt: wire.TextOrIds, *, streaming: bool = True, request_id: str = "", **parameters: Any
    ) -> AsyncIterator[Chunk]:
        """Deltas, of which the last one carries the completion. Closing the iterator cancels the request.

        Args:
            streaming: false for one chunk with everything.
            prompt, request_id, parameters: as for `TritonClient.generate`, and so the errors.
        """
        values = {**wire.request_values(prompt, parameters), "streaming": [streaming]}
        async for chunk in self._send(wire.to_proto(self.model_name, values, request_id), values):
            yield chunk

    async def check(self) -> None:
        """Asks the model itself, as Triton calls one ready whose process died; MachineError where none answers."""
        request = wire.to_proto(self.model_name, {}, "")
        request.parameters[PING].bool_param = True
        try:
            async for _ in self._send(request, {}, _PING_TIMEOUT_S):
                return
        except TrtSpecError as error:
            raise MachineError("the served model does not answer", where=self.model_name, got=error.what) from None

    async def _send(
        self, request: Any, values: dict[str, list[Any]], timeout_s: float | None = None
    ) -> AsyncIterator[Chunk]:
        import grpc

        reader = ChunkReader(request.id, values)
        with grpc_errors(self.grpc_url):
            call = self._stub.ModelStreamInfer(timeout=timeout_s)
            try:
                await call.write(request)
                await call.done_writing()
                while (message := await call.read()) is not grpc.aio.EOF:
                    if (chunk := chunk_of(message, reader)) is not None:
                        yield chunk
                if not reader.is_done:
                    raise ended_early()
            finally:
                call.cancel()  # does nothing to what is over
