"""A config.pbtxt as Triton reads it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2


def parsed(text: str) -> model_config_pb2.ModelConfig:
    """The message of a text; raises where it is not one."""
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def parameters_of(config: model_config_pb2.ModelConfig) -> dict[str, str]:
    """A model's parameters, in the order of their names."""
    return {key: config.parameters[key].string_value for key in sorted(config.parameters)}


def args_of(config: model_config_pb2.ModelConfig, model_dir: str) -> dict[str, str]:
    """What Triton hands to a Python model's `initialize`."""
    text = json_format.MessageToJson(config, preserving_proto_field_name=True)
    return {"model_config": text, "model_name": config.name, "model_repository": model_dir}


def configs_of(files: dict[str, str]) -> dict[str, model_config_pb2.ModelConfig]:
    """Every model of a rendered repository by its name."""
    return {name.split("/")[0]: parsed(text) for name, text in files.items() if name.endswith(".pbtxt")}


def compare_summary(path: Path, summary: dict[str, Any]) -> None:
    """Against a golden file, whatever the order of keys: the message has none."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(summary, indent=1) + "\n")
    assert summary == json.loads(path.read_text())
