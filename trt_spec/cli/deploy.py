"""`trt-spec deploy`: the files that serve a run in NVIDIA's containers."""

from __future__ import annotations

from pathlib import Path

import click

from trt_spec.cli.options import run_options
from trt_spec.report.console import Reporter
from trt_spec.run import Run

DEPLOY_DIR = Path("deploy")


@click.command()
@click.option("--image", metavar="NAME", help="What the image is called, with the registry that a cluster pulls from.")
@click.option(
    "--claim",
    metavar="NAME",
    default="trt-spec",
    show_default=True,
    help="Kubernetes: the volume claim with this directory's engines/ and triton_repo/.",
)
@run_options
def deploy(reporter: Reporter, run: Run, image: str | None, claim: str) -> None:
    """Write deploy/<run>/ for NVIDIA's containers.

    For the build targets tensorrt and llmapi: a Dockerfile, a docker run line, a compose file and a Kubernetes
    manifest. Needs neither an engine nor a GPU."""
    from trt_spec.report import tables
    from trt_spec.triton.trtllm import deployment

    out_dir = DEPLOY_DIR / run.config.name
    files = deployment.write(run.config, out_dir, image=image, claim=claim)
    server = deployment.server_of(run.config, image)
    pairs = [("files", ", ".join(files)), ("base image", server.base_image), ("image", server.image)]
    shown = tables.facts([*pairs, ("GPUs", server.num_gpus), ("serve it", f"sh {out_dir}/docker.sh")])
    data = {"deploy_dir": str(out_dir), "files": files, "base_image": server.base_image, "image": server.image}
    reporter.result({**data, "num_gpus": server.num_gpus}, tables.titled(f"Deployment {out_dir}", shown))
