"""config.pbtxt as types, and as the text that Triton reads.

The part of Triton's model configuration that this project writes (model_config.proto of server 2.51), in protobuf's
text format. Written here and not by protobuf, because repositories are emitted in images that have neither protobuf nor
tritonclient; the tests read every emitted file with both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, TypeAlias, get_args

from trt_spec.errors import ConfigError

DataType = Literal["BOOL", "UINT8", "INT32", "INT64", "UINT64", "FP16", "BF16", "FP32", "STRING"]
DATA_TYPES: tuple[str, ...] = get_args(DataType)


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
    _: KW_ONLY
    optional: bool = False
    ragged: bool = False
    is_scalar: bool = False

    def __post_init__(self) -> None:
        if self.data_type not in DATA_TYPES:
            raise ConfigError(f"tensor {self.name} has no data type of this contract", got=self.data_type)
        if not self.dims or any(size < 1 and size != -1 for size in self.dims):
            raise ConfigError(f"tensor {self.name} has bad dims", got=self.dims, expected="positive sizes or -1")


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
        num_instances: processes that serve it, each on the CPU as far as Triton knows.
        parameters: handed to the model as strings.
        max_queue_size: requests that may wait for a batch, 0 without limit; None: the server forms none.
        module: of `trt_spec.triton.models`, where backend is python.
    """

    name: str
    backend: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int = 0
    decoupled: bool = False
    num_instances: int = 1
    parameters: Mapping[str, str] = field(default_factory=dict)
    max_queue_size: int | None = None
    steps: tuple[EnsembleStep, ...] = ()
    module: str = ""

    def __post_init__(self) -> None:
        for kind, tensors in (("input", self.inputs), ("output", self.outputs)):
            counts = Counter(tensor.name for tensor in tensors)
            twice = sorted(name for name, count in counts.items() if count > 1)
            if twice:
                raise ConfigError(f"model {self.name} has an {kind} twice", got=", ".join(twice))


# --- to text ---


class _Word(str):
    """An enumeration value, which is written without quotes."""

    __slots__ = ()


_Value: TypeAlias = "bool | int | str | _Message"
_Message: TypeAlias = "list[tuple[str, _Value]]"  # a repeated field occurs several times
_ESCAPES = {number: f"\\{number:03o}" for number in (*range(32), 127)}
_ESCAPES |= {ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n", ord("\r"): r"\r", ord("\t"): r"\t"}


def dumps(config: ModelConfig, comment: str = "") -> str:
    """The text of a config.pbtxt, below a comment."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + "".join(f"{line}\n" for line in _lines(_message(config), ""))


def _lines(message: _Message, margin: str) -> Iterator[str]:
    for name, value in message:
        if isinstance(value, list):
            yield f"{margin}{name} {{"
            yield from _lines(value, f"{margin}  ")
            yield f"{margin}}}"
        else:
            yield f"{margin}{name}: {_scalar(value)}"


def _scalar(value: bool | int | str) -> str:
    if isinstance(value, str) and not isinstance(value, _Word):
        return f'"{value.translate(_ESCAPES)}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _message(config: ModelConfig) -> _Message:
    fields: _Message = [
        ("name", config.name),
        ("platform", "ensemble") if config.steps else ("backend", config.backend),
        ("max_batch_size", config.max_batch_size),
    ]
    if not config.steps:  # an ensemble is what its models are
        fields.append(("model_transaction_policy", [("decoupled", config.decoupled)]))
    if config.max_queue_size is not None:
        batching: _Message = [
            ("preferred_batch_size", config.max_batch_size),
            ("max_queue_delay_microseconds", 0),
            ("default_queue_policy", [("max_queue_size", config.max_queue_size)]),
        ]
        fields.append(("dynamic_batching", batching))
    fields += [("input", _tensor(tensor)) for tensor in config.inputs]
    fields += [("output", _tensor(tensor)) for tensor in config.outputs]
    if not config.steps:
        fields.append(("instance_group", [("count", config.num_instances), ("kind", _Word("KIND_CPU"))]))
    fields += [
        ("parameters", [("key", key), ("value", [("string_value", text)])]) for key, text in config.parameters.items()
    ]
    if config.steps:
        fields.append(("ensemble_scheduling", [("step", _step(step)) for step in config.steps]))
    return fields


def _step(step: EnsembleStep) -> _Message:
    maps = [
        (name, [("key", key), ("value", value)])
        for name, tensors in (("input_map", step.inputs), ("output_map", step.outputs))
        for key, value in tensors.items()
    ]
    return [("model_name", step.model_name), ("model_version", -1), *maps]


def _tensor(tensor: Tensor) -> _Message:
    return [
        ("name", tensor.name),
        ("data_type", _Word(f"TYPE_{tensor.data_type}")),
        *(("dims", size) for size in tensor.dims),
        *([("reshape", [])] if tensor.is_scalar else []),
        *([("optional", True)] if tensor.optional else []),
        *([("allow_ragged_batch", True)] if tensor.ragged else []),
    ]
