"""The llmapi repository: golden parameters per method and version, and the same contract as the torch target."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.llmapi_runs import METHODS, VERSIONS, llmapi_run
from tests.triton.configs import args_of, compare_summary, configs_of, parameters_of, parsed
from tests.triton.conftest import manifest_of, run_config
from trt_spec.engines.llmapi.builder import limits
from trt_spec.errors import CheckpointError, ConfigError
from trt_spec.triton import repository

GOLDEN = Path(__file__).parents[1] / "golden" / "trtllm"
ENGINE, REPOSITORY = Path("/project/engines/run"), Path("/project/triton_repo/run")


def manifest(config):
    plain = config.model_dump(mode="json", exclude_none=True)
    return {"digest": "d" * 64, "engine": limits(config, 128256).as_dict(), "config": plain}


def rendered(method, version):
    config = llmapi_run(method, version)
    return repository.render(config, ENGINE, manifest(config), REPOSITORY)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("method", METHODS)
def test_the_repository_is_the_golden_one(method, version):
    files = rendered(method, version)
    summary = {
        "files": sorted(files),
        "models": {
            name: {"decoupled": model.model_transaction_policy.decoupled, "parameters": parameters_of(model)}
            for name, model in configs_of(files).items()
        },
    }
    compare_summary(GOLDEN / f"repository-llmapi-{method}-{version}.json", summary)


def test_clients_cannot_tell_it_from_the_torch_target():
    ours = run_config("checkpoints/target")
    torch_files = repository.render(ours, ENGINE, manifest_of(ours), REPOSITORY)
    files = rendered("eagle3", "1.2.0")
    assert set(files) == set(torch_files)
    for name in (name for name in files if name.endswith("pbtxt")):
        one, other = (parsed(text[name]) for text in (files, torch_files))
        for config in (one, other):
            config.ClearField("parameters")  # of the engine; everything else is the contract
        assert one == other
    assert [name for name in files if files[name] != torch_files[name] and name.endswith(".py")] == [
        "tensorrt_llm/1/model.py"
    ]


def test_the_engine_is_found_from_the_repository():
    model = parsed(rendered("mtp", "1.2.0")["tensorrt_llm/config.pbtxt"])
    assert parameters_of(model)["engine_dir"] == "../../engines/run"
    args = args_of(model, "/elsewhere/triton_repo/run/tensorrt_llm")
    assert repository.parameters_of(args)["engine_dir"] == "/elsewhere/engines/run"
    model.parameters["engine_dir"].string_value = "/absolute/engine"
    args = args_of(model, "/elsewhere/triton_repo/run/tensorrt_llm")
    assert repository.parameters_of(args)["engine_dir"] == "/absolute/engine"


def test_an_engine_for_another_version_is_refused():
    with pytest.raises(ConfigError, match="another config"):
        repository.render(llmapi_run("mtp", "1.1.0"), ENGINE, manifest(llmapi_run("mtp", "1.2.0")), REPOSITORY)
    incomplete = manifest(llmapi_run("mtp", "1.2.0"))
    del incomplete["engine"]["drafter_placement"]
    with pytest.raises(CheckpointError, match="drafter_placement"):
        repository.render(llmapi_run("mtp", "1.2.0"), ENGINE, incomplete, REPOSITORY)
