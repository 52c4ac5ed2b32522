"""Tables of the documents about the served model, from the data that it is served by."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trt_spec.report.reference import markdown_table
from trt_spec.triton.compat.tensors import CompatInput
from trt_spec.triton.contract import Input, Output
from trt_spec.triton.metrics import Series
from trt_spec.triton.pbtxt import Tensor


def inputs_table(inputs: Sequence[Input]) -> str:
    """The request's parameters as a Markdown table."""
    rows = [
        (f"`{tensor.name}`", tensor.data_type + (" list" if tensor.is_list else ""), _meaning(tensor))
        for tensor in inputs
    ]
    return markdown_table(("input", "type", "meaning"), rows)


def openai_fields_table(
    honoured: Mapping[str, Sequence[str]], ignored: Mapping[str, str], only: Mapping[str, tuple[Sequence[Any], str]]
) -> str:
    """What the OpenAI front does with each field that it knows, as a Markdown table; see `serve.openai.fields`.

    Args:
        honoured: kind of request to its fields.
        ignored: field to why that is harmless.
        only: field to the values that are taken, and why no others are.
    """
    common = [name for name in next(iter(honoured.values())) if all(name in fields for fields in honoured.values())]
    rows = [(_code(common), "honoured", "every call")]
    for kind, fields in honoured.items():
        own = [name for name in fields if name not in common and name not in only]
        rows.append((_code(own), "honoured", f"{kind}s"))
    rows += [(f"`{name}`", "ignored", why) for name, why in ignored.items()]
    for name, (values, why) in only.items():
        taken = " or ".join(f"`{json.dumps(value)}`" for value in values)
        rows.append((f"`{name}`", f"refused, but {taken}" if taken else "refused", why))
    return markdown_table(("field", "what becomes of it", "where, or why"), rows)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def outputs_table(outputs: Sequence[Output]) -> str:
    """The answer's tensors as a Markdown table."""
    rows = [
        (
            f"`{tensor.name}`",
            tensor.data_type + (" list" if tensor.is_list else " a sequence" if tensor.per_sequence else ""),
            "last" if tensor.final else "every",
            tensor.doc,
        )
        for tensor in outputs
    ]
    return markdown_table(("output", "type", "response", "meaning"), rows)


def compat_inputs_table(inputs: Sequence[CompatInput]) -> str:
    """The parameters of `ensemble` and `tensorrt_llm_bls` as a Markdown table; what is refused says why."""
    rows = [(f"`{item.name}`", _kind(item), _meaning(item)) for item in inputs]
    return markdown_table(("input", "type", "meaning"), rows)


def compat_outputs_table(docs: Mapping[str, str], tensors: Sequence[Tensor]) -> str:
    """The answer's tensors of `ensemble` and `tensorrt_llm_bls` as a Markdown table."""
    rows = [(f"`{tensor.name}`", _kind(tensor), docs[tensor.name]) for tensor in tensors]
    return markdown_table(("output", "type", "meaning"), rows)


def metrics_table(prefix: str, metrics: Sequence[Series]) -> str:
    """The Prometheus series as a Markdown table: counters, then gauges.

    Args:
        prefix: of every name.
    """
    rows = [
        (
            f"`{prefix}{series.name}`",
            "gauge" if series.is_gauge else f"counter by `{series.label}`" if series.label else "counter",
            series.doc,
        )
        for series in sorted(metrics, key=lambda series: series.is_gauge)
    ]
    return markdown_table(("series", "kind", "meaning"), rows)


def _meaning(item: Input | CompatInput) -> str:
    return f"{item.doc.removesuffix('.')}: {item.refused}." if item.refused else item.doc


def _kind(tensor: Tensor) -> str:
    return tensor.data_type + (f" {list(tensor.dims)}" if tensor.dims != (1,) else "")


def replace_block(document: str, name: str, content: str) -> str:
    """`document` with the text between `<!-- name -->` and `<!-- /name -->` replaced.

    Raises:
        ValueError: the document has no such block.
    """
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    replaced, count = pattern.subn(lambda match: f"{match[1]}\n{content}\n{match[2]}", document)
    if count != 1:
        raise ValueError(f"expected one block <!-- {name} -->, found {count}")
    return replaced
