"""Files that deploy a run of a TensorRT-LLM target: an image, a `docker run`, a compose file, a Kubernetes manifest.

All from the run config, pure, and without an engine. Nothing of it was executed: there is no GPU, no NGC image and no
cluster here. What is written is parsed and checked against Kubernetes' own schema by the tests.
"""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path

from trt_spec.atomic import atomic_directory
from trt_spec.config.image import REQUIREMENTS, WORKSPACE
from trt_spec.config.schema import RunConfig
from trt_spec.errors import MachineError, UsageError
from trt_spec.triton.trtllm.launch import DRAIN_S, Server, server_of

LOAD_S = 3600  # weights of hundreds of GB from a network disk, and the warm-up, before a start counts as failed


def write(config: RunConfig, out_dir: Path, *, image: str | None = None, claim: str = "trt-spec") -> list[str]:
    """Writes the files of `render` to `out_dir`, whole or not at all, and returns their names.

    Raises:
        CapabilityError: as `server_of`.
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
    try:
        with atomic_directory(out_dir) as staging:
            for name, text in files.items():
                (staging / name).write_text(text, encoding="utf-8")
            (staging / "docker.sh").chmod(0o755)
    except OSError as error:
        raise MachineError(
            "the deployment cannot be written", where=str(out_dir), got=error.strerror or str(error)
        ) from error
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
    server = server_of(config, image)
    head = (
        f"Serves the run {config.name} with TensorRT-LLM {config.build.tensorrt_llm_version}. Written by trt-spec "
        "deploy; change the run config, not this file.\nIt was never executed: see docs/tensorrt_llm.md."
    )
    return {
        "Dockerfile": dockerfile(server, head),
        "Dockerfile.dockerignore": "*\n!pyproject.toml\n!README.md\n!LICENSE\n!trt_spec\n**/__pycache__\n",
        "docker.sh": docker_script(config, server, head),
        "compose.yaml": _template("compose.yaml", head, server, run=config.name),
        "kubernetes.yaml": _template("kubernetes.yaml", head, server, claim=claim),
    }


def dockerfile(server: Server, head: str) -> str:
    """trt_spec on top of the image; pip is held to every version that the image has, so its torch stays."""
    needs = " ".join(f"'{requirement}'" for requirement in REQUIREMENTS)
    return (
        f"{_comment(head)}FROM {server.base_image}\n"
        "COPY pyproject.toml README.md LICENSE /opt/trt_spec/\n"
        "COPY trt_spec /opt/trt_spec/trt_spec\n"
        "# Held to what is installed: a requirement that would replace it fails here and not at run time.\n"
        "RUN python3 -m pip list --format=freeze > /opt/trt_spec/image.txt \\\n"
        f" && python3 -m pip install --no-cache-dir -c /opt/trt_spec/image.txt {needs} \\\n"
        " && python3 -m pip install --no-cache-dir --no-deps /opt/trt_spec\n"
        f"WORKDIR {WORKSPACE}\n"
    )


def docker_script(config: RunConfig, server: Server, head: str) -> str:
    """Builds the image and runs it, from anywhere."""
    lines = [
        f"exec docker run --rm --gpus {server.num_gpus} --shm-size={server.shm_gib}g",
        "--ulimit memlock=-1 --ulimit stack=67108864",
        " ".join(f"-p {port}:{port}" for port in server.ports.values()),
        " ".join(f"-e {name}={value}" for name, value in server.environment.items()),
        f'-v "$PWD":{WORKSPACE}:ro',
        server.image,
        shlex.join(server.command),
    ]
    run = " \\\n    ".join(line for line in lines if line)
    return (
        f"#!/bin/sh\n{_comment(head)}set -eu\n"
        'cd "$(dirname "$0")/../.."  # the project directory, with engines/ and triton_repo/\n'
        f"docker build -t {server.image} -f deploy/{config.name}/Dockerfile .\n{run}\n"
    )


def _comment(head: str) -> str:
    return "".join(f"# {line}\n" for line in head.splitlines())


def _template(name: str, head: str, server: Server, **values: str) -> str:
    """A file from its template `data/<name>.jinja`."""
    import jinja2

    text = (resources.files("trt_spec.triton") / "data" / f"{name}.jinja").read_text(encoding="utf-8")
    template = jinja2.Template(text, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    known = {"workspace": WORKSPACE, "drain_s": DRAIN_S, "load_s": LOAD_S}
    return template.render(comment=_comment(head), server=server, **known, **values)
