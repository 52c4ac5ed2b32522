"""A client of the served model: whole answers and streams, over HTTP and gRPC, with the contract's parameters by name.

Answers come as `Chunk`s, as they do from the engine in process, so that callers need not know which of the two they
talk to. Thread-safe: any number of threads may share one client.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from trt_spec.clients import triton_wire as wire
from trt_spec.clients.client import Client, Params
from trt_spec.clients.http import Http, Refusal, ended_early
from trt_spec.clients.prompts import Prompt, encoder
from trt_spec.clients.triton_wire import ChunkReader
from trt_spec.errors import MachineError, RequestError, TrtSpecError
from trt_spec.runtime.request import Chunk
from trt_spec.triton.codec import merge
from trt_spec.triton.contract import unary_name
from trt_spec.triton.errortext import to_error
from trt_spec.triton.host.watch import PING

if TYPE_CHECKING:
    from trt_spec.checkpoints.tokenizer import Tokenizer

# Triton gives a model whose process died, or that stops, the statuses of one that never was (400, and none at all in a
# stream of gRPC): nothing but its words tells the two apart.
_DEAD_MODEL = re.compile(r"Stub process|not healthy|is not ready|is stopping|no available versions", re.IGNORECASE)
CHANNEL_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]  # no limits


class TritonClient(AbstractContextManager):
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
        # Triton waits for open connections when it stops, so none is kept.
        self._http = Http(f"http://{self.http_url}", timeout_s=timeout_s, keeps=False)
        self.grpc_url = _address(grpc_url) if grpc_url else None
        self.model_name = model_name
        self.timeout_s = timeout_s
        self._channel: Any = None
        self._channel_lock = threading.Lock()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the gRPC connection; the client may still be used and opens it again. Over HTTP none is kept."""
        with self._channel_lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def is_ready(self) -> bool:
        """Whether the server says that both models are ready, and the engine behind them that it can take requests."""
        try:
            for name in (self.model_name, unary_name(self.model_name)):
                self._get("ready", name)
            self._post("generate", {PING: True})
        except TrtSpecError:
            return False
        return True

    def configuration(self) -> dict[str, Any]:
        """What the server says about its model: Triton's ModelConfig as JSON. Raises as `generate`."""
        return json.loads(self._get("config"))

    # --- whole answers ---

    def generate(self, prompt: wire.TextOrIds, *, request_id: str = "", **parameters: Any) -> Chunk:
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
        outputs = wire.from_generate(self._post("generate", wire.to_generate(values, request_id)))
        return ChunkReader(request_id, values).read(outputs)

    def infer(
        self,
        prompt: wire.TextOrIds,
        *,
        transport: Literal["grpc", "http"] = "grpc",
        request_id: str = "",
        **parameters: Any,
    ) -> Chunk:
        """One whole answer by plain inference, from the unary alias. Arguments and errors as for `generate`."""
        values, name = wire.request_values(prompt, parameters), unary_name(self.model_name)
        _refuse_many(values)
        if transport == "http":
            outputs = wire.from_infer(self._post("infer", wire.to_infer(values, request_id), name))
        else:
            with grpc_errors(self.grpc_url):
                response = self._stub().ModelInfer(wire.to_proto(name, values, request_id), timeout=self.timeout_s)
            outputs = wire.from_proto(response)
        return ChunkReader(request_id, values).read(outputs)

    def samples(
        self,
        prompt: wire.TextOrIds,
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

    def stream(self, prompt: wire.TextOrIds, *, request_id: str = "", **parameters: Any) -> Iterator[Chunk]:
        """Deltas over gRPC; the last one of each sequence carries its completion. Closing the iterator cancels all.

        Arguments and errors as for `generate`; errors come from the iterator.
        """
        values = {**wire.request_values(prompt, parameters), "streaming": [True]}
        request, reader = wire.to_proto(self.model_name, values, request_id), ChunkReader(request_id, values)
        # Errors come as text. The header triton_grpc_error would make them a status, and crashes server 2.51.
        with grpc_errors(self.grpc_url):
            call = self._stub().ModelStreamInfer(iter([request]), timeout=self.timeout_s)
        try:
            while True:
                with grpc_errors(self.grpc_url):
                    message = next(call, None)
                if message is None:
                    raise ended_early()
                if (chunk := chunk_of(message, reader)) is not None:
                    yield chunk
                    if reader.is_done:
                        break
            with grpc_errors(self.grpc_url):
                next(call, None)  # the server's status; to cancel what is over makes the server log an error
        finally:
            call.cancel()

    def generate_stream(self, prompt: wire.TextOrIds, *, request_id: str = "", **parameters: Any) -> Iterator[Chunk]:
        """Deltas over HTTP as server-sent events; as `stream` otherwise. The server notices a closed iterator at its
        next delta."""
        values = {**wire.request_values(prompt, parameters), "streaming": [True]}
        reader = ChunkReader(request_id, values)
        with _refusals():
            for event in self._http.events(self._path("generate_stream"), wire.to_generate(values, request_id)):
                if "error" in event:
                    raise to_error(event["error"])
                yield reader.read(wire.from_generate(event))
                if reader.is_done:
                    return
        raise ended_early()

    def stop(self, request_id: str, *, unary: bool = False) -> None:
        """Stops the requests in flight that were sent under this id (`unary`: by `infer`); they end with `cancelled`.

        Raises:
            RequestError: no request in flight has this id.
        """
        self._post("generate", {"stop": True, "id": request_id}, unary_name(self.model_name) if unary else None)

    # --- transport ---

    def _path(self, verb: str, name: str | None = None) -> str:
        return f"/v2/models/{quote(name or self.model_name)}/{verb}"

    def _get(self, verb: str, name: str | None = None) -> str:
        with _refusals():
            return self._http.get(self._path(verb, name))

    def _post(self, verb: str, body: Mapping[str, Any], name: str | None = None) -> Mapping[str, Any]:
        with _refusals():
            answer = self._http.post(self._path(verb, name), body)
            if "error" in answer:  # generate reports some errors with status 200
                raise Refusal(400, answer["error"])
            return answer

    def _stub(self) -> Any:
        import grpc
        from tritonclient.grpc import service_pb2_grpc

        if self.grpc_url is None:
            raise RequestError("this client has no gRPC address", where="grpc_url", remedy="give it host:port for gRPC")
        with self._channel_lock:
            if self._channel is None:
                self._channel = grpc.insecure_channel(self.grpc_url, options=CHANNEL_OPTIONS)
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


@contextmanager
def _refusals() -> Iterator[None]:
    """Turns what the server refuses inside into our errors."""
    try:
        yield
    except Refusal as refusal:
        try:
            text = str(json.loads(refusal.text)["error"])
        except (ValueError, KeyError, TypeError):
            text = refusal.text
        raise _to_error(text, is_request=refusal.is_request) from None


def chunk_of(message: Any, reader: ChunkReader) -> Chunk | None:
    """What a message of a gRPC stream holds; raises what it reports, a refusal unless its text says otherwise."""
    if message.error_message:
        raise _to_error(message.error_message, is_request=True)
    return reader.read(wire.from_proto(message.infer_response)) if message.infer_response.outputs else None


def _to_error(text: str, *, is_request: bool) -> TrtSpecError:
    """The error of a text, with what its status says. A model that is gone has the status of one that never was."""
    return to_error(text, RequestError if is_request and not _DEAD_MODEL.search(text) else MachineError)


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
        if code == grpc.StatusCode.UNAVAILABLE:  # of a server that is there, the text of a refusal says its kind
            gone = {"where": url, "got": text, "remedy": "is it running?"}
            raise to_error(text, lambda *_, **__: MachineError("the server cannot be reached", **gone)) from None
        bad_request = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED)
        raise _to_error(text or code.name, is_request=code in bad_request) from None


