"""What the models do that have no engine of their own: everything that one with an engine does, over its socket."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import RequestError
from trt_spec.triton import repository
from trt_spec.triton.host.hosting import HostedModel
from trt_spec.triton.rpc.client import RemoteWorker
from trt_spec.triton.rpc.server import socket_path


class ForwardingModel(HostedModel):
    """Base of the emitted models without an engine."""

    worker: RemoteWorker

    def forward(self, pb_utils: Any, args: dict[str, str]) -> None:
        """Starts serving with what Triton hands to `initialize`. The engine's model may be loaded later."""
        parameters = repository.parameters_of(args)
        self.model_name, self.tokenizer_dir = parameters["streaming_model"], parameters["tokenizer_dir"]
        address = socket_path(args["model_repository"], self.model_name)
        worker = RemoteWorker(address, self.model_name, self.wake)
        self.host(pb_utils, worker, worker)

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.tokenizer_dir)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The target's, loaded for the first request that needs it; None where the engine has none either."""
        return self._tokenizer if self.worker.engine.has_tokenizer else None

    def stop(self, client_id: str) -> None:
        """Stops what was sent under a client's id, here or failing that to the streaming model."""
        with suppress(RequestError):
            return super().stop(client_id)
        return self.worker.stop(client_id)
