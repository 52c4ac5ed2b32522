"""The model families that the torch target runs, by the model_type of config.json, each with its layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trt_spec.checkpoints import deepseek_v3, llama
from trt_spec.errors import CheckpointError


class FamilyLayout(NamedTuple):
    """How the checkpoints of a family are read. `config` is what `parse_config` returned.

    Attributes:
        parse_config: (config.json, tensor shapes, where) -> config.
        expected_tensors: config -> name and shape of every tensor that must be there.
        ignored_tensors: config -> patterns of tensors that the target leaves alone.
        float32_tensors: patterns of tensors that stay float32 in a model of a narrower type.
    """

    parse_config: Callable[[Mapping[str, Any], Mapping[str, tuple[int, ...]], str], Any]
    expected_tensors: Callable[[Any], dict[str, tuple[int, ...]]]
    ignored_tensors: Callable[[Any], tuple[str, ...]]
    float32_tensors: tuple[str, ...] = ()

    def keeps_float32(self, name: str) -> bool:
        """Whether a tensor stays float32 in a model of a narrower type."""
        return any(re.fullmatch(pattern, name) for pattern in self.float32_tensors)


FAMILY_LAYOUTS: dict[str, FamilyLayout] = {
    **dict.fromkeys(
        llama.LLAMA_FAMILIES,
        FamilyLayout(llama.parse_config, llama.expected_tensors, lambda config: llama.IGNORED_TENSORS),
    ),
    **dict.fromkeys(
        deepseek_v3.DEEPSEEK_V3_FAMILIES,
        FamilyLayout(
            deepseek_v3.parse_config,
            deepseek_v3.expected_tensors,
            deepseek_v3.ignored_tensors,
            deepseek_v3.FLOAT32_TENSORS,
        ),
    ),
}
NATIVE_FAMILIES = tuple(FAMILY_LAYOUTS)


def layout_of(config: Mapping[str, Any], where: str) -> FamilyLayout:
    """The layout that config.json's model_type names; raises CheckpointError where the family is not native."""
    family = config.get("model_type")
    if family not in FAMILY_LAYOUTS:
        raise CheckpointError(
            "model family is not native",
            where=where,
            got=family,
            expected=f"one of {', '.join(NATIVE_FAMILIES)}",
            remedy="use build.target llmapi or tensorrt for this family",
        )
    return FAMILY_LAYOUTS[family]
