"""What a drafter is made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trt_spec.checkpoints.method import refuse_deep_drafts
from trt_spec.config.speculation import SpeculationConfig

if TYPE_CHECKING:
    from trt_spec.checkpoints.detect import Opened
    from trt_spec.runtime.admission import EngineLimits
    from trt_spec.runtime.drafters.draft_shapes import DraftShape
    from trt_spec.runtime.models import Model


@dataclass(frozen=True)
class DrafterInputs:
    """What a drafter can be made from.

    Attributes:
        speculation: the section of the run config.
        target: the loaded target, from `target_dir`, which may be open still.
        draft_dir: the engine's draft checkpoint, where the method has one.
        limits: sizes of the engine, for the drafter's own caches.
    """

    speculation: SpeculationConfig
    target: Model
    target_dir: Path | Opened
    draft_dir: Path
    limits: EngineLimits

    def draft_shape(self, max_levels: int | None = None) -> DraftShape:
        """The shape of drafts that the config asks for.

        Args:
            max_levels: levels that the draft checkpoint can predict; None for any number.

        Raises:
            ConfigError: deeper drafts are asked for, or a tree of several MTP layers.
        """
        from trt_spec.runtime.drafters import draft_shapes

        depth, tree = self.speculation.max_draft_len, self.speculation.tree
        refuse_deep_drafts(self.speculation, max_levels)
        if tree is None:
            return draft_shapes.Chain(depth)
        if tree.choices is not None:
            return draft_shapes.StaticTree(tree.choices, tree.siblings)
        return draft_shapes.DynamicTree(depth, tree.top_k, tree.max_total_draft_tokens)
