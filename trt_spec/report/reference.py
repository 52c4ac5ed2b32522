"""The tables that `trt-spec schema` prints: the keys of the run config, and what is offered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trt_spec.config.capabilities import Capability
    from trt_spec.config.explain import KnownKey
    from trt_spec.methods import Rule


def config_reference(keys: Iterable[KnownKey]) -> str:
    """The run config as a Markdown table, one row per key that is no section."""
    rows = [
        (f"`{known.key}`", _type_words(known.schema), _default_words(known), known.schema.get("description", ""))
        for known in keys
        if not known.is_section
    ]
    return markdown_table(("key", "type", "default", "meaning"), rows)


def _default_words(known: KnownKey) -> str:
    node = known.schema
    if known.is_required:
        return "required"
    if "default" not in node:
        return "{}" if node.get("type") == "object" else "see right"
    return "none" if node["default"] is None else f"`{json.dumps(node['default'])}`"


def _type_words(node: Mapping[str, Any]) -> str:
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


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(_cell(str(cell)) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Pipes escaped, and `<name>` kept from being read as HTML."""
    return re.sub(r"<(?=[A-Za-z])", "&lt;", text.replace("|", "\\|"))
