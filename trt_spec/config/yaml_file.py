"""YAML text as plain values that remember their lines."""

from __future__ import annotations

import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from trt_spec.errors import ConfigError

Key = tuple[str | int, ...]
MAX_DEPTH = 32  # far above any config; stops an alias that holds itself


class YamlFile:
    """A parsed mapping: `values` (plain dicts, lists and scalars) and the line of each key.

    Args:
        text: The YAML text.
        source: What messages call it, usually the path.

    Raises:
        ConfigError: Not valid YAML, a duplicate key, empty, or not a mapping; with the line.
    """

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self._tree = self._parse(text)
        self.values: dict[Any, Any] = self._plain(self._tree, 0)

    def line_of(self, key: Key) -> tuple[int | None, bool]:
        """The 1-based line of a key, and whether the key itself is there; else the line of its nearest ancestor."""
        node, line = self._tree, None
        for part in key:
            found = _line_of_item(node, part)
            if found is None:
                return line, False
            line, node = found + 1, node[part]
        return line, True

    def _at(self, line: int | None) -> str:
        return self.source if line is None else f"{self.source}:{line + 1}"

    def _parse(self, text: str) -> CommentedMap:
        try:
            tree = YAML(typ="rt", pure=True).load(text)
        except DuplicateKeyError as error:
            found = re.search(r'duplicate key "(.*?)"', str(error.problem or ""))
            raise ConfigError(
                f"key {found.group(1) if found else '?'!r} is there twice",
                where=self._at(error.problem_mark.line),
                remedy="keep one of the two; the other would be ignored",
            ) from None
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise ConfigError(
                "this is not valid YAML: " + ": ".join(filter(None, (error.context, error.problem))),
                where=self._at(mark.line if mark else None),
                remedy="check the indentation, the quotes and the brackets near that line",
            ) from None
        except (YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:  # of odd tags
            raise ConfigError(f"this is not valid YAML: {error}", where=self.source) from None
        if tree is None:
            raise ConfigError(
                "the config file is empty", where=self.source, expected="at least name and target.checkpoint"
            )
        if not isinstance(tree, CommentedMap):
            raise ConfigError("a run config is a mapping of keys", where=self._at(0), got=text.strip()[:80])
        return tree

    def _plain(self, node: Any, depth: int) -> Any:
        """Drops ruamel's own number and string classes, which confuse equality and strict types."""
        if depth > MAX_DEPTH:
            raise ConfigError("the config is nested too deeply", where=self.source, remedy="no alias may hold itself")
        if isinstance(node, dict):
            return {
                (key if isinstance(key, int) else str(key)): self._plain(value, depth + 1)
                for key, value in node.items()
            }
        if isinstance(node, list):
            return [self._plain(value, depth + 1) for value in node]
        if type(node).__name__ == "ScalarBoolean":  # an anchored true or false is an int to Python
            return bool(node)
        for kind in (bool, int, float, str):
            if isinstance(node, kind):
                return kind(node)
        return node


def _line_of_item(node: Any, part: str | int) -> int | None:
    """0-based line of a member; None where it is absent or came in through a merge key."""
    try:
        if isinstance(node, CommentedMap) and part in node:
            return node.lc.key(part)[0]
        if isinstance(node, CommentedSeq) and isinstance(part, int):
            return node.lc.item(part)[0]
    except (KeyError, TypeError, AttributeError, IndexError):
        return None
    return None


def parse_scalar(text: str) -> Any:
    """One value as YAML 1.2: `5`, `1e-4`, `[1, 2]`, `null`, text.

    Raises:
        ConfigError: Not valid YAML.
    """
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"this value is not valid YAML: {problem}", got=text) from None
