"""What is wrong with a run config, in words: pydantic's findings and broken rules with key, place and nearest key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from trt_spec.config.foreign_keys import FOREIGN_KEYS
from trt_spec.config.rules import CrossFieldError
from trt_spec.config.schema import RunConfig
from trt_spec.config.yaml_file import Key, YamlFile
from trt_spec.errors import ConfigError


class KnownKey(NamedTuple):
    """One key of the run config, as the config reference shows it."""

    key: str
    field: FieldInfo
    is_section: bool


def known_keys(model: type[BaseModel] = RunConfig, prefix: tuple[str, ...] = ()) -> Iterator[KnownKey]:
    """Every key of the run config, sections before their members, in the order of the schema."""
    for name, field in model.model_fields.items():
        section = _section_of(field)
        yield KnownKey(".".join((*prefix, name)), field, section is not None)
        if section is not None:
            yield from known_keys(section, (*prefix, name))


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


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


class Finding(NamedTuple):
    """One thing that is wrong: `where` as `Origins.of` gives it, the rest as in `TrtSpecError`."""

    key: str
    where: str
    message: str
    got: str | None = None
    expected: str | None = None
    remedy: str | None = None

    def line(self) -> str:
        """All of it in one line, for a list of several."""
        text = f"{self.where}: {self.message}"
        extras = [f"{label} {value}" for label, value in (("got", self.got), ("expected", self.expected)) if value]
        if extras:
            text += f" ({'; '.join(extras)})"
        return text + (f"; {self.remedy}" if self.remedy else "")


def as_config_error(error: ValidationError | CrossFieldError, origins: Origins) -> ConfigError:
    """One `ConfigError` with every finding."""
    if isinstance(error, CrossFieldError):
        findings = [
            Finding(p.key, origins.of(_split(p.key)), f"{p.key}: {p.message}", remedy=p.remedy) for p in error.problems
        ]
    else:
        items = [item for item in error.errors(include_url=False) if item["type"] != "default_factory_not_called"]
        findings = [_explain(item, origins) for item in items]
    if len(findings) == 1:
        only = findings[0]
        return ConfigError(
            only.message, where=only.where, got=only.got, expected=only.expected, remedy=only.remedy, code="config"
        )
    return ConfigError(f"{len(findings)} problems in the run config", details=[finding.line() for finding in findings])


def _split(key: str) -> Key:
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def _explain(item: Mapping[str, Any], origins: Origins) -> Finding:
    location: Key = tuple(part for part in item["loc"] if part != "[key]")
    key, where = ".".join(map(str, location)), origins.of(location)
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return Finding(key, where, f"unknown key {key}", remedy=nearest_key(key))
    if kind == "missing":
        return Finding(key, where, f"{key} is missing", expected=_description(key), remedy=f"add {key}")
    got = _short(item.get("input"))
    if kind == "literal_error":
        near = difflib.get_close_matches(str(item.get("input")).lower(), _choices(context["expected"]), n=1)
        remedy = f"did you mean {near[0]}?" if near else None
        return Finding(key, where, f"{key}: not a known choice", got=got, expected=context["expected"], remedy=remedy)
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return Finding(key, where, f"{key} is a section", got=got, expected="keys below it, or leave it out")
    remedy = None
    if kind == "string_type" and isinstance(item.get("input"), int | float):
        remedy = "put it in quotes"  # YAML reads 1.10 as the number 1.1
        if where.startswith("--set") and (examples := _examples(key)):  # those of a command line are the shell's
            remedy = f"write all of it, such as {examples[0]}"
    if kind == "string_pattern_mismatch" and (examples := _examples(key)):
        return Finding(key, where, f"{key} cannot take this value", got, f"such as {' or '.join(examples)}")
    return Finding(key, where, f"{key} cannot take this value", got, _expectation(item["msg"]), remedy)


def nearest_key(key: str) -> str:
    """A remedy for an unknown key: the key that was most likely meant, or the ones that exist beside it."""
    section, _, name = key.rpartition(".")
    if name in FOREIGN_KEYS:
        return FOREIGN_KEYS[name]
    known = [entry.key for entry in known_keys()]
    siblings = [entry for entry in known if entry.rpartition(".")[0] == section]
    last_words = {entry.rpartition(".")[2]: entry for entry in reversed(known)}
    near = difflib.get_close_matches(name, [entry.rpartition(".")[2] for entry in siblings], n=1, cutoff=0.6)
    if near:
        return f"did you mean {section + '.' if section else ''}{near[0]}?"
    near = difflib.get_close_matches(name, last_words, n=1, cutoff=0.75)
    if near:
        return f"did you mean {last_words[near[0]]}?"
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    names = ", ".join(entry.rpartition(".")[2] for entry in siblings)
    return f"known keys here: {names}" if names else "remove it"


def _description(key: str) -> str | None:
    return next((entry.field.description for entry in known_keys() if entry.key == key), None)


def _examples(key: str) -> list[str]:
    return next((entry.field.examples or [] for entry in known_keys() if entry.key == key), [])


def _choices(expected: str) -> list[str]:
    """pydantic's "'a', 'b' or 'c'" as a list."""
    return [part.strip(" '\"") for part in expected.replace(" or ", ",").split(",")]


def _expectation(message: str) -> str:
    """pydantic's "Input should be a valid integer" as "a valid integer"."""
    for prefix in ("Input should be ", "String should ", "Value error, ", "Tuple should ", "Dictionary should "):
        if message.startswith(prefix):
            return message[len(prefix) :]
    return message


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
