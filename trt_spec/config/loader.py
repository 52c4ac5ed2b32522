"""YAML and `--set` in, `RunConfig` out; and back again.

Precedence: `--set` over the file over the defaults. Every complaint names the key, the file and the line (or the
`--set` it came from) and, for an unknown key, the nearest known one.
"""

from __future__ import annotations

import difflib
import io
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML

from trt_spec.config.explain import Origins, as_config_error
from trt_spec.config.places import checkpoint_path, config_dirs, run_names
from trt_spec.config.rules import CrossFieldError
from trt_spec.config.schema import RunConfig
from trt_spec.config.yaml_file import Key, YamlFile, parse_scalar
from trt_spec.errors import ConfigError, UsageError
from trt_spec.methods import BUILD_TARGETS, METHODS, SPELLINGS, spelled, squeezed

_SUFFIXES = (".yaml", ".yml")


def find(name: str | Path) -> Path:
    """The config file that `name` means: a path, or the name of a run in configs/.

    Raises:
        ConfigError: There is no such file; lists the nearest names.
    """
    path = Path(name)
    file_names = [path.name] if path.suffix in _SUFFIXES else [path.name + suffix for suffix in _SUFFIXES]
    named = [directory / file_name for directory in config_dirs() for file_name in file_names]
    for candidate in [*named, path] if len(path.parts) == 1 else [path]:
        if candidate.is_file():
            return candidate
    near = difflib.get_close_matches(path.stem if path.suffix in _SUFFIXES else path.name, run_names(), n=3)
    raise ConfigError(
        f"no such config file, and no run of that name in configs/: {name}",
        expected="a YAML file, or one of " + (", ".join(run_names()) or "none: configs/ is empty or not here"),
        remedy=f"did you mean {' or '.join(near)}?" if near else None,
    )


