"""The JSON Schema of a report, which is that of the frozen dataclass that the report is made from."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter


def json_schema(cls: type) -> dict[str, Any]:
    """The schema of what is written for one `cls`. Fields with a default may be missing; others are there always.

    Args:
        cls: a dataclass whose annotations can be resolved at run time, so their names are imported there.
    """
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **TypeAdapter(cls).json_schema()}
