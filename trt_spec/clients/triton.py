"""A client of the served model: whole answers and streams, over HTTP and gRPC, with the contract's parameters by name.

Answers come as `Chunk`s, as they do from the engine in process, so that callers need not know which of the two they
talk to. Thread-safe: any number of threads may share one client.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Literal
from urllib.parse import quote

from trt_spec.clients import triton_wire as wire
from trt_spec.clients.triton_wire import ChunkReader, Prompt
from trt_spec.errors import MachineError, RequestError, TrtSpecError
from trt_spec.runtime.request import Chunk
from trt_spec.triton.codec import merge
from trt_spec.triton.contract import unary_name
from trt_spec.triton.errortext import to_error
from trt_spec.triton.host.watch import PING

_REQUEST_STATUSES = (400, 404, 405, 413, 501)
# The server's own refusals of malformed tensors come as 500.
_BAD_INPUT = re.compile(r"Unable to parse|unexpected (inference )?input|failed to parse", re.IGNORECASE)
# What Triton says of a model whose process died, and while it stops.
_DEAD_MODEL = re.compile(r"Stub process|not healthy|is not ready|is stopping|no available versions", re.IGNORECASE)
# What gRPC says when nobody is there; a server that is there and full has the same status.
_NO_CONNECTION = re.compile(r"connect|socket|recvmsg|transport|goaway|refused|reset|tcp handshaker", re.IGNORECASE)


class TritonClient:
    """Talks to one served model and to its unary alias.

    Args:
        http_url: host:port, with or without http:// before it.
        grpc_url: host:port; only `stream` and `infer` over gRPC need it.
        model_name: the streaming model.
        timeout_s: how long an answer may take; over HTTP, how long the next piece of it may.
    """

    def __init__(
        self,
        http_url: str = "127.0.0.1:8000",
        grpc_url: str | None = None,
        model_name: str = "tensorrt_llm",
        timeout_s: float = 600.0,
    ) -> None:
        self.http_url = _address(http_url)
        self.grpc_url = _address(grpc_url) if grpc_url else None
        self.model_name = model_name
        self.timeout_s = timeout_s
        self._channel: Any = None
        self._channel_lock = threading.Lock()

    def __enter__(self) -> TritonClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the gRPC connection; the client may still be used and opens it again."""
        with self._channel_lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def is_ready(self) -> bool:
        """Whether the server says that both models are ready, and the engine behind them that it can take requests."""
        names = (self.model_name, unary_name(self.model_name))
        try:
            if not all(self._get(f"/v2/models/{quote(name)}/ready") == 200 for name in names):
                return False
            self._post(f"/v2/models/{quote(self.model_name)}/generate", {PING: True})
        except TrtSpecError:
            return False
        return True

    # --- whole answers ---

    def generate(self, prompt: Prompt, *, request_id: str = "", **parameters: Any) -> Chunk:
        """One whole answer, over HTTP generate.

        Args:
            prompt: text, or token ids.
            request_id: under which `stop` finds it.
            parameters: sampling parameters, `speculation`, `max_draft_len` and the `return_*` flags, by their names in
                the contract without `sampling_param_`; `logit_bias` as a mapping.

        Raises:
            RequestError: the request is not one that this server can serve.
            OverloadedError: the server has too much to do.
            MachineError: no server there, or it failed.
        """
        values = wire.request_values(prompt, parameters)
        _refuse_many(values)
        body = self._post(f"/v2/models/{quote(self.model_name)}/generate", wire.to_generate(values, request_id))
        return ChunkReader(request_id, values).read(wire.from_generate(body))

    def infer(
        self, prompt: Prompt, *, transport: Literal["grpc", "http"] = "grpc", request_id: str = "", **parameters: Any
    ) -> Chunk:
        """One whole answer by plain inference, from the unary alias. Arguments and errors as for `generate`."""
        values, name = wire.request_values(prompt, parameters), unary_name(self.model_name)
        _refuse_many(values)
        if transport == "http":
            outputs = wire.from_infer(self._post(f"/v2/models/{quote(name)}/infer", wire.to_infer(values, request_id)))
        else:
            with grpc_errors(self.grpc_url):
                response = self._stub().ModelInfer(wire.to_proto(name, values, request_id), timeout=self.timeout_s)
            outputs = wire.from_proto(response)
        return ChunkReader(request_id, values).read(outputs)

    def samples(
        self,
        prompt: Prompt,
        n: int,
        *,
        transport: Literal["grpc", "http"] = "grpc",
        request_id: str = "",
        **parameters: Any,
    ) -> list[Chunk]:
        """n whole answers to one prompt, in the order of their sequences, each drawn by itself.

        Arguments and errors as for `generate`. Each answer has its own completion, hence it is read as a stream.
        """
        ask = self.stream if transport == "grpc" else self.generate_stream
        answers: dict[int, list[Chunk]] = {}
        for chunk in ask(prompt, request_id=request_id, n=n, **parameters):
            answers.setdefault(chunk.sequence_index, []).append(chunk)
        return [merge(answers[index]) for index in sorted(answers)]

    # --- streams ---

    def stream(self, prompt: Prompt, *, request_id: str = "", **parameters: Any) -> Iterator[Chunk]:
        """Deltas over gRPC; the last one of each sequence carries its completion. Closing the iterator cancels all.

        Arguments and errors as for `generate`; errors come from the iterator.
        """
        values = {**wire.request_values(prompt, parameters), "streaming": [True]}
        request = wire.to_proto(self.model_name, values, request_id)
        return self._stream(request, ChunkReader(request_id, values))

    def _stream(self, request: Any, reader: ChunkReader) -> Iterator[Chunk]:
        # Errors come as text. The header triton_grpc_error would make them a status, and crashes server 2.51.
        with grpc_errors(self.grpc_url):
            call = self._stub().ModelStreamInfer(iter([request]), timeout=self.timeout_s)
        try:
            while True:
                with grpc_errors(self.grpc_url):
                    message = next(call, None)
                if message is None:
                    raise ended_early()
                if message.error_message:
                    raise stream_error(message.error_message)
                if message.infer_response.outputs:
                    chunk = reader.read(wire.from_proto(message.infer_response))
                    yield chunk
                    if reader.is_done:
                        break
            with grpc_errors(self.grpc_url):
                next(call, None)  # the server's status; to cancel what is over makes the server log an error
        finally:
            call.cancel()

    def generate_stream(self, prompt: Prompt, *, request_id: str = "", **parameters: Any) -> Iterator[Chunk]:
        """Deltas over HTTP as server-sent events; as `stream` otherwise. The server notices a closed iterator at its
        next delta."""
        values = {**wire.request_values(prompt, parameters), "streaming": [True]}
        return self._events(wire.to_generate(values, request_id), ChunkReader(request_id, values))

    def _events(self, body: Mapping[str, Any], reader: ChunkReader) -> Iterator[Chunk]:
        path = f"/v2/models/{quote(self.model_name)}/generate_stream"
        with closing(self._connection()) as connection, _http_errors(self.http_url):
            response = _send(connection, "POST", path, body)
            if response.status != 200:
                raise _status_error(response.status, _error_text(response.read()))
            while line := response.readline():
                if not line.startswith(b"data:"):
                    continue
                event = json.loads(line[len(b"data:") :])
                if "error" in event:
                    raise to_error(event["error"])
                chunk = reader.read(wire.from_generate(event))
                yield chunk
                if reader.is_done:
                    return
        raise ended_early()

    def stop(self, request_id: str, *, unary: bool = False) -> None:
        """Stops the requests in flight that were sent under this id; their answers end with `cancelled`.

        Args:
            request_id: the id.
            unary: it was sent by `infer`.

        Raises:
            RequestError: no request in flight has this id.
        """
        name = unary_name(self.model_name) if unary else self.model_name
        self._post(f"/v2/models/{quote(name)}/generate", {"stop": True, "id": request_id})

    # --- transport ---

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.http_url, timeout=self.timeout_s)

    def _get(self, path: str) -> int:
        with closing(self._connection()) as connection, _http_errors(self.http_url):
            return _send(connection, "GET", path).status

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        with closing(self._connection()) as connection, _http_errors(self.http_url):
            response = _send(connection, "POST", path, body)
            data = response.read()
            if response.status != 200:
                raise _status_error(response.status, _error_text(data))
            answer = json.loads(data)
        if "error" in answer:  # generate reports some errors with status 200
            raise _status_error(400, answer["error"])
        return answer

    def _stub(self) -> Any:
        import grpc
        from tritonclient.grpc import service_pb2_grpc

        if self.grpc_url is None:
            raise RequestError("this client has no gRPC address", where="grpc_url", remedy="give it host:port for gRPC")
        with self._channel_lock:
            if self._channel is None:
                limits = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
                self._channel = grpc.insecure_channel(self.grpc_url, options=limits)
            return service_pb2_grpc.GRPCInferenceServiceStub(self._channel)


