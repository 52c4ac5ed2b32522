"""The JSON Schema of a report, which is that of the frozen dataclass that the report is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import TypeAdapter


def json_schema(cls: type) -> dict[str, Any]:
    """The schema of what is written for one `cls`. Fields with a default may be missing; others are there always.

    Args:
        cls: a dataclass whose annotations can be resolved at run time, so their names are imported there.
    """
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **TypeAdapter(cls).json_schema()}


def as_json(value: Any) -> Any:
    """A report as `json.dumps` takes it; what `json_schema` describes.

    A field that is None is left out where None is its default, and written where it has none.
    """
    if is_dataclass(value):
        named = ((one, getattr(value, one.name)) for one in fields(value))
        return {one.name: as_json(item) for one, item in named if item is not None or one.default is not None}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value
