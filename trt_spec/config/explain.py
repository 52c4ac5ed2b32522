"""What is wrong with a run config, in words: pydantic's findings and broken rules with key, place and nearest key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from pydantic import ValidationError

from trt_spec.config.foreign_keys import FOREIGN_KEYS
from trt_spec.config.rules import CrossFieldError
from trt_spec.config.schema import json_schema
from trt_spec.config.yaml_file import Key, YamlFile
from trt_spec.errors import ConfigError


class KnownKey(NamedTuple):
    """One key of the run config, with its JSON Schema."""

    key: str
    schema: Mapping[str, Any]
    is_section: bool
    is_required: bool


@cache
def known_keys() -> tuple[KnownKey, ...]:
    """Every key of the run config, sections before their members, in the order of the schema."""
    whole = json_schema()

    def walk(section: Mapping[str, Any], prefix: str = "") -> Iterator[KnownKey]:
        for name, child in section["properties"].items():
            refs = [option["$ref"] for option in (child, *child.get("anyOf", ())) if "$ref" in option]
            yield KnownKey(f"{prefix}{name}", child, bool(refs), name in section.get("required", ()))
            if refs:
                yield from walk(whole["$defs"][refs[0].rsplit("/", 1)[1]], f"{prefix}{name}.")

    return tuple(walk(whole))


class Origins:
    """Where each value came from: a line of the file, an override, or neither (a default)."""

    def __init__(self, source: str, file: YamlFile | None = None, overrides: Mapping[Key, str] | None = None) -> None:
        self._source, self._file, self._overrides = source, file, dict(overrides or {})

    def of(self, key: Key) -> str:
        """ "file:line" or "--set key=value" of a key, or of the nearest thing that was written."""
        for overridden, text in reversed(self._overrides.items()):
            if overridden == key[: len(overridden)]:
                return f"--set {text}"
        line, is_there = self._file.line_of(key) if self._file else (None, False)
        if not is_there and line is None:  # not even its section is in the file: an override may have brought it
            for overridden, text in reversed(self._overrides.items()):
                if overridden[:1] == key[:1]:
                    return f"--set {text}"
        return self._source if line is None else f"{self._source}:{line}"


def as_config_error(error: ValidationError | CrossFieldError, origins: Origins) -> ConfigError:
    """One `ConfigError` with every finding."""
    if isinstance(error, CrossFieldError):
        found = [
            ConfigError(f"{p.key}: {p.message}", where=origins.of(_split(p.key)), remedy=p.remedy)
            for p in error.problems
        ]
    else:
        items = [item for item in error.errors(include_url=False) if item["type"] != "default_factory_not_called"]
        found = [_explain(item, origins) for item in items]
    if len(found) == 1:
        return found[0]
    return ConfigError(f"{len(found)} problems in the run config", details=[_line(one) for one in found])


def _line(error: ConfigError) -> str:
    """All of it in one line, for a list of several."""
    extras = [f"{label} {value}" for label, value in (("got", error.got), ("expected", error.expected)) if value]
    words = f" ({'; '.join(extras)})" if extras else ""
    return f"{error.where}: {error.what}{words}" + (f"; {error.remedy}" if error.remedy else "")


def _split(key: str) -> Key:
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def _explain(item: Mapping[str, Any], origins: Origins) -> ConfigError:
    """What pydantic found, in our words."""
    location: Key = tuple(part for part in item["loc"] if part != "[key]")
    key, where = ".".join(map(str, location)), origins.of(location)
    kind, value, schema = (
        item["type"],
        item.get("input"),
        next((known.schema for known in known_keys() if known.key == key), {}),
    )
    if kind == "extra_forbidden":
        return ConfigError(f"unknown key {key}", where=where, remedy=nearest_key(key))
    if kind == "missing":
        expected = schema.get("description")
        return ConfigError(f"{key} is missing", where=where, expected=expected, remedy=f"add {key}")
    what, expected, remedy = f"{key} cannot take this value", _BEFORE_EXPECTED.sub("", item["msg"]), None
    examples = schema.get("examples")
    if kind == "literal_error":
        what, expected = f"{key}: not a known choice", item["ctx"]["expected"]
        near = difflib.get_close_matches(str(value).lower(), re.findall(r"'([^']*)'", expected), n=1)
        remedy = f"did you mean {near[0]}?" if near else None
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        what, expected = f"{key} is a section", "keys below it, or leave it out"
    elif kind == "string_type" and isinstance(value, int | float):
        remedy = "put it in quotes"  # YAML reads 1.10 as the number 1.1
        if where.startswith("--set") and examples:  # those of a command line are the shell's
            remedy = f"write all of it, such as {examples[0]}"
    elif kind == "string_pattern_mismatch" and examples:
        expected = f"such as {' or '.join(examples)}"
    return ConfigError(what, where=where, got=_short(value), expected=expected, remedy=remedy)


def nearest_key(key: str) -> str:
    """A remedy for an unknown key: the key that was most likely meant, or the ones that exist beside it."""
    section, _, name = key.rpartition(".")
    if name in FOREIGN_KEYS:
        return FOREIGN_KEYS[name]
    every = {known.key: known.key for known in known_keys()}
    by_name = {known.rpartition(".")[2]: known for known in reversed(every)}
    siblings = {known.rpartition(".")[2]: known for known in every if known.rpartition(".")[0] == section}
    for meant, given, cutoff in ((siblings, name, 0.6), (by_name, name, 0.75), (every, key, 0.6)):
        near = difflib.get_close_matches(given, meant, n=1, cutoff=cutoff)
        if near:
            return f"did you mean {meant[near[0]]}?"
    return f"known keys here: {', '.join(siblings)}" if siblings else "remove it"


# pydantic's "Input should be a valid integer" is "a valid integer" here.
_BEFORE_EXPECTED = re.compile("^(Input should be|String should|Value error,|Tuple should|Dictionary should) ")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
