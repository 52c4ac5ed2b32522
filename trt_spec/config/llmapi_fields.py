"""Which fields TensorRT-LLM's LLM API has in which version, and a check of arguments against them.

The table is `data/llmapi_fields.json`; its sources, and what in it is inferred, stand in its head. TensorRT-LLM forbids
unknown fields, so one that belongs to another version stops the server minutes later and without naming a remedy.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any

from packaging.version import Version

from trt_spec.config.versions import line_of
from trt_spec.errors import CapabilityError

# How the YAML names a class, and the section of it that holds the class.
SPECULATIVE, KV_CACHE, LLM_ARGS = "speculative_config", "kv_cache_config", "llm_args"
LINES = ("1.0", "1.1", "1.2", "1.3-early", "1.3-late", "1.4")
# Names of other versions that a class still takes.
_ALIASES = {"speculative_model_dir": "speculative_model"}


@functools.cache
def _data() -> dict[str, Any]:
    return json.loads((resources.files("trt_spec.config") / "data" / "llmapi_fields.json").read_text(encoding="utf-8"))


def decoding_types(version: Version) -> tuple[str, ...]:
    """The values of `decoding_type` that a version reads."""
    return tuple(_data()["tables"][line_of(version)]["decoding_types"])


def speculative_fields(version: Version, decoding_type: str) -> dict[str, dict[str, str]]:
    """Fields of `speculative_config` for one `decoding_type`: name -> type and, where there is one, constraint.

    Raises:
        KeyError: this project does not write that type.
    """
    table = _data()["tables"][line_of(version)]
    return {**table["base"], **table["own"][decoding_type]}


def section_fields(section: str, version: Version) -> dict[str, dict[str, str]]:
    """Fields of the LLM's own arguments (`llm_args`) or of `kv_cache_config` that a version has."""
    line = line_of(version)
    return {name: field for name, field in _data()[section].items() if line in _lines(field)}


def _lines(field: Mapping[str, str]) -> tuple[str, ...]:
    """The lines of versions that have a field of a section."""
    first, last = field.get("since", LINES[0]), field.get("until", LINES[-1])
    return LINES[LINES.index(first) : LINES.index(last) + 1]


def has_field(version: Version, decoding_type: str, name: str) -> bool:
    """Whether `speculative_config` takes a field, aliases included."""
    fields = speculative_fields(version, decoding_type)
    return name in fields or _ALIASES.get(name) in fields


def check(arguments: Mapping[str, Any], version: Version) -> None:
    """Checks LLM arguments field by field: that the version has each, and that its value is of the field's type.

    Args:
        arguments: what `LLM(**arguments)` would get, as plain YAML values.
        version: of TensorRT-LLM.

    Raises:
        CapabilityError: with every field that the version does not take, and the versions that do.
    """
    problems = list(_section_problems(arguments, section_fields(LLM_ARGS, version), "", version))
    if isinstance(arguments.get(KV_CACHE), Mapping):
        problems += _section_problems(arguments[KV_CACHE], section_fields(KV_CACHE, version), f"{KV_CACHE}.", version)
    speculative = arguments.get(SPECULATIVE)
    if speculative is not None:
        problems += _speculative_problems(speculative, version)
    if problems:
        raise CapabilityError(
            f"TensorRT-LLM {version} does not take these arguments",
            where="build.tensorrt_llm_version",
            details=problems,
            remedy="pin a version that has them, or remove what asks for them",
        )


def _speculative_problems(section: Mapping[str, Any], version: Version) -> Iterator[str]:
    decoding_type, known = section.get("decoding_type"), decoding_types(version)
    if decoding_type not in known:
        others = [line for line in LINES if decoding_type in _data()["tables"][line]["decoding_types"]]
        yield (
            f"{SPECULATIVE}.decoding_type {decoding_type}: "
            + (f"only in {', '.join(others)}" if others else "in no version that was read")
            + f"; {version} has {', '.join(known)}"
        )
        return
    fields = dict(speculative_fields(version, str(decoding_type)))
    fields |= {alias: fields[name] for alias, name in _ALIASES.items() if name in fields}
    rest = {name: value for name, value in section.items() if name != "decoding_type"}
    yield from _section_problems(rest, fields, f"{SPECULATIVE}.", version)


def _section_problems(
    given: Mapping[str, Any], fields: Mapping[str, Mapping[str, str]], prefix: str, version: Version
) -> Iterator[str]:
    for name, value in given.items():
        if name not in fields:
            yield f"{prefix}{name}: {_whereabouts(name, fields, prefix, version)}"
        elif not has_type(value, fields[name]["type"]):
            yield f"{prefix}{name}: {value!r} is not of type {fields[name]['type']}"


def _whereabouts(name: str, fields: Mapping[str, object], prefix: str, version: Version) -> str:
    section = prefix.rstrip(".") or LLM_ARGS
    lines = [line for line in LINES if line != line_of(version) and _has(section, name, line)]
    if lines:
        return f"not in {version}; in {', '.join(lines)}"
    near = difflib.get_close_matches(name, fields, 1)
    return "no such field" + (f"; did you mean {near[0]}?" if near else "")


def _has(section: str, name: str, line: str) -> bool:
    """Whether a line of versions has a field of a section; of `speculative_config` in any of its classes."""
    if section == SPECULATIVE:
        table = _data()["tables"][line]
        return any(name in fields for fields in (table["base"], *table["own"].values()))
    return name in _data()[section] and line in _lines(_data()[section][name])


# --- types, as the sources spell them ---


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: Any, item_type: str) -> bool:
    return isinstance(value, list) and all(has_type(item, item_type) for item in value)


_SIMPLE: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": _is_int,
    "PositiveInt": lambda value: _is_int(value) and value > 0,
    "NonNegativeInt": lambda value: _is_int(value) and value >= 0,
    "float": _is_number,
    "NonNegativeFloat": lambda value: _is_number(value) and value >= 0,
    "str": lambda value: isinstance(value, str),
    "Path": lambda value: isinstance(value, str),
    "List[int]": lambda value: _is_list(value, "int"),
    "Set[int]": lambda value: _is_list(value, "int") and len(set(value)) == len(value),
    "List[List[int]]": lambda value: _is_list(value, "List[int]"),
    "dict[int,int]": lambda value: isinstance(value, dict) and all(map(_is_int, [*value, *value.values()])),
}


def has_type(value: Any, text: str) -> bool:
    """Whether a YAML value is of a type such as `Optional[dict[int,int]]`; upstream's own classes are mappings here."""
    if match := re.fullmatch(r"Optional\[(.*)\]", text):
        return value is None or has_type(value, match[1])
    if match := re.fullmatch(r"Union\[(.*)\]", text):
        return any(has_type(value, part) for part in match[1].split(","))
    if match := re.fullmatch(r"Literal\[(.*)\]", text):
        return value in [part.strip("'") for part in match[1].split(",")]
    if text in _SIMPLE:
        return _SIMPLE[text](value)
    if "|" in text:
        return any(has_type(value, part) for part in text.split("|"))
    if text.startswith("'"):
        return value == text.strip("'")
    return isinstance(value, Mapping)
