"""Runs a tritonserver for a run, with or without the OpenAI front: its ports, and what is said while it loads."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trt_spec.atomic import terminate_as_interrupt
from trt_spec.config.schema import RunConfig
from trt_spec.engines.container import container_of
from trt_spec.errors import MachineError, TrtSpecError
from trt_spec.report.console import Reporter
from trt_spec.serve.openai.requests import Upstream
from trt_spec.serve.openai.server import OpenAIServer
from trt_spec.triton import emitted
from trt_spec.triton.contract import unary_name
from trt_spec.triton.server import installation
from trt_spec.triton.server.installation import check_port, free_ports
from trt_spec.triton.server.server import PORT_KEYS, TritonServer

if TYPE_CHECKING:
    from trt_spec.checkpoints.tokenizer import Tokenizer


def check_backend(config: RunConfig, run: str = "") -> None:
    """Raises MachineError where the server of this machine lacks what loads the run's models.

    Asked before a server is started, which would say the same late, and in its own words. The error names the image
    that has it, and the commands that serve in it; `run` is how the user named the run.
    """
    if config.build.target == "torch":
        return
    if config.build.target == "tensorrt":
        missing, is_there = "Triton's TensorRT-LLM backend", _has_engine_backend()
    else:
        missing, is_there = "TensorRT-LLM", importlib.util.find_spec("tensorrt_llm") is not None
    if not is_there:
        raise MachineError(
            f"{missing} is not on this machine, and build target {config.build.target} is served by it",
            got=f"{config.name}, TensorRT-LLM {config.build.tensorrt_llm_version}",
            expected=f"the container {container_of(config).image}",
            remedy=f"serve it there: trt-spec deploy {run or config.name}, then sh deploy/{config.name}/docker.sh",
            code="machine-trtllm",
        )


def _has_engine_backend() -> bool:
    try:
        return (installation.locate().root / "backends" / "tensorrtllm").is_dir()
    except MachineError:  # no server at all, which `make setup` would not help with
        return False


@contextmanager
def running_server(repository: Path, ports: tuple[int, int, int], reporter: Reporter) -> Iterator[TritonServer]:
    """A ready server on `ports` (HTTP, gRPC, metrics), stopped at the end whatever happens; raises as its `start`."""
    http_port, grpc_port, metrics_port = ports
    server = TritonServer(repository, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port)
    with reporter.progress("starting tritonserver") as advance:  # what cannot be started stops itself
        server.start(on_wait=lambda seconds, words: advance(None, f"starting tritonserver: {words}"))
    try:
        yield server
    finally:
        with reporter.progress("stopping tritonserver"):
            server.stop()


def configured_ports(config: RunConfig) -> tuple[int, int, int]:
    """HTTP, gRPC and metrics port of a run."""
    return config.serve.http_port, config.serve.grpc_port, config.serve.metrics_port


def usable_ports(config: RunConfig, reporter: Reporter) -> tuple[int, int, int]:
    """The configured ports, or free ones where any of them is in use; says so."""
    ports = configured_ports(config)
    try:
        for port, key in zip(ports, PORT_KEYS, strict=True):
            check_port(port, key)
    except MachineError as error:
        http_port, grpc_port, metrics_port = free_ports(3)
        reporter.note(f"{error.what}: using ports {http_port} (HTTP), {grpc_port} (gRPC), {metrics_port} (metrics)")
        return http_port, grpc_port, metrics_port
    return ports


@contextmanager
def running_front(
    front: OpenAIServer | None, config: RunConfig, tokenizer: Tokenizer | None, server: TritonServer
) -> Iterator[None]:
    """The OpenAI front of a running server, where one is wanted; stopped at the end, before the server."""
    if front is None:
        yield
        return
    served = Upstream(config.serve.model_name, config.build.max_seq_len, config.build.max_batch_size, tokenizer)
    try:
        front.start(served, server.grpc_url, server.check)
        yield
    except TrtSpecError:
        front.stop(is_failed=True)
        raise
    finally:
        front.stop()


def serve_until_signal(
    config: RunConfig,
    repository: Path,
    reporter: Reporter,
    front: OpenAIServer | None = None,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Serves in the foreground until Ctrl-C or SIGTERM, then lets requests finish and stops.

    With an OpenAI front, whose port is taken already, and the target's tokenizer for it.

    Raises:
        ConfigError: another version of trt_spec emitted the repository.
        MachineError: the server cannot start, or dies.
    """
    emitted.check(repository, config.name)
    with (
        terminate_as_interrupt(),
        running_server(repository, configured_ports(config), reporter) as server,
        running_front(front, config, tokenizer, server),
    ):
        name = config.serve.model_name
        openai = f"  OpenAI   {front.url}\n" if front is not None else ""
        reporter.result(
            {
                "pid": server.pid,
                "http_url": server.http_url,
                "grpc_url": server.grpc_url,
                "metrics_url": server.metrics_url,
                **({"openai_url": front.url} if front is not None else {}),
                "models": list(server.model_names),
                "log": str(server.log_path),
            },
            f"serving {name} (streaming) and {unary_name(name)} from {repository}\n"
            f"  HTTP     http://{server.http_url}/v2/models/{name}/generate_stream\n"
            f"           http://{server.http_url}/v2/models/{unary_name(name)}/generate\n"
            f"           http://{server.http_url}/v2/models/ensemble/generate, for clients of inflight_batcher\n"
            f"  gRPC     {server.grpc_url}\n"
            f"  metrics  {server.metrics_url}\n"
            f"{openai}"
            f"  log      {server.log_path}\n"
            f"Ctrl-C finishes what runs and stops the server.",
        )
        received = server.run_until_signal(*([front.check] if front is not None else []))
        reporter.note(f"{received}: finishing what runs")
