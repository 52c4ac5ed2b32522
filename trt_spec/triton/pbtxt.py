"""config.pbtxt as types: a `ModelConfig` to text, and text back to the same `ModelConfig`.

The part of Triton's model configuration that this project writes (model_config.proto of server 2.51). A field outside
of it is an error that names its line, so that nothing which was written by hand is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trt_spec.errors import ConfigError
from trt_spec.triton import textformat
from trt_spec.triton.textformat import Enum, Field, Message, Value

DataType = Literal["BOOL", "UINT8", "INT32", "INT64", "UINT64", "FP16", "BF16", "FP32", "STRING"]
InstanceKind = Literal["KIND_AUTO", "KIND_CPU", "KIND_GPU", "KIND_MODEL"]
DATA_TYPES: tuple[str, ...] = get_args(DataType)
INSTANCE_KINDS: tuple[str, ...] = get_args(InstanceKind)


@dataclass(frozen=True)
class Tensor:
    """One input or output.

    Attributes:
        dims: sizes, -1 where any size goes; without a batch axis where `max_batch_size` is 0.
        optional: for inputs; a request may leave it out.
        ragged: for inputs; requests of different size go into one batch unpadded.
        is_scalar: one value a request, handed to the model without an axis for it.
    """

    name: str
    data_type: DataType
    dims: tuple[int, ...]
    optional: bool = False
    ragged: bool = False
    is_scalar: bool = False

    def __post_init__(self) -> None:
        if self.data_type not in DATA_TYPES:
            raise ConfigError(f"tensor {self.name} has no data type of this contract", got=self.data_type)
        if not self.dims or any(size < 1 and size != -1 for size in self.dims):
            raise ConfigError(f"tensor {self.name} has bad dims", got=self.dims, expected="positive sizes or -1")


@dataclass(frozen=True)
class InstanceGroup:
    """How many processes serve a model, and on what."""

    count: int = 1
    kind: InstanceKind = "KIND_CPU"


@dataclass(frozen=True)
class Batching:
    """How the server forms batches: sizes it aims at, how long it waits for them, and how many requests may wait."""

    preferred: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    max_queue_size: int = 0  # 0: without limit


@dataclass(frozen=True)
class EnsembleStep:
    """One model of an ensemble, and which tensors of the ensemble its inputs and outputs are."""

    model_name: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class ModelConfig:
    """One served model.

    Attributes:
        backend: what runs it; empty for an ensemble, which has `steps` in its place.
        max_batch_size: 0 = the server forms no batches and adds no batch axis.
        decoupled: a request may be answered by any number of responses; such a model refuses unary inference.
        parameters: handed to the model as strings.
    """

    name: str
    backend: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int = 0
    decoupled: bool = False
    instance_groups: tuple[InstanceGroup, ...] = (InstanceGroup(),)
    parameters: Mapping[str, str] = field(default_factory=dict)
    batching: Batching | None = None
    steps: tuple[EnsembleStep, ...] = ()

    def __post_init__(self) -> None:
        for kind, names in (("input", _names(self.inputs)), ("output", _names(self.outputs))):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ConfigError(f"model {self.name} has an {kind} twice", got=", ".join(twice))


def _names(tensors: Iterable[Tensor]) -> list[str]:
    return [tensor.name for tensor in tensors]


# --- to text -------------------------------------------------------------------------------------------------------


def dumps(config: ModelConfig, comment: str = "") -> str:
    """The text of a config.pbtxt.

    Args:
        config: the model.
        comment: put before it, each line behind `# `.
    """
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + textformat.dumps(_to_message(config)) + "\n"


def _to_message(config: ModelConfig) -> Message:
    fields = [
        Field("name", config.name),
        Field("platform", "ensemble") if config.steps else Field("backend", config.backend),
        Field("max_batch_size", config.max_batch_size),
    ]
    if not config.steps:  # an ensemble is what its models are
        fields.append(Field("model_transaction_policy", (Field("decoupled", config.decoupled),)))
    if config.batching is not None:
        fields.append(Field("dynamic_batching", _batching_fields(config.batching)))
    fields += [Field("input", _tensor_fields(tensor)) for tensor in config.inputs]
    fields += [Field("output", _tensor_fields(tensor)) for tensor in config.outputs]
    for group in config.instance_groups:
        fields.append(Field("instance_group", (Field("count", group.count), Field("kind", Enum(group.kind)))))
    for key, text in config.parameters.items():
        value = (Field("string_value", text),)
        fields.append(Field("parameters", (Field("key", key), Field("value", value))))
    if config.steps:
        steps = tuple(Field("step", _step_fields(step)) for step in config.steps)
        fields.append(Field("ensemble_scheduling", steps))
    return tuple(fields)


def _batching_fields(batching: Batching) -> Message:
    fields = [Field("preferred_batch_size", size) for size in batching.preferred]
    fields.append(Field("max_queue_delay_microseconds", batching.max_queue_delay_us))
    fields.append(Field("default_queue_policy", (Field("max_queue_size", batching.max_queue_size),)))
    return tuple(fields)


def _step_fields(step: EnsembleStep) -> Message:
    fields = [Field("model_name", step.model_name), Field("model_version", -1)]
    for name, tensors in (("input_map", step.inputs), ("output_map", step.outputs)):
        fields += [Field(name, (Field("key", key), Field("value", value))) for key, value in tensors.items()]
    return tuple(fields)


def _tensor_fields(tensor: Tensor) -> Message:
    fields = [Field("name", tensor.name), Field("data_type", Enum(f"TYPE_{tensor.data_type}"))]
    fields += [Field("dims", size) for size in tensor.dims]
    if tensor.is_scalar:
        fields.append(Field("reshape", ()))
    if tensor.optional:
        fields.append(Field("optional", True))
    if tensor.ragged:
        fields.append(Field("allow_ragged_batch", True))
    return tuple(fields)


# --- from text -----------------------------------------------------------------------------------------------------


def loads(text: str, where: str = "config.pbtxt") -> ModelConfig:
    """The model that a config.pbtxt describes.

    Raises:
        ConfigError: not text format, a field that this project does not write, a wrong type, a missing name.
    """
    root = _Reader(textformat.loads(text, where), where, "the model")
    platform = root.one("platform", str, "")
    if platform not in ("", "ensemble"):
        raise ConfigError("unknown platform of the model", where=where, got=platform, expected="ensemble, or a backend")
    config = ModelConfig(
        name=root.one("name", str),
        backend="" if platform else root.one("backend", str),
        max_batch_size=root.one("max_batch_size", int, 0),
        decoupled=root.child("model_transaction_policy", lambda policy: policy.one("decoupled", bool, False), False),
        inputs=tuple(root.children("input", _read_tensor)),
        outputs=tuple(root.children("output", _read_tensor)),
        instance_groups=tuple(root.children("instance_group", _read_group)),
        parameters=dict(root.children("parameters", _read_parameter)),
        batching=root.child("dynamic_batching", _read_batching, None),
        steps=root.child("ensemble_scheduling", lambda part: tuple(part.children("step", _read_step)), ()),
    )
    root.finish()
    return config


def _read_tensor(reader: _Reader) -> Tensor:
    return Tensor(
        name=reader.one("name", str),
        data_type=reader.one("data_type", Enum).removeprefix("TYPE_"),  # type: ignore[arg-type]  # checked by Tensor
        dims=tuple(reader.many("dims", int)),
        optional=reader.one("optional", bool, False),
        ragged=reader.one("allow_ragged_batch", bool, False),
        is_scalar=reader.child("reshape", lambda shape: True, False),
    )


def _read_group(reader: _Reader) -> InstanceGroup:
    kind = reader.one("kind", Enum, Enum("KIND_AUTO"))
    if kind not in INSTANCE_KINDS:
        raise ConfigError(
            "unknown instance kind", where=reader.where, got=str(kind), expected=", ".join(INSTANCE_KINDS)
        )
    return InstanceGroup(reader.one("count", int, 1), str(kind))  # type: ignore[arg-type]  # checked above


def _read_batching(reader: _Reader) -> Batching:
    return Batching(
        preferred=tuple(reader.many("preferred_batch_size", int)),
        max_queue_delay_us=reader.one("max_queue_delay_microseconds", int, 0),
        max_queue_size=reader.child("default_queue_policy", lambda policy: policy.one("max_queue_size", int, 0), 0),
    )


def _read_step(reader: _Reader) -> EnsembleStep:
    name, version = reader.one("model_name", str), reader.one("model_version", int, -1)
    if version != -1:
        raise ConfigError("a step of an ensemble names a version", where=reader.where, got=version, expected=-1)
    maps = [dict(reader.children(side, _read_pair)) for side in ("input_map", "output_map")]
    return EnsembleStep(name, *maps)


def _read_pair(reader: _Reader) -> tuple[str, str]:
    return reader.one("key", str), reader.one("value", str)


def _read_parameter(reader: _Reader) -> tuple[str, str]:
    return reader.one("key", str), reader.child("value", lambda value: value.one("string_value", str, ""), "")


_REQUIRED: Any = object()


class _Reader:
    """Typed access to a message; `finish` refuses what nobody asked for."""

    def __init__(self, message: Message, where: str, what: str) -> None:
        self.where = where
        self.what = what
        self.left: dict[str, list[Field]] = {}
        for item in message:
            self.left.setdefault(item.name, []).append(item)

    def many(self, name: str, kind: type) -> list[Any]:
        return [self.checked(item, kind) for item in self.left.pop(name, [])]

    def one(self, name: str, kind: type, default: Any = _REQUIRED) -> Any:
        items = self.left.get(name, [])
        if len(items) > 1:
            raise ConfigError(f"{name} of {self.what} stands twice", where=f"{self.where}:{items[1].line}")
        if not items and default is _REQUIRED:
            raise ConfigError(f"{self.what} has no {name}", where=self.where)
        values = self.many(name, kind)
        return values[0] if values else default

    def children(self, name: str, read: Callable[[_Reader], Any]) -> list[Any]:
        results = []
        for item in self.left.pop(name, []):
            reader = _Reader(self.checked(item, tuple), self.where, f"{name} at line {item.line}")
            results.append(read(reader))
            reader.finish()
        return results

    def child(self, name: str, read: Callable[[_Reader], Any], default: Any) -> Any:
        items = self.left.get(name, [])
        if len(items) > 1:
            raise ConfigError(f"{name} of {self.what} stands twice", where=f"{self.where}:{items[1].line}")
        return next(iter(self.children(name, read)), default)

    def checked(self, item: Field, kind: type) -> Value:
        # Exact: bool is an int and Enum a str to Python, but not to Triton.
        if type(item.value) is not kind:
            expected = {tuple: "a message", Enum: "a bare word", str: "a quoted string"}.get(kind, kind.__name__)
            raise ConfigError(
                f"{item.name} of {self.what} has the wrong type",
                where=f"{self.where}:{item.line}",
                got=item.value if not isinstance(item.value, tuple) else "a message",
                expected=expected,
            )
        return item.value

    def finish(self) -> None:
        for name, items in self.left.items():
            raise ConfigError(
                f"unknown field {name} of {self.what}",
                where=f"{self.where}:{items[0].line}",
                remedy="remove it, or emit the model repository again",
            )
