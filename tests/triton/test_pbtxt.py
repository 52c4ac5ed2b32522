"""ModelConfig to config.pbtxt, as Triton's own protobuf reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from tests.triton.configs import parameters_of, parsed
from trt_spec.errors import ConfigError
from trt_spec.triton import pbtxt
from trt_spec.triton.pbtxt import DATA_TYPES, EnsembleStep, ModelConfig, Tensor

# Surrogates are not text; protobuf refuses them as well.
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
TENSORS = st.builds(
    Tensor,
    NAMES,
    st.sampled_from(DATA_TYPES),
    st.lists(st.one_of(st.just(-1), st.integers(1, 2**31)), min_size=1, max_size=3).map(tuple),
    optional=st.booleans(),
    ragged=st.booleans(),
    is_scalar=st.booleans(),
)
MAPS = st.dictionaries(TEXT, TEXT, max_size=3)
STEPS = st.lists(st.builds(EnsembleStep, TEXT, MAPS, MAPS), min_size=1, max_size=2).map(tuple)
CONFIGS = st.builds(
    ModelConfig,
    name=TEXT,
    backend=TEXT,
    inputs=st.lists(TENSORS, max_size=3, unique_by=lambda tensor: tensor.name).map(tuple),
    outputs=st.lists(TENSORS, max_size=3, unique_by=lambda tensor: tensor.name).map(tuple),
    max_batch_size=st.integers(0, 1000),
    decoupled=st.booleans(),
    num_instances=st.integers(1, 9),
    parameters=st.dictionaries(TEXT, TEXT, max_size=3),
    max_queue_size=st.one_of(st.none(), st.integers(0, 10**4)),
)
ENSEMBLES = st.builds(ModelConfig, TEXT, st.just(""), st.just(()), st.just(()), st.integers(0, 99), steps=STEPS)


@given(CONFIGS, TEXT)
def test_triton_reads_the_same(config, comment):
    inputs = tuple(tensor for tensor in config.inputs)
    # Triton's ModelOutput has no `optional`.
    outputs = tuple(
        Tensor(tensor.name, tensor.data_type, tensor.dims, is_scalar=tensor.is_scalar) for tensor in config.outputs
    )
    config = ModelConfig(**{**config.__dict__, "inputs": inputs, "outputs": outputs})
    found = parsed(pbtxt.dumps(config, comment))
    assert (found.name, found.backend, found.max_batch_size) == (config.name, config.backend, config.max_batch_size)
    assert found.model_transaction_policy.decoupled == config.decoupled
    for ours, theirs in ((config.inputs, found.input), (config.outputs, found.output)):
        assert [(t.name, f"TYPE_{t.data_type}", list(t.dims)) for t in ours] == [
            (t.name, model_config_pb2.DataType.Name(t.data_type), list(t.dims)) for t in theirs
        ]
    assert [t.optional for t in config.inputs] == [t.optional for t in found.input]
    assert [t.ragged for t in config.inputs] == [t.allow_ragged_batch for t in found.input]
    assert [t.is_scalar for t in config.inputs] == [t.HasField("reshape") for t in found.input]
    assert (config.max_queue_size is not None) == found.HasField("dynamic_batching")
    if config.max_queue_size is not None:
        batching = found.dynamic_batching
        assert list(batching.preferred_batch_size) == [config.max_batch_size]
        assert batching.max_queue_delay_microseconds == 0
        assert batching.default_queue_policy.max_queue_size == config.max_queue_size
    kinds = model_config_pb2.ModelInstanceGroup.Kind
    assert [(g.count, kinds.Name(g.kind)) for g in found.instance_group] == [(config.num_instances, "KIND_CPU")]
    assert dict(config.parameters) == parameters_of(found)


@given(ENSEMBLES)
def test_triton_reads_the_same_ensemble(config):
    found = parsed(pbtxt.dumps(config))
    assert (found.name, found.platform, found.max_batch_size) == (config.name, "ensemble", config.max_batch_size)
    assert not found.instance_group
    assert {step.model_version for step in found.ensemble_scheduling.step} == {-1}
    assert [
        EnsembleStep(step.model_name, dict(step.input_map), dict(step.output_map))
        for step in found.ensemble_scheduling.step
    ] == list(config.steps)


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (("a", "COMPLEX", (1,)), "no data type of this contract"),
        (("a", "INT32", ()), "bad dims"),
        (("a", "INT32", (0,)), "bad dims"),
        (("a", "INT32", (-2,)), "bad dims"),
    ],
)
def test_a_tensor_that_triton_would_refuse_is_refused_here(tensor, what):
    with pytest.raises(ConfigError, match=what):
        Tensor(*tensor)


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_name_that_stands_twice_is_refused(side):
    tensors = (Tensor("a", "INT32", (1,)),) * 2
    with pytest.raises(ConfigError, match=f"an {side} twice"):
        ModelConfig("m", "python", tensors if side == "input" else (), tensors if side == "output" else ())


def test_the_text_is_for_people_too():
    config = ModelConfig("m", "python", (Tensor("a", "BOOL", (1,), is_scalar=True),), (), parameters={"k": 'é"\x01'})
    assert pbtxt.dumps(config, "one\n\ntwo").splitlines() == [
        *("# one", "#", "# two", 'name: "m"', 'backend: "python"', "max_batch_size: 0"),
        *("model_transaction_policy {", "  decoupled: false", "}"),
        *("input {", '  name: "a"', "  data_type: TYPE_BOOL", "  dims: 1", "  reshape {", "  }", "}"),
        *("instance_group {", "  count: 1", "  kind: KIND_CPU", "}"),
        *("parameters {", '  key: "k"', "  value {", '    string_value: "é\\"\\001"', "  }", "}"),
    ]
