"""How the server of a TensorRT-LLM target is started in its container: image, command, environment, GPUs.

The commands are those of TensorRT-LLM's own launcher, triton_backend/scripts/launch_triton_server.py. That it starts a
server on llmapi with several GPUs through trtllm-llmapi-launch is read off the launcher's option of that name. Nothing
of this was executed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trt_spec.config import capabilities, versions
from trt_spec.config.image import WORKSPACE
from trt_spec.config.schema import RunConfig
from trt_spec.errors import CapabilityError

MODEL = "tensorrt_llm"  # served by every rank; the other models of a repository by rank 0 alone
DRAIN_S = 60  # tritonserver finishes requests in flight for so long
SHM_BYTES_PER_GPU = 4 << 30  # NCCL and Triton's Python stubs


@dataclass(frozen=True)
class Server:
    """What has to be started, whatever starts it.

    Attributes:
        name: of the run, as a DNS label.
        base_image: NGC image with Triton and the pinned TensorRT-LLM.
        image: what the Dockerfile is built as.
        command, environment: the container's.
        num_gpus: that the engine is divided over, all in one machine.
        ports: by name.
    """

    name: str
    base_image: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    num_gpus: int
    ports: Mapping[str, int]

    @property
    def shm_gib(self) -> int:
        return max(1, self.num_gpus * SHM_BYTES_PER_GPU >> 30)


def server_of(config: RunConfig, image: str | None = None) -> Server:
    """The server of a run, in an image of that name; by default trt-spec-<run>:<version>.

    Raises:
        CapabilityError: the build target is torch, the combination is not offered, or no image of Triton has the
            version.
    """
    if config.build.target == "torch":
        raise CapabilityError(
            "only the TensorRT-LLM targets are deployed from NVIDIA's images",
            where="build.target",
            got="torch",
            expected="tensorrt or llmapi",
            remedy="serve the torch target with `trt-spec serve`",
        )
    capabilities.check(config)
    build, version = config.build, str(config.build.tensorrt_llm_version)
    found = versions.container_of(versions.parse(version))
    if build.container is None and not found.has_tritonserver:
        raise CapabilityError(
            f"no image of Triton on NGC has TensorRT-LLM {version}",
            where="build.tensorrt_llm_version",
            got=f"{found.image}, which has no tritonserver",
            remedy=f"set build.container to an image with Triton and TensorRT-LLM {version}, or "
            f"build.tensorrt_llm_version to {versions.DEFAULT_VERSION[build.target]}",
        )
    num_gpus = (build.tensor_parallel_size or 1) * (build.pipeline_parallel_size or 1)
    ports = {"http": config.serve.http_port, "grpc": config.serve.grpc_port, "metrics": config.serve.metrics_port}
    name = _dns_label(config.name)
    return Server(
        name=name,
        base_image=build.container or found.image,
        image=image or f"trt-spec-{name}:{version}",
        command=_command(config, ports, num_gpus),
        environment=_environment(config),
        num_gpus=num_gpus,
        ports=ports,
    )


def _command(config: RunConfig, ports: Mapping[str, int], num_gpus: int) -> tuple[str, ...]:
    """One tritonserver per rank under mpirun; with two engines one server, which starts the ranks itself."""
    server = ["tritonserver", f"--model-repository={WORKSPACE}/triton_repo/{config.name}"]
    server += [f"--{name}-port={port}" for name, port in ports.items()]
    server += ["--disable-auto-complete-config", f"--exit-timeout-secs={DRAIN_S}"]
    command = ["mpirun", "--allow-run-as-root"]
    if config.build.target == "llmapi":
        launch = ["trtllm-llmapi-launch"] if num_gpus > 1 else []  # rank 0 serves, the others work for its LLM
        return (*command, "-n", str(num_gpus), *launch, *server, _shared_memory(0))
    if config.speculation.method == "draft_model":
        pools = [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(num_gpus)]
        alone = ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools]
        return (*command, "-n", "1", *server, *alone, _shared_memory(0))
    for rank in range(num_gpus):
        only = ["--model-control-mode=explicit", f"--load-model={MODEL}"] if rank else []
        command += [*([":"] if rank else []), "-n", "1", *server, *only, _shared_memory(rank)]
    return tuple(command)


def _shared_memory(rank: int) -> str:
    """Python models of different servers on one machine need names of their own for what they share."""
    return f"--backend-config=python,shm-region-prefix-name=prefix{rank}_"


def _environment(config: RunConfig) -> dict[str, str]:
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if config.build.target == "tensorrt" and config.speculation.method == "draft_model":
        environment |= {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    return environment


def _dns_label(name: str) -> str:
    """A run's name as Kubernetes takes one: small letters, digits and dashes, a letter first, 63 at most."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    label = label if label[:1].isalpha() else f"run-{label}"
    return label[:63].rstrip("-")
