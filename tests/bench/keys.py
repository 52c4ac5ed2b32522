"""Keys of a JSON report as a set of paths, so that a test pins them whatever makes the report."""

from __future__ import annotations

from collections.abc import Mapping


def paths(value: object, free: Mapping[str, int | None] | None = None, levels: int = 0) -> set[str]:
    """Paths like "arms.*.speedup".

    Args:
        free: key to how many levels below it have keys that are data (names of arms, batch sizes): these are "*". None:
            what is below is not looked at.
    """
    free = free or {}
    if isinstance(value, list | tuple):
        return set().union(*(paths(item, free, levels) for item in value))
    if not isinstance(value, Mapping):
        return set()
    found: set[str] = set()
    for key, item in value.items():
        name = "*" if levels else key
        depth = levels - 1 if levels else free.get(key, 0)
        below = set() if depth is None else paths(item, free, depth)
        found |= {f"{name}.{path}" for path in below} or {name}
    return found


def under(prefix: str, names: str) -> set[str]:
    """`prefix.name` for each name; without a prefix the names."""
    return {f"{prefix}.{name}" if prefix else name for name in names.split()}
