"""What the layouts of native families read from a Hugging Face config.json alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trt_spec.errors import CheckpointError


def required_size(config: Mapping[str, Any], key: str, where: str, *, minimum: int = 1) -> int:
    """A whole number of at least `minimum`.

    Raises:
        CheckpointError: the key is absent, or its value is something else.
    """
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        expected = "a positive integer" if minimum == 1 else f"an integer of at least {minimum}"
        raise CheckpointError(f"config.json: {key}", where=where, got=value, expected=expected)
    return value


def refuse_unsupported(config: Mapping[str, Any], checks: Mapping[str, tuple[bool, str]], where: str) -> None:
    """Refuses the first key whose value this runtime does not compute.

    Args:
        checks: key to (whether its value is supported, what would be).

    Raises:
        CheckpointError: names the key, its value and what is supported.
    """
    for key, (is_supported, expected) in checks.items():
        if not is_supported:
            raise CheckpointError(
                f"config.json: {key} is not supported by the torch target",
                where=where,
                got=config.get(key),
                expected=expected,
                remedy="use build.target llmapi or tensorrt, or convert the checkpoint",
            )


def rope_parameters(config: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """(base, scaling) from `rope_theta` + `rope_scaling`, or from `rope_parameters` as transformers 5 writes them."""
    merged = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(merged.pop("rope_theta", config.get("rope_theta", 10000.0)))
    kind = merged.pop("rope_type", merged.pop("type", "default"))
    merged.pop("type", None)
    return theta, ({} if kind == "default" else {"rope_type": kind, **merged})
