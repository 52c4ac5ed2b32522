"""The run config: bounds, defaults that follow the method, and rules between keys."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from trt_spec.config import capabilities
from trt_spec.config.explain import known_keys
from trt_spec.config.loader import normalise_method
from trt_spec.config.rules import CrossFieldError
from trt_spec.config.schema import RunConfig, json_schema
from trt_spec.errors import CapabilityError, UsageError
from trt_spec.methods import METHODS


def config(**sections):
    return RunConfig.model_validate({"name": "run", "target": {"checkpoint": "t"}, **sections})


def test_config_and_errors_never_import_torch():
    code = (
        "import sys; import trt_spec.config.loader, trt_spec.config.capabilities, trt_spec.provenance; "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("method", METHODS)
def test_the_default_draft_length_follows_the_method(method):
    speculation = {"method": method}
    if METHODS[method].needs_checkpoint:
        speculation["checkpoint"] = "d"
    made = config(speculation=speculation).speculation
    assert made.max_draft_len == METHODS[method].max_draft_len
    assert (made.ngram is not None) == (method == "ngram")


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("eagle-3", "eagle3"),
        ("EAGLE_3", "eagle3"),
        ("Eagle 2", "eagle"),
        ("n-gram", "ngram"),
        ("draft-model", "draft_model"),
        ("Draft", "draft_model"),
        ("off", "none"),
        ("MTP", "mtp"),
        *((method, method) for method in METHODS),
    ],
)
def test_spellings_of_a_method(text, method):
    assert normalise_method(text) == method


def test_a_spelling_in_a_config_becomes_the_method():
    assert config(speculation={"method": "N-Gram"}).speculation.method == "ngram"


def test_an_unknown_method_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean medusa"):
        normalise_method("medussa")


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("build", {"max_batch_size": 0}),
        ("build", {"max_batch_size": "4"}),
        ("build", {"max_batch_size": True}),
        ("build", {"max_batch_size": 4.0}),
        ("build", {"device": "gpu"}),
        ("build", {"tensorrt_llm_version": "latest", "target": "llmapi"}),
        ("serve", {"http_port": 70000}),
        ("serve", {"model_name": "a/b"}),
        ("equivalence", {"tau": 0.0}),
        ("equivalence", {"alpha": float("nan")}),
        ("latency", {"concurrencies": []}),
        ("latency", {"min_speedup": {1: 0.0}}),
        ("target", {"checkpoint": ""}),
        ("target", {"checkpoint": "t", "dtype": "int8"}),
        ("speculation", {"method": "ngram", "acceptance": "relaxed"}),
        ("speculation", {"method": "ngram", "max_draft_len": 65}),
        ("name", "a/b"),
        ("name", ""),
        ("name", ".."),
    ],
)
def test_a_value_out_of_bounds_is_refused(section, values):
    with pytest.raises(ValidationError):
        config(**{section: values})


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"speculation": {"method": "eagle3"}}, "speculation.checkpoint"),
        ({"speculation": {"method": "ngram", "checkpoint": "d"}}, "speculation.checkpoint"),
        ({"speculation": {"method": "mtp", "checkpoint": "d"}}, "speculation.checkpoint"),
        ({"speculation": {"method": "none", "max_draft_len": 3}}, "speculation.max_draft_len"),
        ({"speculation": {"method": "ngram", "max_draft_len": 0}}, "speculation.max_draft_len"),
        ({"speculation": {"method": "none", "ngram": {"max_ngram": 2}}}, "speculation.ngram"),
        ({"speculation": {"method": "ngram", "ngram": {"min_ngram": 5}}}, "speculation.ngram.min_ngram"),
        ({"speculation": {"method": "ngram", "ngram": None}}, "speculation.ngram"),
        ({"build": {"max_num_tokens": 8}}, "build.max_num_tokens"),
        ({"build": {"max_seq_len": 8}, "speculation": {"method": "ngram"}}, "build.max_seq_len"),
        ({"build": {"tensorrt_llm_version": "1.2.1"}}, "build.tensorrt_llm_version"),
        ({"build": {"target": "llmapi", "device": "cpu"}}, "build.device"),
        ({"serve": {"http_port": 8001}}, "serve.grpc_port"),
        ({"build": {"target": "tensorrt"}, "serve": {"decoupled_mode": True}}, "serve.decoupled_mode"),
        ({"latency": {"concurrencies": [2, 1]}}, "latency.concurrencies"),
        ({"latency": {"min_speedup": {3: 1.1}}}, "latency.min_speedup.3"),
    ],
)
def test_a_broken_rule_names_its_key_and_a_remedy(sections, key):
    with pytest.raises(CrossFieldError) as caught:
        config(**sections)
    assert [problem.key for problem in caught.value.problems] == [key]
    assert all(problem.message and problem.remedy for problem in caught.value.problems)


def test_configs_are_frozen():
    with pytest.raises(ValidationError):
        config().build.max_batch_size = 3


def test_every_key_has_a_description():
    keys = list(known_keys())
    assert [entry.key for entry in keys if not entry.schema["description"].endswith(".")] == []
    assert {"target.checkpoint", "speculation.ngram.max_ngram", "serve.http_port"} <= {entry.key for entry in keys}


def test_the_json_schema_is_closed_and_described():
    schema = json_schema()
    for definition in [schema, *schema["$defs"].values()]:
        assert definition["additionalProperties"] is False
        assert all("description" in prop for prop in definition["properties"].values())


def test_choices_of_a_tree_come_as_lists_of_numbers():
    def tree(choices):
        return config(speculation={"method": "medusa", "checkpoint": "d", "tree": {"choices": choices}}).speculation

    made = tree([[0], [1], [0, 0]])
    assert (made.tree.choices, made.max_draft_len) == (((0,), (1,), (0, 0)), 2)
    for wrong in ([["0"]], [[True]], [[64]], [[0.0]], [0], []):
        with pytest.raises(ValidationError):
            tree(wrong)


def test_costs_are_read_where_drafts_adapt_and_by_torch_only():
    speculation = {"method": "ngram", "costs": {"step": {1: 1.0, 8: 1.2}}}
    with pytest.raises(CrossFieldError, match="adaptive_draft_len"):
        RunConfig.model_validate({"name": "a", "target": {"checkpoint": "x"}, "speculation": speculation})
    speculation["adaptive_draft_len"] = True
    made = RunConfig.model_validate({"name": "a", "target": {"checkpoint": "x"}, "speculation": speculation})
    assert made.speculation.costs.step == {1: 1.0, 8: 1.2}
    foreign = made.model_copy(
        update={"build": made.build.model_copy(update={"target": "llmapi", "tensorrt_llm_version": "1.2.1"})}
    )
    with pytest.raises(CapabilityError, match=r"speculation\.costs"):
        capabilities.check(foreign)
