"""ModelConfig to config.pbtxt and back, checked against Triton's own protobuf."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from tests.triton.test_textformat import NAMES, TEXT
from trt_spec.errors import ConfigError
from trt_spec.triton import pbtxt
from trt_spec.triton.pbtxt import DATA_TYPES, INSTANCE_KINDS, Batching, EnsembleStep, InstanceGroup, ModelConfig, Tensor

TENSORS = st.builds(
    Tensor,
    NAMES,
    st.sampled_from(DATA_TYPES),
    st.lists(st.one_of(st.just(-1), st.integers(1, 2**31)), min_size=1, max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
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
    instance_groups=st.lists(
        st.builds(InstanceGroup, st.integers(1, 9), st.sampled_from(INSTANCE_KINDS)), max_size=2
    ).map(tuple),
    parameters=st.dictionaries(TEXT, TEXT, max_size=3),
    batching=st.one_of(
        st.none(),
        st.builds(
            Batching,
            st.lists(st.integers(1, 99), max_size=2).map(tuple),
            st.integers(0, 10**6),
            st.integers(0, 10**4),
        ),
    ),
)
ENSEMBLES = st.builds(ModelConfig, TEXT, st.just(""), st.just(()), st.just(()), st.integers(0, 99), steps=STEPS)


@given(CONFIGS, TEXT)
def test_a_config_reads_back_equal(config, comment):
    assert pbtxt.loads(pbtxt.dumps(config, comment)) == config


@given(CONFIGS)
def test_triton_reads_the_same(config):
    inputs = tuple(tensor for tensor in config.inputs)
    # Triton's ModelOutput has no `optional`.
    outputs = tuple(
        Tensor(tensor.name, tensor.data_type, tensor.dims, is_scalar=tensor.is_scalar) for tensor in config.outputs
    )
    config = ModelConfig(**{**config.__dict__, "inputs": inputs, "outputs": outputs})
    parsed = text_format.Parse(pbtxt.dumps(config), model_config_pb2.ModelConfig())
    assert (parsed.name, parsed.backend, parsed.max_batch_size) == (config.name, config.backend, config.max_batch_size)
    assert parsed.model_transaction_policy.decoupled == config.decoupled
    for ours, theirs in ((config.inputs, parsed.input), (config.outputs, parsed.output)):
        assert [(t.name, f"TYPE_{t.data_type}", list(t.dims)) for t in ours] == [
            (t.name, model_config_pb2.DataType.Name(t.data_type), list(t.dims)) for t in theirs
        ]
    assert [t.optional for t in config.inputs] == [t.optional for t in parsed.input]
    assert [t.ragged for t in config.inputs] == [t.allow_ragged_batch for t in parsed.input]
    assert [t.is_scalar for t in config.inputs] == [t.HasField("reshape") for t in parsed.input]
    assert (config.batching is not None) == parsed.HasField("dynamic_batching")
    if config.batching is not None:
        found = parsed.dynamic_batching
        assert tuple(found.preferred_batch_size) == config.batching.preferred
        assert found.max_queue_delay_microseconds == config.batching.max_queue_delay_us
        assert found.default_queue_policy.max_queue_size == config.batching.max_queue_size
    kinds = model_config_pb2.ModelInstanceGroup.Kind
    assert [(g.count, g.kind) for g in config.instance_groups] == [
        (g.count, kinds.Name(g.kind)) for g in parsed.instance_group
    ]
    assert dict(config.parameters) == {key: value.string_value for key, value in parsed.parameters.items()}


@given(ENSEMBLES)
def test_an_ensemble_reads_back_equal_and_triton_reads_the_same(config):
    text = pbtxt.dumps(config)
    assert pbtxt.loads(text) == config
    parsed = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert parsed.platform == "ensemble"
    assert [
        EnsembleStep(step.model_name, dict(step.input_map), dict(step.output_map))
        for step in parsed.ensemble_scheduling.step
    ] == list(config.steps)


BASE = 'name: "m"\nbackend: "python"\n'


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('backend: "python"', "has no name"),
        (BASE + 'name: "n"', "name of the model stands twice"),
        (BASE + "max_batch_size: true", "max_batch_size of the model has the wrong type"),
        (BASE + "max_batch_size: 'x'", "max_batch_size of the model has the wrong type"),
        (BASE + "sequence_batching { }", "unknown field sequence_batching"),
        (BASE + "dynamic_batching { preserve_ordering: true }", "unknown field preserve_ordering"),
        (BASE + 'input { name: "a" data_type: TYPE_INT32 dims: 1 reshape { shape: 1 } }', "unknown field shape"),
        (BASE + 'platform: "pytorch_libtorch"', "unknown platform"),
        ('name: "m" platform: "ensemble" backend: "python"', "unknown field backend"),
        (
            'name: "m" platform: "ensemble" ensemble_scheduling { step { model_name: "a" model_version: 2 } }',
            "names a version",
        ),
        (BASE + 'input { name: "a" data_type: "TYPE_INT32" dims: 1 }', "data_type of input at line 3"),
        (BASE + 'input { name: "a" data_type: TYPE_COMPLEX dims: 1 }', "no data type of this contract"),
        (BASE + 'input { name: "a" data_type: TYPE_INT32 }', "bad dims"),
        (BASE + 'input { name: "a" data_type: TYPE_INT32 dims: 0 }', "bad dims"),
        (
            BASE + 'input [{ name: "a" data_type: TYPE_INT32 dims: 1 }, { name: "a" data_type: TYPE_INT32 dims: 1 }]',
            "twice",
        ),
        (BASE + "instance_group { kind: KIND_TPU }", "unknown instance kind"),
        (BASE + 'parameters { key: "k" value { int_value: 1 } }', "unknown field int_value"),
        (BASE + "model_transaction_policy { decoupled: 1 }", "wrong type"),
    ],
)
def test_what_is_wrong_is_refused_by_name(text, what):
    with pytest.raises(ConfigError, match=what):
        pbtxt.loads(text)
