"""What `trt-spec deploy` writes: held to Kubernetes' schema, and to how TensorRT-LLM's launcher starts a server."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from trt_spec.config import loader, places, versions
from trt_spec.errors import CapabilityError, UsageError
from trt_spec.triton.trtllm import deployment
from trt_spec.triton.trtllm.launch import server_of

ROOT = Path(__file__).parent.parent.parent
REAL = [name for name in places.run_names() if loader.load(name).build.target != "torch"]
KUBERNETES_VERSIONS = ("1.28", "1.37")


def config_of(method: str, target: str, gpus: int = 1, *overrides: str):
    draft = None if method in ("none", "ngram", "mtp", "lookahead") else "draft"
    sets = [f"build.tensor_parallel_size={gpus}", *overrides]
    return loader.load_or_compose("model", method, draft, target, sets)


def documents(text: str) -> list[dict]:
    return list(YAML(typ="safe").load_all(text))


def container_of(files: dict[str, str]) -> dict:
    manifest, _ = documents(files["kubernetes.yaml"])
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_manifests_are_valid_by_kubernetes_own_schema(name, version):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in documents(deployment.render(loader.load(name))["kubernetes.yaml"]):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_check_can_fail():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    manifest, service = documents(deployment.render(loader.load(REAL[0]))["kubernetes.yaml"])
    manifest["spec"]["template"]["spec"]["containers"][0]["redinessProbe"] = {}
    service["spec"]["ports"][0]["port"] = "http"
    for document in (manifest, service):
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(document, "1.37", strict=True)


@pytest.mark.parametrize("name", REAL)
def test_a_manifest_has_what_a_served_model_needs(name):
    config = loader.load(name)
    files = deployment.render(config, image="registry.example/served:1", claim="models")
    manifest, service = documents(files["kubernetes.yaml"])
    pod, container = manifest["spec"]["template"], container_of(files)
    num_gpus = config.build.tensor_parallel_size * config.build.pipeline_parallel_size
    assert (manifest["apiVersion"], manifest["kind"]) == ("apps/v1", "Deployment")
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    assert container["image"] == "registry.example/served:1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": num_gpus}
    assert {probe: container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")} == {
        "startupProbe": "/v2/health/ready",
        "readinessProbe": "/v2/health/ready",
        "livenessProbe": "/v2/health/live",
    }
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8000, "grpc": 8001, "metrics": 8002}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == set(ports)
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == "8002"
    assert service["spec"]["selector"] == manifest["spec"]["selector"]["matchLabels"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"project": "/workspace", "shm": "/dev/shm"}
    assert {volume["name"] for volume in pod["spec"]["volumes"]} == set(mounts)
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "models"
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", manifest["metadata"]["name"])


@pytest.mark.parametrize("name", REAL)
def test_docker_compose_and_kubernetes_start_the_same_server(name):
    config = loader.load(name)
    files = deployment.render(config)
    container, [compose] = container_of(files), documents(files["compose.yaml"])
    [service] = compose["services"].values()
    run = shlex.split(files["docker.sh"].split("exec ", 1)[1].replace("\\\n", " "))
    at = run.index(service["image"])
    assert run[:3] == ["docker", "run", "--rm"]
    assert run[at + 1 :] == service["command"] == container["command"]
    assert run[run.index("--gpus") + 1] == str(container["resources"]["limits"]["nvidia.com/gpu"])
    environment = dict(word.split("=", 1) for flag, word in itertools.pairwise(run) if flag == "-e")
    assert environment == service["environment"] == {item["name"]: item["value"] for item in container["env"]}
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": int(run[run.index("--gpus") + 1]), "capabilities": ["gpu"]}
    published = [word for flag, word in itertools.pairwise(run) if flag == "-p"]
    assert published == service["ports"] == ["8000:8000", "8001:8001", "8002:8002"]
    assert set(service) >= {"healthcheck", "shm_size", "ulimits", "restart", "volumes", "build"}
    assert f"--model-repository=/workspace/triton_repo/{name}" in service["command"]
    assert files["Dockerfile"].splitlines()[2] == f"FROM {server_of(config).base_image}"


def test_every_rank_of_an_engine_has_a_server():
    command = server_of(config_of("medusa", "tensorrt", 4)).command
    assert command[:2] == ("mpirun", "--allow-run-as-root")
    ranks = " ".join(command[2:]).split(" : ")
    assert len(ranks) == 4
    for rank, words in enumerate(ranks):
        assert words.startswith("-n 1 tritonserver --model-repository=")
        assert words.endswith(f"--backend-config=python,shm-region-prefix-name=prefix{rank}_")
        assert ("--model-control-mode=explicit --load-model=tensorrt_llm" in words) == (rank > 0)
        assert "--disable-auto-complete-config" in words


def test_two_engines_are_one_server_that_starts_the_ranks():
    server = server_of(config_of("draft_model", "tensorrt", 2))
    assert server.command.count("tritonserver") == 1
    assert server.environment["TRTLLM_ORCHESTRATOR"] == "1"
    assert [word for word in server.command if "cuda-memory-pool" in word] == [
        "--cuda-memory-pool-byte-size=0:0",
        "--cuda-memory-pool-byte-size=1:0",
    ]
    assert "TRTLLM_ORCHESTRATOR" not in server_of(config_of("draft_model", "llmapi", 2)).environment


@pytest.mark.parametrize("gpus", [1, 8])
def test_the_llm_api_has_one_server_and_workers(gpus):
    command = server_of(config_of("mtp", "llmapi", gpus)).command
    assert command[2:4] == ("-n", str(gpus))
    assert command.count("tritonserver") == 1
    assert ("trtllm-llmapi-launch" in command) == (gpus > 1)


def test_ports_and_images_of_the_config():
    config = config_of("ngram", "llmapi", 1, "serve.http_port=9000", "build.container=registry.example/mine:2")
    files = deployment.render(config)
    assert "FROM registry.example/mine:2\n" in files["Dockerfile"]
    assert "--http-port=9000" in container_of(files)["command"]
    assert {port["name"]: port["containerPort"] for port in container_of(files)["ports"]}["http"] == 9000


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Llama-3.3_70B", "llama-3-3-70b"),
        ("8b", "run-8b"),
        ("x" * 70, "x" * 63),
        ("a" * 62 + ".b", "a" * 62),
        ("v1.", "v1"),
    ],
)
def test_names_that_kubernetes_takes(name, label):
    config = config_of("ngram", "llmapi").model_copy(update={"name": name})
    assert server_of(config).name == label


@pytest.mark.parametrize(
    ("method", "target", "overrides", "says"),
    [
        ("ngram", "torch", [], "only the TensorRT-LLM targets"),
        ("ngram", "llmapi", ["build.tensorrt_llm_version=1.4.0rc4"], "no image of Triton"),
        ("eagle3", "tensorrt", [], "eagle3"),
    ],
)
def test_what_cannot_be_deployed_is_refused(method, target, overrides, says):
    draft = "draft" if method == "eagle3" else None
    with pytest.raises(CapabilityError, match=says):
        deployment.render(loader.load_or_compose("model", method, draft, target, overrides))


@pytest.mark.parametrize("version", versions.GOLDEN_VERSIONS)
@pytest.mark.parametrize("target", ["tensorrt", "llmapi"])
def test_every_version_has_an_image_or_is_refused(target, version):
    parsed = versions.parse(version)
    has_target = versions.has_engine_path(parsed) if target == "tensorrt" else versions.has_llmapi(parsed)
    config = config_of("draft_model", target, 2, f"build.tensorrt_llm_version={version}")
    if has_target and version in ("0.19.0", "0.21.0", "1.0.0", "1.1.0"):
        assert re.fullmatch(r"nvcr\.io/nvidia/tritonserver:\d\d\.\d\d-trtllm-python-py3", server_of(config).base_image)
    else:
        with pytest.raises(CapabilityError) as caught:
            server_of(config)
        assert caught.value.remedy


def test_an_image_of_ones_own_serves_a_version_without_one():
    overrides = ("build.tensorrt_llm_version=1.4.0rc4", "build.container=registry.example/both:1")
    assert server_of(config_of("ngram", "llmapi", 1, *overrides)).base_image == "registry.example/both:1"


def test_the_shell_script_is_one(tmp_path):
    names = deployment.write(loader.load(REAL[0]), tmp_path / "deploy" / REAL[0])
    script = tmp_path / "deploy" / REAL[0] / "docker.sh"
    assert names == ["Dockerfile", "Dockerfile.dockerignore", "compose.yaml", "docker.sh", "kubernetes.yaml"]
    assert script.stat().st_mode & 0o111
    subprocess.run(["sh", "-n", script], check=True)
    stub = tmp_path / "bin" / "docker"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\npwd\nfor word in "$@"; do echo "$word"; done\n', encoding="utf-8")
    stub.chmod(0o755)
    told = subprocess.run(["sh", script], env={"PATH": f"{stub.parent}:/usr/bin:/bin"}, capture_output=True, text=True)
    lines = told.stdout.splitlines()
    assert lines[0] == str(tmp_path)  # the project directory, from wherever it is called
    assert f"{tmp_path}:/workspace:ro" in lines
    assert lines[-1].startswith("--backend-config=")
    assert shutil.which("docker", path=str(stub.parent))


def test_other_files_are_not_replaced(tmp_path):
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="something else"):
        deployment.write(loader.load(REAL[0]), tmp_path)
    for _ in range(2):
        deployment.write(loader.load(REAL[0]), tmp_path / "again")


def test_the_image_holds_pip_to_what_is_installed():
    """torch of the image stays: every install is held to the list of what is there, or takes no dependencies."""
    text = deployment.render(loader.load(REAL[0]))["Dockerfile"]
    installs = re.findall(r"pip install [^\\\n]*", text)
    assert len(installs) == 2
    assert all("-c /opt/trt_spec/image.txt" in line or "--no-deps" in line for line in installs)
    assert "torch" not in " ".join(installs)
    copied = set(re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)[0].split()) | {"trt_spec"}
    assert all((ROOT / name).exists() for name in copied)
    kept = deployment.render(loader.load(REAL[0]))["Dockerfile.dockerignore"].split()
    assert {f"!{name}" for name in copied} <= set(kept)