def load(path_or_name: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads and checks one run config.

    Args:
        path_or_name: A YAML file, or the name of a run in configs/.
        overrides: `section.key=value` items as `--set` takes them; the value is parsed as YAML.

    Returns:
        The config. Checkpoint paths stay as written: a relative one is taken from the working directory, not from the
        folder of the file.

    Raises:
        ConfigError: Anything wrong with the file, a key or a value, with all findings at once.
        UsageError: An override that is not `key=value`.
    """
    path = find(path_or_name)
    return loads(_read_text(path), source=str(path), overrides=overrides)


def loads(text: str, *, source: str = "<config>", overrides: Sequence[str] = ()) -> RunConfig:
    """As `load`, from text; `source` is what messages call the file."""
    file = YamlFile(text, source)
    overridden = _apply(file.values, overrides)
    return _validate(file.values, Origins(source, file, overridden))


def compose(
    model: str, method: str, draft: str | None = None, target: str = "torch", overrides: Sequence[str] = ()
) -> RunConfig:
    """A run config from the flags of the command line; defaults follow the flags and the overrides together.

    Args:
        model: A checkpoint directory, or the name of one in checkpoints/ (such as smollm2-135m).
        method: Any spelling of a method.
        draft: Directory or name of the draft checkpoint, where the method has one.
        target: The build target.
        overrides: `section.key=value` items, as for `load`.

    Raises:
        UsageError: An unknown method or build target, or a draft too many or too few.
    """
    method = normalise_method(method)
    if target not in BUILD_TARGETS:
        raise UsageError(f"unknown build target {target!r}", expected="one of " + ", ".join(BUILD_TARGETS))
    if METHODS[method].needs_checkpoint and not draft:
        raise UsageError(
            f"method {method} needs a draft checkpoint",
            remedy="give --draft <directory> (make: DRAFT=<directory>), or use method ngram, which needs none",
        )
    if not METHODS[method].needs_checkpoint and draft:
        raise UsageError(f"method {method} takes no draft checkpoint", got=draft, remedy="leave --draft out")
    speculation: dict[str, Any] = {"method": method}
    if draft:
        speculation["checkpoint"] = checkpoint_path(draft)
    values: dict[Any, Any] = {
        "name": run_name(model, method, target),
        "target": {"checkpoint": checkpoint_path(model)},
        "speculation": speculation,
        "build": {"target": target},
    }
    overridden = _apply(values, overrides)
    return _validate(values, Origins("the command line", overrides=overridden))


def load_or_compose(
    model: str, method: str, draft: str | None = None, target: str = "torch", overrides: Sequence[str] = ()
) -> RunConfig:
    """The config in configs/ that these flags mean, else a composed one; then the overrides.

    A file is taken where its name is `run_name(...)` and `model` is a bare name or the path of its target, not that of
    another model of the same name; a `draft` that was given replaces the one in the file.
    """
    draft_override = [f"speculation.checkpoint={json.dumps(checkpoint_path(draft))}"] if draft else []
    try:
        path = find(run_name(model, normalise_method(method), target))
    except ConfigError:
        path = None
    if path is not None:
        found = load(path, draft_override)
        is_name = checkpoint_path(model) != model
        if is_name or os.path.realpath(found.target.checkpoint) == os.path.realpath(model):
            return load(path, [*draft_override, *overrides]) if overrides else found
    return compose(model, method, draft, target, overrides)


def with_latency(config: RunConfig, path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """A run with the `latency` section of another file laid over its own: the floors of one machine.

    Args:
        overrides: what `--set` said; its `latency` keys stay over both.

    Raises:
        ConfigError: The file is unsound, or has other sections.
    """
    file = YamlFile(_read_text(path), str(path))
    others = [str(key) for key in file.values if key != "latency"]
    if others or not isinstance(file.values.get("latency"), dict):
        raise ConfigError(
            "a file of floors has one section, latency",
            where=str(path),
            got=", ".join(others) or "no section latency",
            remedy="keep the rest in the run's own config",
        )
    values = YamlFile(dump(config), "the run config").values
    values["latency"] = {**values["latency"], **file.values["latency"]}
    overridden = _apply(values, [text for text in overrides if text.strip().startswith("latency.")])
    return _validate(values, Origins(str(path), file, overridden))


def normalise_method(text: str) -> str:
    """The method that a spelling means, see `methods.spelled`.

    Raises:
        UsageError: The spelling means no method; names the nearest one.
    """
    found = spelled(text)
    if found is not None:
        return found
    near = difflib.get_close_matches(squeezed(text), SPELLINGS, n=1)
    raise UsageError(
        f"unknown speculation method {text!r}",
        expected="one of " + ", ".join(METHODS),
        remedy=f"did you mean {SPELLINGS[near[0]]}?" if near else None,
    )


def run_name(model: str, method: str, target: str = "torch") -> str:
    """The name of a composed run: <model>-<method>, with the build target behind it unless that is torch."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).resolve().name if model in (".", "..") else Path(model).name)
    stem = stem.strip("-._") or "model"
    return f"{stem}-{method}" + ("" if target == "torch" else f"-{target}")


def dump(config: RunConfig) -> str:
    """YAML text with every key spelled out; `loads(dump(config)) == config`."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 4096
    stream = io.StringIO()
    yaml.dump(config.model_dump(exclude_none=True), stream)
    return stream.getvalue()


def _validate(values: dict[Any, Any], origins: Origins) -> RunConfig:
    try:
        return RunConfig.model_validate(values)
    except (ValidationError, CrossFieldError) as error:
        raise as_config_error(error, origins) from None


def _apply(values: dict[Any, Any], overrides: Sequence[str]) -> dict[Key, str]:
    """Writes `section.key=value` items into `values`, later ones over earlier ones; returns key to text."""
    applied: dict[Key, str] = {}
    for text in overrides:
        key_text, equals, value_text = text.partition("=")
        parts = key_text.strip().split(".")
        if not equals or not all(parts):
            raise UsageError(
                "an override is section.key=value", where=f"--set {text}", remedy="for example --set build.device=cpu"
            )
        key = tuple(int(part) if part.isdigit() else part for part in parts)
        try:
            value = parse_scalar(value_text)
        except ConfigError as error:
            raise UsageError(error.what, where=f"--set {text}", remedy="quote the value") from None
        section = values
        for depth, part in enumerate(key[:-1]):
            if section.get(part) is None:
                section[part] = {}
            section = section[part]
            if not isinstance(section, dict):
                path = ".".join(parts[: depth + 1])
                raise UsageError(f"{path} has no keys below it", where=f"--set {text}", remedy=f"set {path} as a whole")
        section[key[-1]] = value
        applied.pop(key, None)
        applied[key] = text
    return applied


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("the config file is not UTF-8", where=str(path), got=str(error)) from None
    except OSError as error:
        raise ConfigError("the config file cannot be read", where=str(path), got=error.strerror) from None
