"""What every section of the run config is: frozen, closed, strict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Strict: "5" is not 5 and true is not 1. Files are written by people; a silent cast hides a slip."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class For:
    """Marks a key that only some build targets read; `rules` refuses it elsewhere.

    Attributes:
        build_targets: those that read it. They need a value where the key has a default of its own for them.
        why: why the others do not.
        unset: the value of a key that is not set.
    """

    build_targets: tuple[str, ...]
    why: str
    unset: Any = None
