"""Files and overrides: precedence, messages that point at a line, and the round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trt_spec.config import loader
from trt_spec.config.schema import RunConfig
from trt_spec.errors import ConfigError, UsageError
from trt_spec.methods import BUILD_TARGETS, METHODS

BASE = "name: run\ntarget:\n  checkpoint: t\n"


def refused(text: str, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loader.loads(text, source="c.yaml", overrides=overrides)
    return caught.value


def test_set_beats_file_beats_default():
    text = BASE + "build:\n  max_batch_size: 4\n"
    config = loader.loads(text, overrides=["build.max_batch_size=2"])
    assert config.build.max_batch_size == 2
    assert loader.loads(text).build.max_batch_size == 4
    assert loader.loads(BASE).build.max_batch_size == 16


@pytest.mark.parametrize(
    ("line", "key", "remedy"),
    [
        ("speculation:\n  metod: ngram", "speculation.metod", "did you mean speculation.method?"),
        ("max_draft_len: 4", "max_draft_len", "did you mean speculation.max_draft_len?"),
        ("build: {max_batch: 4}", "build.max_batch", "did you mean build.max_batch_size?"),
        ("servo: {}", "servo", "did you mean serve?"),
        ("quux: 1", "quux", "known keys here: name, target"),
    ],
)
def test_an_unknown_key_names_the_line_and_the_nearest_key(line, key, remedy):
    error = refused(BASE + line)
    assert error.what == f"unknown key {key}"
    assert error.where == f"c.yaml:{4 + line.count(chr(10))}"
    assert remedy in error.remedy


def test_all_findings_come_at_once_each_with_its_line():
    error = refused("target:\n  checkpoint: t\n  dtipe: x\nserve:\n  http_port: many\n")
    assert error.what == "3 problems in the run config"
    text = str(error)
    assert "c.yaml:3: unknown key target.dtipe; did you mean target.dtype?" in text
    assert "c.yaml:5: serve.http_port cannot take this value (got 'many'; expected a valid integer)" in text
    assert "name is missing" in text


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        (BASE + "name: again\n", "key 'name' is there twice", "c.yaml:4"),
        (BASE + "build: {max_batch_size: 1, max_batch_size: 2}\n", "key 'max_batch_size' is there twice", "c.yaml:4"),
        ("name: [a\nb: c\n", "this is not valid YAML", "c.yaml:2"),
        ("name: a\n\tb: c\n", "this is not valid YAML", "c.yaml:2"),
        ("", "the config file is empty", "c.yaml"),
        ("# nothing\n", "the config file is empty", "c.yaml"),
        ("- a\n", "a run config is a mapping of keys", "c.yaml:1"),
        ("a: " + "[" * 40 + "]" * 40, "the config is nested too deeply", "c.yaml"),
        ("name: run\ntarget: &x {checkpoint: *x}\n", "target.checkpoint cannot take this value", "c.yaml:2"),
        (BASE + "---\nname: other\n", "this is not valid YAML", "c.yaml:4"),
        (BASE + "speculation:\n", "speculation is a section", "c.yaml:4"),
    ],
)
def test_broken_files(text, what, where):
    error = refused(text)
    assert error.what.startswith(what)
    assert error.where == where


def test_a_wrong_choice_lists_the_choices_and_the_nearest():
    error = refused(BASE + "speculation:\n  method: medussa\n")
    assert (error.where, error.remedy) == ("c.yaml:5", "did you mean medusa?")
    assert "'draft_model'" in error.expected


def test_a_version_that_yaml_reads_as_a_number_has_to_be_quoted():
    error = refused(BASE + "build: {target: llmapi, tensorrt_llm_version: 1.10}\n")
    assert (error.got, error.remedy) == ("1.1", "put it in quotes")


def test_quotes_are_no_remedy_for_a_version_on_the_command_line():
    error = refused(BASE + "build: {target: llmapi}\n", "build.tensorrt_llm_version=1.2")
    assert (error.got, error.remedy) == ("1.2", "write all of it, such as 1.2.1")


def test_a_broken_rule_points_at_the_line_of_its_key():
    error = refused(BASE + "speculation:\n  method: none\n  max_draft_len: 3\n")
    assert error.where == "c.yaml:6"
    assert "remove the key" in error.remedy


def test_a_complaint_about_an_override_names_the_override():
    assert refused(BASE, "build.max_batch_size=none").where == "--set build.max_batch_size=none"
    assert refused(BASE, "bild.device=cpu").where == "--set bild.device=cpu"
    assert refused(BASE, "speculation.method=eagle3").where == "--set speculation.method=eagle3"
    assert refused(BASE, "speculation={method: eagle3}").where == "--set speculation={method: eagle3}"


@pytest.mark.parametrize("text", ["device", "=cpu", "build..device=cpu", "name.x=1", "build.max_batch_size=[1"])
def test_a_malformed_override_is_a_usage_error(text):
    with pytest.raises(UsageError) as caught:
        loader.loads(BASE, overrides=[text])
    assert caught.value.where == f"--set {text}"


def test_override_values_are_yaml():
    config = loader.loads(
        BASE,
        overrides=[
            "equivalence.alpha=1e-3",
            "latency.concurrencies=[1, 4]",
            "latency.min_speedup.4=1.5",
            "speculation.checkpoint=d=e.f",
            "speculation.method=eagle",
            "build.tensorrt_llm_version=null",
        ],
    )
    assert config.equivalence.alpha == 1e-3
    assert config.latency.concurrencies == (1, 4)
    assert config.latency.min_speedup == {4: 1.5}
    assert config.speculation.checkpoint == "d=e.f"


def test_an_override_of_a_map_entry_replaces_the_entry_of_the_file():
    text = BASE + "latency: {min_speedup: {1: 1.3}}\n"
    assert loader.loads(text, overrides=["latency.min_speedup.1=1.1"]).latency.min_speedup == {1: 1.1}


def test_files_are_found_by_path_and_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "tiny-ngram.yaml").write_text(BASE, encoding="utf-8")
    for name in ("tiny-ngram", "tiny-ngram.yaml", "configs/tiny-ngram.yaml", str(tmp_path / "configs/tiny-ngram.yaml")):
        assert loader.load(name).name == "run"
    with pytest.raises(ConfigError) as caught:
        loader.load("tiny-ngrm")
    assert "tiny-ngram" in caught.value.remedy
    with pytest.raises(ConfigError, match="no such config file"):
        loader.load("configs/other.yaml")
    with pytest.raises(ConfigError, match="no such config file"):
        loader.load(str(tmp_path / "configs"))


def test_a_file_that_is_not_utf8(tmp_path):
    (tmp_path / "c.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        loader.load(tmp_path / "c.yaml")


def test_composed_configs():
    config = loader.compose("some/where/Model-7B", "EAGLE-3", draft="heads/x")
    assert (config.name, config.target.checkpoint) == ("Model-7B-eagle3", "some/where/Model-7B")
    assert config.speculation.checkpoint == "heads/x"
    assert loader.compose("smollm2-135m", "ngram").target.checkpoint == "checkpoints/smollm2-135m"
    assert loader.compose("m", "none", target="llmapi").name == "m-none-llmapi"


@pytest.mark.parametrize(
    "arguments", [("m", "eagle3"), ("m", "ngram", "d"), ("m", "mtp", "d"), ("m", "nope"), ("m", "none", None, "onnx")]
)
def test_flags_that_do_not_go_together(arguments):
    with pytest.raises(UsageError):
        loader.compose(*arguments)


def test_flags_take_the_file_that_they_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    text = "name: tiny-eagle\ntarget: {checkpoint: t}\nspeculation: {method: eagle, checkpoint: d, max_draft_len: 3}\n"
    (tmp_path / "configs" / "tiny-eagle.yaml").write_text(text, encoding="utf-8")
    found = loader.load_or_compose("tiny", "EAGLE-2")
    assert (found.speculation.checkpoint, found.speculation.max_draft_len) == ("d", 3)
    other = loader.load_or_compose("tiny", "eagle", draft="it's/mine", overrides=["build.device=cpu"])
    assert (other.speculation.checkpoint, other.speculation.max_draft_len) == ("it's/mine", 3)
    composed = loader.load_or_compose("tiny", "ngram", overrides=["speculation.max_draft_len=2"])
    assert composed.speculation.max_draft_len == 2


CONFIGS = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,10}", fullmatch=True),
        "target": st.fixed_dictionaries(
            {
                "checkpoint": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1),
                "dtype": st.sampled_from(["bfloat16", "float32"]),
            }
        ),
        "speculation": st.sampled_from(list(METHODS)).map(
            lambda method: {
                "method": method,
                **({"checkpoint": "1e3"} if METHODS[method].needs_checkpoint else {}),
            }
        ),
        "build": st.fixed_dictionaries({"target": st.sampled_from(BUILD_TARGETS)}),
        "equivalence": st.fixed_dictionaries({"alpha": st.floats(1e-300, 0.49), "tau": st.floats(1e-9, 0.9)}),
        "latency": st.fixed_dictionaries(
            {"concurrencies": st.just([1, 2, 7]), "min_speedup": st.dictionaries(st.sampled_from([1, 7]), st.just(1.5))}
        ),
    }
)


@given(CONFIGS)
def test_a_dump_reloads_to_the_same_config(values):
    config = RunConfig.model_validate(values)
    assert loader.loads(loader.dump(config)) == config


@pytest.mark.parametrize("name", ["1e3", "on", "null", "007", "0x1F", "1.5", "true"])
def test_names_that_look_like_other_types_survive_the_round_trip(name):
    config = loader.loads(f"name: {name!r}\ntarget: {{checkpoint: 'null'}}\n")
    assert loader.loads(loader.dump(config)) == config


def test_defaults_follow_flags_and_overrides_together():
    """What a version can do decides the default rule, also where the version comes by --set."""
    flags = ("m", "draft_model", "d", "llmapi")
    assert loader.load_or_compose(*flags).speculation.acceptance == "rejection"
    older = loader.load_or_compose(*flags, ["build.tensorrt_llm_version=1.0.0"])
    assert older.speculation.acceptance == "greedy"
    text = loader.dump(older)
    assert loader.loads(text) == older
    deeper = loader.load_or_compose("m", "medusa", "d", "torch", ["speculation.tree.choices=[[0], [0, 0], [0, 0, 0]]"])
    assert deeper.speculation.max_draft_len == 3
