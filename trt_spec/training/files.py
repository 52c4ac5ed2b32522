"""Files that a training run reads and writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from trt_spec.errors import RequestError


def checkpoint_digest(directory: Path) -> str:
    """A short name for a checkpoint: SHA-256 over the files that decide what it computes and how it is prompted."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.name in _DECISIVE or path.suffix in (".safetensors", ".bin", ".pt"):
            digest.update(path.name.encode())
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:12]


_DECISIVE = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, value) of every line that is not blank.

    Raises:
        RequestError: the file cannot be read, or a line is not JSON.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    try:
                        yield number, json.loads(line)
                    except ValueError as error:
                        raise RequestError("this line is not JSON", where=f"{path}:{number}", got=str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("the file cannot be read", where=str(path), got=str(error)) from None


def save_checkpoint(
    path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, object], dtype: torch.dtype = torch.bfloat16
) -> None:
    """Writes a safetensors file, its floating tensors in `dtype`, and config.json beside it."""
    stored = {name: one.to(dtype if one.is_floating_point() else one.dtype) for name, one in tensors.items()}
    save_file({name: one.contiguous() for name, one in stored.items()}, path, metadata={"format": "pt"})
    path.with_name("config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
