"""Every method as a user makes it, from the command line to answers of a real tritonserver."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiny
from tests.engines import test_methods as made
from tests.waiting import WAIT_S
from trt_spec.cli.app import main
from trt_spec.clients.triton import TritonClient
from trt_spec.config import loader
from trt_spec.config.schema import RunConfig
from trt_spec.triton.server.installation import Installation, free_ports
from trt_spec.triton.server.server import TritonServer

pytestmark = pytest.mark.server

TEXT, PROMPT_IDS = "abcabcabcabc", [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


def draft_model(root: Path) -> RunConfig:
    draft = tiny.llama_checkpoint(root / "draft", num_hidden_layers=1)
    return made.run_config(root, "draft_model", tiny.llama_checkpoint(root / "target"), draft)


def ngram(root: Path) -> RunConfig:
    return made.run_config(root, "ngram", tiny.llama_checkpoint(root / "target"))


def plain(root: Path) -> RunConfig:
    return made.run_config(root, "none", tiny.llama_checkpoint(root / "target"))


MAKERS = {
    "none": plain,
    "ngram": ngram,
    "draft_model": draft_model,
    "medusa": made.medusa,
    "medusa_tree": made.medusa_tree,
    "eagle": made.eagle,
    "eagle3": made.eagle3,
    "mtp": made.mtp_deepseek,
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One repository with a model for each method, built and emitted by the command line."""
    root = tmp_path_factory.mktemp("methods")
    for name, make in MAKERS.items():
        folder = root / name
        folder.mkdir()
        config = make(folder)
        config = config.model_copy(update={"name": name, "serve": config.serve.model_copy(update={"model_name": name})})
        path = folder / "run.yaml"
        path.write_text(loader.dump(config))
        for command in ("build", "emit"):
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(root)
                with pytest.raises(SystemExit) as ended:
                    main([command, str(path), "-q"])
            assert ended.value.code == 0, (command, name)
        shutil.copytree(root / "triton_repo" / name, root / "all", dirs_exist_ok=True)
    return root / "all"


@pytest.fixture(scope="module")
def server(repository: Path, installation: Installation, tmp_path_factory) -> Iterator[TritonServer]:
    http_port, grpc_port, metrics_port = free_ports(3)
    with TritonServer(
        repository,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        log_path=tmp_path_factory.mktemp("log") / "server.log",
        ready_timeout_s=WAIT_S,
        drain_timeout_s=2,
        installation=installation,
    ) as running:
        yield running


@pytest.mark.parametrize("method", MAKERS)
def test_served_greedy_answers_are_the_same_with_speculation_on_and_off(server, method):
    with TritonClient(server.http_url, server.grpc_url, method, timeout_s=WAIT_S) as client:
        # A negative penalty makes the output repeat itself, so that lookup finds something.
        asked = {"max_tokens": 24, "ignore_eos": True, "temperature": 0.0, "frequency_penalty": -1.5}
        on = list(client.stream(PROMPT_IDS, speculation=True, **asked))
        off = list(client.stream(PROMPT_IDS, speculation=False, **asked))
        sampled = client.infer(TEXT, max_tokens=16, temperature=0.8, top_p=0.9, ignore_eos=True, seed=3)
    ids = [[token for chunk in chunks for token in chunk.token_ids] for chunks in (on, off)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == on[-1].completion.num_output_tokens == 24
    assert (on[-1].completion.total_draft_tokens > 0) == (method != "none")
    assert off[-1].completion.total_draft_tokens == 0
    assert sampled.completion.num_output_tokens == 16
