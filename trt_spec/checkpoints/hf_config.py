"""What is read from a Hugging Face config.json alike, whatever the layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_spec.errors import CheckpointError


class UnsupportedSetting(CheckpointError):
    """config.json asks for what the torch target does not compute: `key` for the value `got`."""

    def __init__(self, key: str, **fields: Any) -> None:
        super().__init__(f"config.json: {key} is not supported by the torch target", **fields)
        self.key = key


def read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object; raises CheckpointError where it is unreadable, not JSON (with the line) or no object."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise CheckpointError(f"not valid JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError("cannot be read", where=str(path), got=str(error)) from None
    if not isinstance(loaded, dict):
        raise CheckpointError("not a JSON object", where=str(path), got=type(loaded).__name__)
    return loaded


def write_json(path: Path, value: Any) -> None:
    """Writes JSON for people too: indented, keys in their order, text as it is."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def required_size(config: Mapping[str, Any], key: str, where: str, *, minimum: int = 1) -> int:
    """A whole number of at least `minimum`; raises CheckpointError where the key is absent or has another value."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        expected = "a positive integer" if minimum == 1 else f"an integer of at least {minimum}"
        raise CheckpointError(f"config.json: {key}", where=where, got=value, expected=expected)
    return value


def refuse_unsupported(checks: Mapping[str, tuple[Any, bool, str]], where: str) -> None:
    """Raises UnsupportedSetting for the first key of `checks`: key to (value, whether that is supported, what is)."""
    for key, (value, is_supported, expected) in checks.items():
        if not is_supported:
            raise UnsupportedSetting(
                key,
                where=where,
                got=value,
                expected=expected,
                remedy="use build.target llmapi or tensorrt, or convert the checkpoint",
            )


def rope_parameters(config: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """(base, scaling) from `rope_theta` + `rope_scaling`, or from `rope_parameters` as transformers 5 writes them."""
    merged = _rope_keys(config)
    theta = float(merged.pop("rope_theta", config.get("rope_theta", 10000.0)))
    kind = merged.pop("rope_type", merged.pop("type", "default"))
    merged.pop("type", None)
    return theta, ({} if kind == "default" else {"rope_type": kind, **merged})


def partial_rotary_factor(config: Mapping[str, Any]) -> float:
    """The part of a head that turns with the position, 1.0 where config.json names none."""
    return float(config.get("partial_rotary_factor") or _rope_keys(config).get("partial_rotary_factor") or 1.0)


def _rope_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
