"""The section `serve` of the run config."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trt_spec.config.section import Section

Port = Annotated[int, Field(ge=1, le=65535)]


class ServeConfig(Section):
    """The served model and the ports of the Triton server."""

    model_name: str = Field(
        "tensorrt_llm",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$",
        max_length=128,
        description="Name of the served model.",
    )
    http_port: Port = Field(8000, description="Port for HTTP.")
    grpc_port: Port = Field(8001, description="Port for gRPC.")
    metrics_port: Port = Field(8002, description="Port for Prometheus metrics.")
    decoupled_mode: bool | None = Field(
        None,
        description="Whether ensemble and tensorrt_llm_bls, for clients of inflight_batcher, both stream (true) or "
        "both answer plain inference (false); without it ensemble streams and tensorrt_llm_bls answers.",
    )
