"""A tiny engine and a real tritonserver on it, once for all tests that need them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.waiting import WAIT_S
from trt_spec.clients.triton import TritonClient
from trt_spec.config.schema import RunConfig
from trt_spec.errors import MachineError
from trt_spec.triton import repository
from trt_spec.triton.server.installation import Installation, find_installation, free_ports
from trt_spec.triton.server.server import TritonServer

MODEL_NAME = "tensorrt_llm"
MAX_BATCH_SIZE, MAX_QUEUE_SIZE, MAX_DRAFT_LEN, MAX_SEQ_LEN = 8, 4, 4, 4000
LONG = {"max_tokens": 3900, "ignore_eos": True, "speculation": False}  # seconds, unless somebody stops it


def run_config(checkpoint: Path | str, name: str = "tiny", **sections: Any) -> RunConfig:
    """A run with n-gram drafts in float32."""
    return RunConfig.model_validate(
        {
            "name": name,
            "target": {"checkpoint": str(checkpoint), "dtype": "float32"},
            "speculation": {"method": "ngram", "max_draft_len": MAX_DRAFT_LEN},
            "build": {
                "max_batch_size": MAX_BATCH_SIZE,
                "max_queue_size": MAX_QUEUE_SIZE,
                "max_seq_len": MAX_SEQ_LEN,
                "device": "cpu",
            },
            **sections,
        }
    )


def manifest_of(config: RunConfig) -> dict[str, Any]:
    """What the repository reads of a manifest."""
    return {
        "digest": "d" * 64,
        "engine": {
            "method": config.speculation.method,
            "acceptance": config.speculation.acceptance,
            "dtype": config.target.dtype,
            "max_draft_len": config.speculation.max_draft_len,
            "max_batch_size": config.build.max_batch_size,
            "max_seq_len": config.build.max_seq_len,
            "vocab_size": 320,
        },
        "config": config.model_dump(mode="json", exclude_none=True),
    }


@dataclass(frozen=True)
class Built:
    """A run, its engine and its model repository."""

    config: RunConfig
    engine_dir: Path
    repository: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A tiny engine, built and emitted as a user would."""
    from trt_spec.engines.builder import build

    root = tmp_path_factory.mktemp("served")
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8}
    checkpoint = tiny.llama_checkpoint(
        root / "checkpoint", max_position_embeddings=4096, head_dim=16, num_key_value_heads=4, **sizes
    )
    config = run_config(checkpoint)
    result = build(config, engines_dir=root / "engines")
    return Built(config, result.engine_dir, repository.emit(config, result.engine_dir, root / "triton_repo"))


@pytest.fixture(scope="session")
def installation() -> Installation:
    """The Triton server of this environment; the tests that need one are skipped without."""
    pytest.importorskip("pytriton", reason="nvidia-pytriton is not installed")
    try:
        return find_installation()
    except MachineError as error:
        pytest.skip(f"no usable Triton server: {error.what}")


@pytest.fixture(scope="session")
def server(
    built: Built, installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """One tritonserver on the tiny engine."""
    http_port, grpc_port, metrics_port = free_ports(3)
    with TritonServer(
        built.repository,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        log_path=tmp_path_factory.mktemp("log") / "server.log",
        ready_timeout_s=WAIT_S,
        drain_timeout_s=2,
        installation=installation,
    ) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: TritonServer) -> Iterator[TritonClient]:
    """A client of that server."""
    with TritonClient(server.http_url, server.grpc_url, MODEL_NAME, timeout_s=WAIT_S) as connected:
        yield connected
