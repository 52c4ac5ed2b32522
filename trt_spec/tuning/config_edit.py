"""The schedule in a run config: as a config, and as the file that it came from, comments and all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from trt_spec.atomic import write_text
from trt_spec.config import capabilities, loader
from trt_spec.config.schema import RunConfig
from trt_spec.engines.llmapi import args as llmapi_args
from trt_spec.errors import ConfigError
from trt_spec.tuning.cost_model import CostsSection


def validated(values: Mapping[str, Any]) -> RunConfig:
    """A config from plain values.

    Raises:
        ConfigError: it is not sound.
    """
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(first["msg"], where=".".join(map(str, first["loc"]))) from None


def with_schedule(config: RunConfig, schedule: Mapping[int, int]) -> RunConfig:
    """The same run with a schedule, and with its first length as the longest; one length alone needs no schedule.

    Raises:
        ConfigError: the run cannot have it; a tree gives its own length, for example.
    """
    values = config.model_dump(exclude_none=True)
    values["speculation"] |= {"max_draft_len": schedule[1], "draft_len_schedule": dict(schedule)}
    if len(schedule) == 1:
        del values["speculation"]["draft_len_schedule"]
    return validated(values)


def rewritten(text: str, schedule: Mapping[int, int], costs: CostsSection | None = None) -> str:
    """The text of a config file with the schedule in it; everything else stays as it was written.

    Args:
        costs: the section speculation.costs, where the run adapts its drafts; None leaves that as it is.
    """
    yaml = YAML(typ="rt", pure=True)
    yaml.width, yaml.preserve_quotes = 4096, True
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree = yaml.load(text)
    section = tree.setdefault("speculation", CommentedMap())
    section["max_draft_len"] = schedule[1]
    section["draft_len_schedule"] = _on_one_line(schedule)
    if len(schedule) == 1:
        del section["draft_len_schedule"]
    if costs is not None:
        section["costs"] = _on_one_line({"step": _on_one_line(costs.step), "draft_level": costs.draft_level})
    stream = io.StringIO()
    yaml.dump(tree, stream)
    return stream.getvalue()


def snippet(schedule: Mapping[int, int]) -> str:
    """The lines to add by hand."""
    steps = ", ".join(f"{start}: {length}" for start, length in schedule.items())
    line = f"  draft_len_schedule: {{{steps}}}\n" if len(schedule) > 1 else ""
    return f"speculation:\n  max_draft_len: {schedule[1]}\n{line}"


def write(path: Path, schedule: Mapping[int, int], costs: CostsSection | None = None) -> RunConfig:
    """Puts the schedule into a config file, and returns what it means now.

    Raises:
        ConfigError, CapabilityError: the run or its build target cannot have it; the file is as it was.
    """
    text = rewritten(path.read_text(encoding="utf-8-sig"), schedule, costs)
    config = loader.loads(text, source=str(path))
    capabilities.check(config)
    if config.build.target == "llmapi":
        llmapi_args.llm_args(config)  # which knows what each version makes of a schedule
    write_text(path, text)
    return config


def _on_one_line(values: Mapping[Any, Any]) -> CommentedMap:
    made = CommentedMap(values)
    made.fa.set_flow_style()
    return made
