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
from trt_spec.methods import LLMAPI_LINES

# How the YAML names a class, and the section of it that holds the class.
SPECULATIVE, KV_CACHE, LLM_ARGS = "speculative_config", "kv_cache_config", "llm_args"
# Names of other versions that a class still takes.
_ALIASES = {"speculative_model_dir": "speculative_model"}
Fields = Mapping[str, Mapping[str, str]]  # name to type and, where there is one, constraint


@functools.cache
def _data() -> Mapping[str, Any]:
    return json.loads((resources.files("trt_spec.config") / "data" / "llmapi_fields.json").read_text(encoding="utf-8"))


def decoding_types(version: Version) -> tuple[str, ...]:
    """The values of `decoding_type` that a version reads."""
    return tuple(_data()["tables"][line_of(version)]["decoding_types"])


def speculative_fields(version: Version, decoding_type: str) -> Fields:
    """Fields of `speculative_config` for one `decoding_type`.

    Raises:
        KeyError: this project does not write that type.
    """
    table = _data()["tables"][line_of(version)]
    return {**table["base"], **table["own"][decoding_type]}


def section_fields(section: str, line: str) -> Fields:
    """Fields of a section that a line of versions has; of `speculative_config` those of all its classes."""
    if section == SPECULATIVE:
        table = _data()["tables"][line]
        return {name: field for fields in (table["base"], *table["own"].values()) for name, field in fields.items()}
    fields, at = _data()[section], LLMAPI_LINES.index
    first, last = LLMAPI_LINES[0], LLMAPI_LINES[-1]
    return {
        name: field
        for name, field in fields.items()
        if at(field.get("since", first)) <= at(line) <= at(field.get("until", last))
    }


def check(arguments: Mapping[str, Any], version: Version) -> None:
    """Checks LLM arguments field by field: that the version has each, and that its value is of the field's type.

    Args:
        arguments: what `LLM(**arguments)` would get, as plain YAML values.
        version: of TensorRT-LLM.

    Raises:
        CapabilityError: with every field that the version does not take, and the versions that do.
    """
    problems = list(_section_problems(LLM_ARGS, arguments, section_fields(LLM_ARGS, line_of(version)), version))
    if isinstance(arguments.get(KV_CACHE), Mapping):
        fields = section_fields(KV_CACHE, line_of(version))
        problems += _section_problems(KV_CACHE, arguments[KV_CACHE], fields, version)
    if arguments.get(SPECULATIVE) is not None:
        problems += _speculative_problems(arguments[SPECULATIVE], version)
    if problems:
        raise CapabilityError(
            f"TensorRT-LLM {version} does not take these arguments",
            where="build.tensorrt_llm_version",
            details=problems,
            remedy="pin a version that has them, or remove what asks for them",
        )


def _speculative_problems(given: Mapping[str, Any], version: Version) -> Iterator[str]:
    decoding_type, known = given.get("decoding_type"), decoding_types(version)
    if decoding_type not in known:
        others = [line for line in LLMAPI_LINES if decoding_type in _data()["tables"][line]["decoding_types"]]
        where = f"only in {', '.join(others)}" if others else "in no version that was read"
        yield f"{SPECULATIVE}.decoding_type {decoding_type}: {where}; {version} has {', '.join(known)}"
        return
    fields = speculative_fields(version, str(decoding_type))
    aliases = {alias: fields[name] for alias, name in _ALIASES.items() if name in fields}
    rest = {name: value for name, value in given.items() if name != "decoding_type"}
    yield from _section_problems(SPECULATIVE, rest, {**fields, **aliases}, version)


def _section_problems(section: str, given: Mapping[str, Any], fields: Fields, version: Version) -> Iterator[str]:
    prefix = "" if section == LLM_ARGS else f"{section}."
    for name, value in given.items():
        if name in fields:
            if not has_type(value, fields[name]["type"]):
                yield f"{prefix}{name}: {value!r} is not of type {fields[name]['type']}"
            continue
        lines = [one for one in LLMAPI_LINES if one != line_of(version) and name in section_fields(section, one)]
        near = difflib.get_close_matches(name, fields, 1)
        if lines:
            yield f"{prefix}{name}: not in {version}; in {', '.join(lines)}"
        else:
            yield f"{prefix}{name}: no such field" + (f"; did you mean {near[0]}?" if near else "")


# Types as the sources spell them. YAML's true is no number.
_SIMPLE: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: type(value) is bool,
    "int": lambda value: type(value) is int,
    "PositiveInt": lambda value: type(value) is int and value > 0,
    "NonNegativeInt": lambda value: type(value) is int and value >= 0,
    "float": lambda value: type(value) in (int, float),
    "NonNegativeFloat": lambda value: type(value) in (int, float) and value >= 0,
    "str": lambda value: isinstance(value, str),
    "Path": lambda value: isinstance(value, str),
    "dict[int,int]": lambda value: isinstance(value, dict) and all(type(n) is int for n in [*value, *value.values()]),
}


def has_type(value: Any, text: str) -> bool:
    """Whether a YAML value is of a type such as `Optional[dict[int,int]]`; upstream's own classes are mappings here."""
    if text in _SIMPLE:
        return _SIMPLE[text](value)
    if match := re.fullmatch(r"Optional\[(.*)\]", text):
        return value is None or has_type(value, match[1])
    if match := re.fullmatch(r"Union\[(.*)\]", text):
        return any(has_type(value, part) for part in match[1].split(","))
    if match := re.fullmatch(r"Literal\[(.*)\]", text):
        return value in [part.strip("'") for part in match[1].split(",")]
    if match := re.fullmatch(r"(List|Set)\[(.*)\]", text):
        is_list = isinstance(value, list) and all(has_type(item, match[2]) for item in value)
        return is_list and (match[1] == "List" or len(set(value)) == len(value))
    if "|" in text:
        return any(has_type(value, part) for part in text.split("|"))
    if text.startswith("'"):
        return value == text.strip("'")
    return isinstance(value, Mapping)
