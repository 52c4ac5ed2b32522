"""The model repository: pure rendering, whole or nothing on disk, and the checks when it is loaded."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tritonclient.grpc import model_config_pb2

from tests.triton.configs import args_of, parameters_of, parsed
from tests.triton.conftest import manifest_of, run_config
from trt_spec.errors import CheckpointError, ConfigError, MachineError
from trt_spec.serve.run import serve_until_signal
from trt_spec.triton import emitted, repository
from trt_spec.triton.contract import INPUTS, OUTPUTS

NAMES = ("tensorrt_llm", "tensorrt_llm_unary")
COMPAT = ("ensemble", "tensorrt_llm_bls")
DATA = Path(__file__).parents[1] / "data"
MODELS_DIR = Path(emitted.__file__).parent / "models"


@pytest.fixture
def config():
    return run_config("checkpoints/tiny")


@pytest.fixture
def engine_dir(tmp_path, config):
    """As much of an engine as `emit` looks at."""
    directory = tmp_path / "engines" / "tiny"
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(json.dumps(manifest_of(config)))
    return directory


def rendered(config):
    return repository.render(config, Path("/somewhere/engines/tiny"), manifest_of(config))


def test_the_files_are_four_models(config):
    names = (*NAMES, *COMPAT)
    assert set(rendered(config)) == {f"{name}/{file}" for name in names for file in ("config.pbtxt", "1/model.py")}


@pytest.mark.parametrize("name", COMPAT)
def test_inflight_batchers_models_have_its_batch_axis_and_tensors(config, name):
    found = parsed(rendered(config)[f"{name}/config.pbtxt"])
    assert (found.name, found.backend, found.max_batch_size) == (name, "python", 1)
    assert found.model_transaction_policy.decoupled == (name == "ensemble")
    assert found.parameters["streaming_model"].string_value == "tensorrt_llm"
    assert found.parameters["tokenizer_dir"].string_value == "/somewhere/engines/tiny/target"
    data_type = model_config_pb2.DataType.Name
    names = json.loads((Path(__file__).parents[1] / "data" / "inflight_batcher_names.json").read_text())
    for version in names["models"].values():
        for model in COMPAT:
            for side, ours in (("inputs", found.input), ("outputs", found.output)):
                declared = {(t.name, data_type(t.data_type), tuple(t.dims)) for t in ours}
                theirs = {(t["name"], f"TYPE_{t['data_type']}", tuple(t["dims"])) for t in version[model][side]}
                assert {(n, k.replace("${logits_datatype}", "FP32"), d) for n, k, d in theirs} <= declared
    assert [tensor.name for tensor in found.input if not tensor.optional] == ["text_input"]


@pytest.mark.parametrize(("mode", "streaming"), [(None, {"ensemble"}), (True, set(COMPAT)), (False, set())])
def test_the_config_says_which_models_of_inflight_batcher_stream(config, mode, streaming):
    other = config.model_copy(update={"serve": config.serve.model_copy(update={"decoupled_mode": mode})})
    files = repository.render(other, Path("/e"), manifest_of(config))
    assert {
        name for name in COMPAT if parsed(files[f"{name}/config.pbtxt"]).model_transaction_policy.decoupled
    } == streaming


@pytest.mark.parametrize("name", COMPAT)
def test_the_served_model_cannot_have_a_name_of_inflight_batcher(config, name):
    other = config.model_copy(update={"serve": config.serve.model_copy(update={"model_name": name})})
    with pytest.raises(ConfigError, match="inflight_batcher") as caught:
        repository.render(other, Path("/e"), manifest_of(config))
    assert caught.value.where == "serve.model_name"


def test_rendering_is_pure(config):
    assert rendered(config) == rendered(config)


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_is_what_triton_reads(config, name):
    found = parsed(rendered(config)[f"{name}/config.pbtxt"])
    assert (found.name, found.backend, found.max_batch_size) == (name, "python", 0)
    assert found.model_transaction_policy.decoupled == (name == "tensorrt_llm")
    data_type = model_config_pb2.DataType.Name
    assert [(t.name, data_type(t.data_type), tuple(t.dims), t.optional) for t in found.input] == [
        (t.name, f"TYPE_{t.data_type}", t.dims, True) for t in INPUTS
    ]
    assert [(t.name, data_type(t.data_type), tuple(t.dims)) for t in found.output] == [
        (t.name, f"TYPE_{t.data_type}", t.dims) for t in OUTPUTS
    ]


def test_the_parameters_say_what_has_to_be_true(config):
    parameters = parameters_of(parsed(rendered(config)["tensorrt_llm/config.pbtxt"]))
    assert parameters == {
        "engine_dir": "/somewhere/engines/tiny",
        "run": "tiny",
        "model_name": "tensorrt_llm",
        "method": "ngram",
        "acceptance": "rejection",
        "dtype": "float32",
        "max_draft_len": "4",
        "max_batch_size": "8",
        "max_seq_len": "4000",
        "vocab_size": "320",
        "manifest_digest": "d" * 64,
    }
    alias = parameters_of(parsed(rendered(config)["tensorrt_llm_unary/config.pbtxt"]))
    assert (alias["streaming_model"], alias["tokenizer_dir"]) == ("tensorrt_llm", "/somewhere/engines/tiny/target")


def test_another_model_name_renames_both(config):
    other = config.model_copy(update={"serve": config.serve.model_copy(update={"model_name": "mine"})})
    files = repository.render(other, Path("/e"), manifest_of(config))  # names are no part of the engine
    assert {name.split("/")[0] for name in files} == {"mine", "mine_unary", *COMPAT}


def test_a_model_is_the_import_of_its_class(config):
    found = {name: text for name, text in rendered(config).items() if name.endswith(".py")}
    modules = {"tensorrt_llm": "streaming", "tensorrt_llm_unary": "unary", **dict.fromkeys(COMPAT, "inflight_batcher")}
    assert found == {f"{name}/1/model.py": emitted.source(module) for name, module in modules.items()}


@pytest.mark.parametrize("model", emitted.MODELS)
def test_every_model_is_a_class_that_triton_can_use(monkeypatch, model):
    triton = SimpleNamespace(TRITONSERVER_RESPONSE_COMPLETE_FINAL=1)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton)
    monkeypatch.delitem(sys.modules, f"trt_spec.triton.models.{model}", raising=False)
    namespace = {}
    exec(emitted.source(model), namespace)
    finalize = ["finalize"] if model not in ("preprocessing", "postprocessing") else []  # they hold nothing
    methods = ("initialize", "execute", *finalize)
    assert all(callable(getattr(namespace["TritonPythonModel"], name)) for name in methods)


def test_there_is_no_other_model():
    assert sorted(path.stem for path in MODELS_DIR.glob("[!_]*.py")) == sorted(emitted.MODELS)


def test_an_engine_of_another_config_is_refused(config):
    other = config.model_copy(update={"build": config.build.model_copy(update={"max_batch_size": 2})})
    with pytest.raises(ConfigError, match="another config") as caught:
        repository.render(other, Path("/e"), manifest_of(config))
    assert caught.value.where == "build"


@pytest.mark.parametrize("key", repository.CHECKED_LIMITS)
def test_a_manifest_that_lacks_a_limit_is_refused(config, key):
    manifest = manifest_of(config)
    del manifest["engine"][key]
    with pytest.raises(CheckpointError, match=key):
        repository.render(config, Path("/e"), manifest)


def test_a_manifest_without_digest_is_refused(config):
    with pytest.raises(CheckpointError, match="digest"):
        repository.render(config, Path("/e"), {**manifest_of(config), "digest": None})


# --- on disk ---


def test_emit_writes_what_render_says(config, engine_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = repository.emit(config, Path("engines/tiny"), Path("triton_repo"))  # relative, as on the command line
    written = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert written == repository.render(config, engine_dir, manifest_of(config))
    assert [path.name for path in target.parent.iterdir()] == ["tiny"]


def test_emit_replaces_what_was_there(config, engine_dir, tmp_path):
    target = repository.emit(config, engine_dir, tmp_path / "repo")
    (target / "stale_model").mkdir()
    repository.emit(config, engine_dir, tmp_path / "repo")
    assert sorted(path.name for path in target.iterdir()) == sorted((*NAMES, *COMPAT))


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_emission_that_fails_leaves_the_old_one_whole(config, engine_dir, tmp_path, monkeypatch, failure):
    target = repository.emit(config, engine_dir, tmp_path / "repo")
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    original, calls = Path.write_text, []

    def write_text(self, *args, **kwargs):
        calls.append(self)
        if len(calls) == 3:
            raise failure
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(MachineError if isinstance(failure, OSError) else KeyboardInterrupt) as caught:
        repository.emit(config, engine_dir, tmp_path / "repo")
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before
    assert [path.name for path in target.parent.iterdir()] == ["tiny"]
    if isinstance(failure, OSError):
        assert caught.value.got == "No space left on device"


def test_a_file_in_the_way_is_one_clear_error(config, engine_dir, tmp_path):
    (tmp_path / "repo").write_text("not a directory")
    with pytest.raises(MachineError, match="cannot be written"):
        repository.emit(config, engine_dir, tmp_path / "repo")


@pytest.mark.parametrize(("text", "got"), [(None, "No such file"), ("{", "not JSON"), ("[]", "no JSON object")])
def test_no_engine_is_one_clear_error(config, tmp_path, text, got):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="no usable engine") as caught:
        repository.emit(config, tmp_path, tmp_path / "repo")
    assert got in caught.value.got
    assert not (tmp_path / "repo").exists()


# --- repositories of earlier versions ---


def older_model(model):
    """The beginning of what the last version wrote that emitted whole classes, by what the model is called now."""
    return (DATA / "models_with_classes" / f"{model}.txt").read_text()


def test_what_was_just_emitted_passes(config, engine_dir, tmp_path):
    emitted.check(repository.emit(config, engine_dir, tmp_path / "repo"), "tiny")


@pytest.mark.parametrize("model", emitted.MODELS)
def test_what_an_earlier_version_emitted_is_refused_before_it_is_served(config, engine_dir, tmp_path, model):
    target = repository.emit(config, engine_dir, tmp_path / "repo")
    (target / "tensorrt_llm" / "1" / "model.py").write_text(older_model(model))
    with pytest.raises(ConfigError, match="another version of trt_spec") as caught:
        serve_until_signal(config, target, None)
    assert caught.value.got == "tensorrt_llm/1/model.py"
    assert "trt-spec emit tiny" in caught.value.remedy


@pytest.mark.parametrize("model", emitted.MODELS)
def test_a_server_that_loads_what_an_earlier_version_emitted_says_what_to_do(monkeypatch, model):
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", SimpleNamespace())
    with pytest.raises(ConfigError, match="another version of trt_spec") as caught:
        exec(older_model(model), {"__name__": "model"})
    assert "trt-spec emit" in caught.value.remedy


# --- at load ---


@pytest.fixture
def loaded(config, tmp_path):
    """What Triton hands to the streaming model."""
    engine_dir = tmp_path / "engines" / "tiny"
    return parsed(repository.render(config, engine_dir, manifest_of(config))["tensorrt_llm/config.pbtxt"])


def checked(model_config, target="torch"):
    return repository.checked_parameters(args_of(model_config, "/repository/tensorrt_llm"), target)


def test_a_repository_of_its_engine_passes(loaded, engine_dir):
    assert checked(loaded)["engine_dir"] == str(engine_dir)


@pytest.mark.parametrize("key", [*repository.CHECKED_LIMITS, "manifest_digest"])
def test_a_rebuilt_engine_is_a_load_error(loaded, engine_dir, key):
    loaded.parameters[key].string_value = "other"
    with pytest.raises(ConfigError, match=f"{key}: the repository says other") as caught:
        checked(loaded)
    assert "trt-spec emit tiny" in caught.value.remedy


def test_all_differences_are_told_at_once(loaded, engine_dir):
    loaded.parameters["max_draft_len"].string_value, loaded.parameters["vocab_size"].string_value = "9", "7"
    loaded.name = "renamed"
    del loaded.input[0]
    with pytest.raises(ConfigError) as caught:
        checked(loaded)
    text = str(caught.value)
    assert all(word in text for word in ("max_draft_len", "vocab_size", "renamed", "declared inputs"))


@pytest.mark.parametrize(("target", "key"), [("torch", "max_draft_len"), ("llmapi", "drafter_placement")])
def test_a_configuration_without_parameters_is_refused(loaded, engine_dir, target, key):
    loaded.parameters.pop(key, None)
    with pytest.raises(ConfigError, match="parameters are missing") as caught:
        checked(loaded, target)
    assert key in caught.value.got


def test_a_vanished_engine_is_a_load_error(loaded):
    with pytest.raises(CheckpointError, match="no usable engine"):
        checked(loaded)
