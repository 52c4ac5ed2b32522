"""The tensorrt repository: golden files, every tensor against a second copy of the contract, Triton's own parser."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2

from tests.triton.configs import args_of, compare_summary, configs_of, parameters_of, parsed
from tests.triton.engine_runs import METHODS, VERSIONS, engine_manifest, engine_run
from trt_spec.config import capabilities, versions
from trt_spec.engines.tensorrt import plan as tensorrt
from trt_spec.triton import repository
from trt_spec.triton.trtllm import inflight_batcher

GOLDEN = Path(__file__).parents[1] / "golden" / "trtllm"
DATA = Path(__file__).parents[1] / "data"
FACTS = json.loads((DATA / "inflight_batcher_names.json").read_text())
REQUIRED = json.loads((DATA / "inflight_batcher_required.json").read_text())
CASES = [(method, version) for method in METHODS for version in VERSIONS]
ENGINE, REPOSITORY = Path("/home/user/project/engines/run"), Path("/home/user/project/triton_repo/run")


@pytest.fixture(autouse=True)
def project_directory(monkeypatch):
    """Paths in the container are taken from the working directory."""
    monkeypatch.setattr(os, "getcwd", lambda: "/home/user/project")


def rendered(method, version, **build):
    config = engine_run(method, version, **build)
    return repository.render(config, ENGINE, engine_manifest(config), REPOSITORY)


def configs(method, version, **build):
    return configs_of(rendered(method, version, **build))


def facts(version):
    return FACTS["models"]["0.19" if version in ("0.19.0", "0.21.0", "1.0.0") else "1.1"]


@pytest.mark.parametrize(("method", "version"), CASES)
def test_the_repository_is_the_golden_one(method, version):
    """What differs between cases in full; of the rest, long lists of tensors, the digest (and whole files below)."""
    files = rendered(method, version)
    shown = {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in files.items() if "pbtxt" in name}
    summary = {
        "files": sorted(files),
        "digests": shown,
        "models": {
            name: {
                "runs_in": model.backend or "ensemble",
                "max_batch_size": model.max_batch_size,
                "decoupled": model.model_transaction_policy.decoupled,
                "parameters": parameters_of(model),
            }
            for name, model in configs_of(files).items()
        },
    }
    compare_summary(GOLDEN / f"repository-tensorrt-{method}-{version}.json", summary)


@pytest.mark.parametrize("version", ["1.0.0", "1.2.0"])
@pytest.mark.parametrize("model", ["ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls"])
def test_whole_files(model, version):
    text = rendered("draft_model", version)[f"{model}/config.pbtxt"]
    compare(GOLDEN / "repository-tensorrt" / f"{model}-{version}.pbtxt", text)


def compare(path, text):
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("method", ["draft_model", "eagle"])
def test_every_tensor_is_the_contracts(method, version):
    files = rendered(method, version)
    types = {"${logits_datatype}": "FP32", "${encoder_input_features_data_type}": "FP16"}
    types["${prompt_embedding_table_data_type}"] = "FP16"
    for model, known in facts(version).items():
        found = parsed(files[f"{model}/config.pbtxt"])
        for side, tensors in (("inputs", found.input), ("outputs", found.output)):
            assert [(t.name, model_config_pb2.DataType.Name(t.data_type), list(t.dims)) for t in tensors] == [
                (fact["name"], "TYPE_" + types.get(fact["data_type"], fact["data_type"]), fact["dims"])
                for fact in known[side]
            ]
        for tensor, fact in zip(found.input, known["inputs"], strict=True):
            assert (tensor.optional, tensor.allow_ragged_batch) == (fact["optional"], fact["ragged"]), tensor.name
            assert tensor.HasField("reshape") == fact["scalar"], tensor.name
            assert list(tensor.reshape.shape) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_ensemble_connects_what_the_contract_connects(version):
    found = parsed(rendered("eagle", version)["ensemble/config.pbtxt"])
    steps = [[s.model_name, dict(s.input_map), dict(s.output_map)] for s in found.ensemble_scheduling.step]
    assert steps == facts(version)["ensemble"]["maps"]
    models = configs("eagle", version)
    produced = {tensor.name for tensor in models["ensemble"].input}
    for model, inputs, outputs in steps:  # every tensor that a step takes was there before it
        declared = models[model]
        assert set(inputs) <= {tensor.name for tensor in declared.input}
        assert set(outputs) <= {tensor.name for tensor in declared.output}
        needed = {tensor.name for tensor in declared.input if not tensor.optional}
        assert needed <= set(inputs)
        assert set(inputs.values()) <= produced
        produced |= set(outputs.values())
    assert {tensor.name for tensor in models["ensemble"].output} <= produced


@pytest.mark.parametrize(("method", "version"), CASES)
def test_nothing_is_left_open_and_every_parameter_is_known(method, version):
    for name, text in rendered(method, version).items():
        assert "${" not in text
        assert "{triton" not in text
        if not name.endswith("pbtxt"):
            continue
        assert parsed(text).name == name.split("/")[0]
    for name, model in configs(method, version).items():
        if name.startswith("tensorrt_llm") and name != "tensorrt_llm_bls":
            parameters = parameters_of(model)
            assert set(parameters) <= set(FACTS["parameters"])
            empty = {key for key, value in parameters.items() if not value}
            assert empty == {"tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend"}
            for key, values in FACTS["values"].items():
                assert parameters.get(key, values[0]) in values
            assert model.backend == "tensorrtllm"
            assert parameters["enable_kv_cache_reuse"] in ("true", "false")  # unset means true, with a warning


def test_what_the_backend_requires_is_known_for_every_cell_that_emits():
    lines = {versions.line_of(versions.parse(version)) for version in REQUIRED["versions"]}
    cells = [cell for cell in capabilities.TABLE if cell.build_target == "tensorrt" and cell.is_supported]
    assert {(cell.method, cell.line) for cell in cells} == {(method, line) for method in METHODS for line in lines}
    assert {*VERSIONS, versions.DEFAULT_VERSION["tensorrt"]} <= set(REQUIRED["versions"])
    for facts in REQUIRED["versions"].values():
        assert facts["sources"]
        assert set(facts["sources"]) <= set(REQUIRED["sources"])


@pytest.mark.parametrize("version", REQUIRED["versions"])
@pytest.mark.parametrize("method", METHODS)
def test_the_backend_finds_every_parameter_that_it_cannot_load_without(method, version):
    models = [parsed(text) for name, text in rendered(method, version).items() if name.endswith(".pbtxt")]
    engines = {model.name: model.parameters for model in models if model.backend == "tensorrtllm"}
    assert set(engines) == {"tensorrt_llm"} | ({"tensorrt_llm_draft"} if method == "draft_model" else set())
    facts = REQUIRED["versions"][version]
    for name, parameters in engines.items():
        mode = parameters["decoding_mode"].string_value if "decoding_mode" in parameters else ""
        needed = [*facts["always"], *facts["with_decoding_mode"].get(mode, ())]
        assert [key for key in needed if key not in parameters] == [], name
        assert any(key in parameters and parameters[key].string_value for key in facts["one_of"]), name


@pytest.mark.parametrize("version", VERSIONS)
def test_names_follow_the_version(version):
    models = configs("draft_model", version)
    old, new = {"min_length", "random_seed"}, {"min_tokens", "seed"}
    is_old = version in ("0.19.0", "0.21.0", "1.0.0")
    for name in ("ensemble", "tensorrt_llm", "tensorrt_llm_bls", "tensorrt_llm_draft"):
        inputs = {tensor.name for tensor in models[name].input}
        assert (old <= inputs, new <= inputs) == (is_old, not is_old)


def test_how_each_method_decodes():
    def parameters(method):
        return parameters_of(configs(method, "1.2.0")["tensorrt_llm"])

    assert "decoding_mode" not in parameters("none")
    assert "decoding_mode" not in parameters("draft_model")
    assert parameters("medusa")["medusa_choices"] == "{0}, {1}, {0, 0}"
    assert parameters("eagle")["eagle_choices"] == "{0}, {0, 0}, {0, 0, 0}"  # not the tree of 63 that is the default
    assert parameters("redrafter")["decoding_mode"] == "redrafter"
    lookahead = parameters("lookahead")
    names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
    assert [lookahead[name] for name in names] == ["5", "4", "3"]


def test_two_engines_for_external_drafts():
    models = configs("draft_model", "1.2.0", kv_cache_free_gpu_memory_fraction=0.8)
    target, draft = models["tensorrt_llm"], models["tensorrt_llm_draft"]
    one, other = parameters_of(target), parameters_of(draft)
    assert one["gpt_model_path"] == "/workspace/engines/run/engine"
    assert other["gpt_model_path"] == "/workspace/engines/run/draft_engine"
    assert {parameters["kv_cache_free_gpu_mem_fraction"] for parameters in (one, other)} == {"0.4"}
    assert (target.input, target.output) == (draft.input, draft.output)
    bls = parameters_of(models["tensorrt_llm_bls"])
    assert (bls["tensorrt_llm_draft_model_name"], bls["max_draft_len"]) == ("tensorrt_llm_draft", "4")
    assert not any(
        model.model_transaction_policy.decoupled for model in models.values()
    )  # nothing streams, everything answers unary requests


def test_streams_without_external_drafts():
    models = configs("eagle", "1.2.0")
    assert models["tensorrt_llm"].model_transaction_policy.decoupled
    assert not models["tensorrt_llm_bls"].model_transaction_policy.decoupled
    assert "tensorrt_llm_draft" not in models
    assert "tensorrt_llm_draft_model_name" not in models["tensorrt_llm_bls"].parameters


def test_paths():
    assert tuple(tensorrt.ENGINE_DIRS.values()) == (inflight_batcher.TARGET_ENGINE, inflight_batcher.DRAFT_ENGINE)
    assert tensorrt.TOKENIZER_DIR == inflight_batcher.TOKENIZER
    assert inflight_batcher.served_path(Path("/data/engines/run")) == "/data/engines/run"
    models = configs("eagle", "1.2.0")
    for name in ("preprocessing", "postprocessing", "tensorrt_llm_bls"):  # ours follow the repository
        assert parameters_of(models[name])["tokenizer_dir"] == "../../engines/run/tokenizer"
    args = args_of(models["preprocessing"], "/workspace/triton_repo/run/preprocessing")
    assert repository.parameters_of(args)["tokenizer_dir"] == "/workspace/engines/run/tokenizer"


def test_queues_are_bounded():
    batching = configs("none", "1.2.0", max_queue_size=7)["tensorrt_llm"].dynamic_batching
    assert (batching.preferred_batch_size, batching.default_queue_policy.max_queue_size) == ([8], 7)
