"""What every section of the run config is: frozen, closed, strict."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Strict: "5" is not 5 and true is not 1. Files are written by people; a silent cast hides a slip."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