class ServedClient(Client):
    """A served model of ours, streamed over the protocol of its URL. The server's engine may tell less than ours does.

    Args:
        url: grpc://host:port, or host:port for HTTP.
        tokenizer: for prompts that are not token ids yet; without one raw text is sent as text, and chats are refused.
    """

    def __init__(self, url: str, model_name: str = "tensorrt_llm", tokenizer: Tokenizer | None = None) -> None:
        self.name, is_grpc = url, url.startswith("grpc://")
        self.triton = TritonClient(**{"grpc_url" if is_grpc else "http_url": url}, model_name=model_name)
        self.send = self.triton.stream if is_grpc else self.triton.generate_stream
        self._encode, self._has_tokenizer = encoder(tokenizer), tokenizer is not None

    def stream(self, prompt: Prompt, params: Params, *, request_id: str = "") -> Iterator[Chunk]:
        """See `Client.stream`."""
        is_text = prompt.input_ids is None and not prompt.is_chat and not self._has_tokenizer
        asked = prompt.text if is_text else list(self._encode(prompt))
        given = {name: value for name, value in vars(params.sampling).items() if value not in (None, (), {})}
        given |= {"speculation": params.speculation, "max_draft_len": params.max_draft_len}
        return self.send(asked, request_id=request_id, **given)

    def close(self) -> None:
        self.triton.close()
