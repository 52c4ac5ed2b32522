"""Files that deploy a run of a TensorRT-LLM target: an image, a `docker run`, a compose file, a Kubernetes manifest.

All from the run config, pure, and without an engine. Nothing of it was executed: there is no GPU, no NGC image and no
cluster here. What is written is parsed and checked against Kubernetes' own schema by the tests.
"""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path

from trt_spec.config.image import REQUIREMENTS, WORKSPACE
from trt_spec.config.schema import RunConfig
from trt_spec.errors import UsageError
from trt_spec.triton import emitted
from trt_spec.triton.trtllm.launch import DRAIN_S, server_of

FILES = ("Dockerfile", "Dockerfile.dockerignore", "docker.sh", "compose.yaml", "kubernetes.yaml")
LOAD_S = 3600  # weights of hundreds of GB from a network disk, and the warm-up, before a start counts as failed


def write(config: RunConfig, out_dir: Path, *, image: str | None = None, claim: str = "trt-spec") -> list[str]:
    """Writes the files of `render` to `out_dir`, whole or not at all, and returns their names; raises as `render`.

    Raises:
        UsageError: `out_dir` holds something else.
        MachineError: it cannot be written.
    """
    files = render(config, image=image, claim=claim)
    out_dir = Path(out_dir)
    strangers = sorted(entry.name for entry in out_dir.iterdir()) if out_dir.is_dir() else []
    if strangers := [name for name in strangers if name not in files]:
        raise UsageError(
            "the directory holds something else", where=str(out_dir), got=", ".join(strangers), remedy="name another"
        )
    emitted.write(out_dir, files, "the deployment")
    return sorted(files)


def render(config: RunConfig, *, image: str | None = None, claim: str = "trt-spec") -> dict[str, str]:
    """File name to content. Pure.

    Args:
        config: of build target tensorrt or llmapi.
        image: what the image is called, with its registry where the cluster has to pull it.
        claim: Kubernetes: the volume claim that holds the project directory with engines/ and triton_repo/.

    Raises:
        CapabilityError: as `server_of`.
    """
    import jinja2

    server = server_of(config, image)
    head = (
        f"Serves the run {config.name} with TensorRT-LLM {config.build.tensorrt_llm_version}. Written by trt-spec "
        "deploy; change the run config, not this file.\nIt was never executed: see docs/tensorrt_llm.md."
    )
    values = {
        "comment": "".join(f"# {line}\n" for line in head.splitlines()),
        "server": server,
        "command": shlex.join(server.command),
        "requirements": REQUIREMENTS,
        "workspace": WORKSPACE,
        "drain_s": DRAIN_S,
        "load_s": LOAD_S,
        "run": config.name,
        "claim": claim,
    }
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    data = resources.files("trt_spec.triton") / "data"
    texts = {name: (data / f"{name}.jinja").read_text(encoding="utf-8") for name in FILES}
    return {name: environment.from_string(text).render(values) for name, text in texts.items()}