def _refuse_many(values: Mapping[str, Any]) -> None:
    n = values.get("sampling_param_n", [1])[0]
    if n != 1:
        raise RequestError("one answer is returned here", where="n", got=n, remedy="ask with samples() or a stream")


def _address(url: str) -> str:
    """host:port of a URL. A port out of range is refused: gRPC would wrap it round and ask somebody else."""
    address = re.sub(r"^(grpc|http)://", "", url).rstrip("/")
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):(\d+)", address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise RequestError(
            "this is no server's address",
            where="url",
            got=url,
            expected="host:port, http://host:port or grpc://host:port",
        )
    return address


def _send(
    connection: http.client.HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None = None
) -> http.client.HTTPResponse:
    payload = None if body is None else json.dumps(body, allow_nan=True)
    connection.request(method, path, payload, {"Content-Type": "application/json"} if payload else {})
    return connection.getresponse()


def _error_text(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        text = data.decode(errors="replace").strip()
        for line in text.splitlines():  # an event stream that starts with an error
            if line.startswith("data:"):
                return _error_text(line[len("data:") :].encode())
        return text


def _status_error(status: int, text: str) -> TrtSpecError:
    is_request = status in _REQUEST_STATUSES or _BAD_INPUT.search(text) is not None
    return _to_error(text, is_request=is_request)


def stream_error(text: str) -> TrtSpecError:
    """The error of a gRPC stream's message, which has no status: a refusal unless the text says otherwise."""
    return _to_error(text, is_request=True)


def _to_error(text: str, *, is_request: bool) -> TrtSpecError:
    """The error of a text, with what its status says. A model that is gone has the status of one that never was."""
    return to_error(text, RequestError if is_request and not _DEAD_MODEL.search(text) else MachineError)


def ended_early() -> MachineError:
    """A stream without its last response."""
    return MachineError("the stream ended before the answer did", remedy="see the server's log")


@contextmanager
def _http_errors(url: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise MachineError("the server did not answer in time", where=url) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise MachineError(
            "the server cannot be reached", where=url, got=str(error) or type(error).__name__, remedy="is it running?"
        ) from None


@contextmanager
def grpc_errors(url: str | None) -> Iterator[None]:
    """Turns what gRPC raises inside into our errors: no connection, no answer in time, or what the server said."""
    import grpc

    try:
        yield
    except grpc.RpcError as error:
        code, text = error.code(), error.details() or ""
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise MachineError("the server did not answer in time", where=url) from None
        if code == grpc.StatusCode.UNAVAILABLE and _NO_CONNECTION.search(text):
            raise MachineError("the server cannot be reached", where=url, got=text, remedy="is it running?") from None
        bad_request = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED)
        raise _to_error(text or code.name, is_request=code in bad_request) from None
