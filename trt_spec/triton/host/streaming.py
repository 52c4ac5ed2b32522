"""What the model does that holds the engine: serves its own clients, and the engine to the other models."""

from __future__ import annotations

from typing import Any

from trt_spec.triton.host.hosting import HostedModel, Metrics, Worker
from trt_spec.triton.host.watch import end_server
from trt_spec.triton.rpc.server import EngineFacts, EngineServer, socket_path


class StreamingModel(HostedModel):
    """Base of the emitted models that hold an engine; they load it and call `host_engine`."""

    def host_engine(
        self, pb_utils: Any, worker: Worker, tokenizer: Any, metrics: Metrics, args: dict[str, str]
    ) -> None:
        """Starts serving as `host`, the other models of the server too; raises as `EngineServer`.

        Args:
            tokenizer: the target's, or None where requests come as ids only.
            args: as Triton hands them to `initialize`.
        """
        self.tokenizer = tokenizer
        self.host(pb_utils, worker, metrics)
        self.rpc = EngineServer(
            socket_path(args["model_repository"], args["model_name"]),
            worker,
            EngineFacts(worker.engine.limits, has_tokenizer=tokenizer is not None),
            self,
        )

    def finalize(self) -> None:
        """Finishes what was accepted, the other models' requests too."""
        self.rpc.drain()
        super().finalize()
        self.rpc.close()

    @property
    def is_busy(self) -> bool:
        """Whether the engine has anything to do: its metrics change."""
        return bool(self.flights) or self.worker.num_in_flight > 0

    def count(self, outcome: str) -> None:
        """A request of another model has ended."""
        self.metrics.count_request(outcome)
        self.wake()

    def lost(self) -> None:
        """The process of another model ended without a word."""
        end_server(self.pb, "the Python process of another of its models died")
