"""The schedule in the file that a run config came from, comments and all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from trt_spec.atomic import write_text
from trt_spec.config import capabilities, loader
from trt_spec.config.drafting import CostsConfig
from trt_spec.config.schema import RunConfig
from trt_spec.engines.llmapi import args as llmapi_args


def rewritten(text: str, schedule: Mapping[int, int], costs: CostsConfig | None = None) -> str:
    """The text of a config file with the schedule in it; everything else stays as it was written.

    The first length becomes the longest one; one length alone needs no schedule.

    Args:
        text: "" gives the lines to add by hand.
        costs: speculation.costs, where the run adapts its drafts; None leaves that as it is.
    """
    yaml = YAML(typ="rt", pure=True)
    yaml.width, yaml.preserve_quotes = 4096, True
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree = yaml.load(text) or CommentedMap()
    section = tree.setdefault("speculation", CommentedMap())
    section["max_draft_len"] = schedule[1]
    if len(schedule) > 1:
        section["draft_len_schedule"] = _on_one_line(schedule)
    else:
        section.pop("draft_len_schedule", None)
    if costs is not None:
        section["costs"] = _on_one_line({"step": _on_one_line(costs.step), "draft_level": costs.draft_level})
    stream = io.StringIO()
    yaml.dump(tree, stream)
    return stream.getvalue()


def write(path: Path, schedule: Mapping[int, int], costs: CostsConfig | None = None) -> RunConfig:
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
