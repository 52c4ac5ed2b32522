"""Tables of the documentation, generated from data so that they cannot drift from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trt_spec.config.capabilities import Capability
    from trt_spec.methods import Rule
    from trt_spec.triton.compat.names import CompatInput
    from trt_spec.triton.contract import Input, Output
    from trt_spec.triton.metrics import Series
    from trt_spec.triton.pbtxt import Tensor

Schema = Mapping[str, Any]


def config_reference(schema: Schema) -> str:
    """The run config as a Markdown table, one row per key.

    Args:
        schema: the JSON Schema of the run config, as `trt-spec schema` prints it.
    """
    rows = [
        (f"`{key}`", _type_words(node), default, node.get("description", "")) for key, node, default in _keys(schema)
    ]
    return markdown_table(("key", "type", "default", "meaning"), rows)


def _keys(schema: Schema) -> Iterator[tuple[str, Schema, str]]:
    """(dotted key, its schema, its default in words) of every value; sections are walked into."""
    definitions = schema.get("$defs", {})

    def walk(node: Schema, prefix: str) -> Iterator[tuple[str, Schema, str]]:
        for name, child in node["properties"].items():
            section = _section(child, definitions)
            if section is not None:
                yield from walk(section, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", child, _default_words(child, name in node.get("required", ()))

    yield from walk(schema, "")


def _section(node: Schema, definitions: Schema) -> Schema | None:
    for option in (node, *node.get("anyOf", ())):
        if "$ref" in option:
            return definitions[option["$ref"].rsplit("/", 1)[1]]
    return None


def _default_words(node: Schema, is_required: bool) -> str:
    if is_required:
        return "required"
    if "default" not in node:
        return "{}" if node.get("type") == "object" else "see right"
    return "none" if node["default"] is None else f"`{json.dumps(node['default'])}`"


def _type_words(node: Schema) -> str:
    """The type with its bounds, such as `integer, 1 to 64`."""
    for option in node.get("anyOf", ()):
        if option.get("type") != "null":
            return _type_words(option)
    if "enum" in node:
        return ", ".join(f"`{choice}`" for choice in node["enum"])
    words = node.get("type", "value")
    if words == "array":
        return f"list of {_type_words(node['items'])}"
    if words == "object":
        values = node.get("additionalProperties", {})
        return "map" if isinstance(values, bool) else f"map to {_type_words(values)}"
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f"{words}, {low} to {high}"
    bounds = [
        f"{sign} {node[key]}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in node
    ]
    return ", ".join([words, *bounds])


def methods_table(cells: Sequence[Capability], acceptance: Mapping[str, Rule]) -> str:
    """Methods against build targets, then the acceptance rules, as two Markdown tables.

    Args:
        cells: the capability table; the newest line of versions of each target is shown that offers the method.
        acceptance: what is promised of each acceptance rule.
    """
    targets = list(dict.fromkeys(cell.build_target for cell in cells))
    rows = []
    for method in dict.fromkeys(cell.method for cell in cells):
        of_method = {cell.build_target: cell for cell in cells if cell.method == method}
        is_tested = any(cell.is_tested_here for cell in of_method.values())
        rows.append((f"`{method}`", _yes_or_no(is_tested), *(_requests(of_method[target]) for target in targets)))
    methods = markdown_table(("method", "tested here?", *(f"`{target}`" for target in targets)), rows)
    rules = [
        (f"`{rule}`", _yes_or_no(facts.is_lossless), "all" if facts.serves_sampling else "temperature 0 only")
        for rule, facts in acceptance.items()
    ]
    return methods + "\n" + markdown_table(("acceptance rule", "lossless?", "requests it serves"), rules)


def _requests(cell: Capability) -> str:
    if not cell.is_supported:
        return "no"
    return "all requests" if cell.serves_sampling else "temperature 0"


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


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


def compat_inputs_table(inputs: Sequence[CompatInput], tensors: Sequence[Tensor]) -> str:
    """The parameters of `ensemble` and `tensorrt_llm_bls` as a Markdown table; what is refused says why."""
    kinds = {tensor.name: _kind(tensor) for tensor in tensors}
    rows = [
        (
            f"`{item.name}`",
            kinds[item.name],
            _meaning(item),
        )
        for item in inputs
    ]
    return markdown_table(("input", "type", "meaning"), rows)


def compat_outputs_table(docs: Mapping[str, str], tensors: Sequence[Tensor]) -> str:
    """The answer's tensors of `ensemble` and `tensorrt_llm_bls` as a Markdown table."""
    rows = [(f"`{tensor.name}`", _kind(tensor), docs[tensor.name]) for tensor in tensors]
    return markdown_table(("output", "type", "meaning"), rows)


def metrics_table(
    prefix: str, counters: Sequence[Series], gauges: Sequence[Series], more: Sequence[Sequence[str]]
) -> str:
    """The Prometheus series as a Markdown table.

    Args:
        prefix: of every name.
        counters, gauges: of the engine.
        more: name, labels and meaning of counters with labels of their own.
    """
    rows = [(f"`{prefix}{series.name}`", "counter", series.doc) for series in counters]
    rows += [(f"`{prefix}{name}`", f"counter by {labels}", doc) for name, labels, doc in more]
    rows += [(f"`{prefix}{series.name}`", "gauge", series.doc) for series in gauges]
    return markdown_table(("series", "kind", "meaning"), rows)


def _meaning(item: Input | CompatInput) -> str:
    return f"{item.doc.removesuffix('.')}: {item.refused}." if item.refused else item.doc


def _kind(tensor: Tensor) -> str:
    return tensor.data_type + (f" {list(tensor.dims)}" if tensor.dims != (1,) else "")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(_cell(str(cell)) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Pipes escaped, and `<name>` kept from being read as HTML."""
    return re.sub(r"<(?=[A-Za-z])", "&lt;", text.replace("|", "\\|"))


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
