"""Drafters by method: factories that get what the engine has and import nothing before it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trt_spec.checkpoints.method import refuse_deep_drafts
from trt_spec.config.speculation import SpeculationConfig
from trt_spec.errors import CapabilityError

if TYPE_CHECKING:
    from trt_spec.runtime.admission import EngineLimits
    from trt_spec.runtime.drafters.base import Drafter
    from trt_spec.runtime.drafters.growth import Growth
    from trt_spec.runtime.models import Model


@dataclass(frozen=True)
class DrafterInputs:
    """What a drafter can be made from.

    Attributes:
        speculation: the section of the run config.
        target: the loaded target, from `target_dir`.
        draft_dir: the engine's draft checkpoint, where the method has one.
        limits: sizes of the engine, for the drafter's own caches.
    """

    speculation: SpeculationConfig
    target: Model
    target_dir: Path
    draft_dir: Path
    limits: EngineLimits

    def growth(self, max_levels: int | None = None) -> Growth:
        """The shape of drafts that the config asks for.

        Args:
            max_levels: levels that the draft checkpoint can predict; None for any number.

        Raises:
            ConfigError: deeper drafts are asked for, or a tree of layers that take turns.
        """
        from trt_spec.runtime.drafters import growth

        depth, tree = self.speculation.max_draft_len, self.speculation.tree
        refuse_deep_drafts(self.speculation, max_levels)
        if tree is None:
            return growth.ChainGrowth(depth)
        if tree.choices is not None:
            return growth.StaticGrowth(tree.choices, tree.siblings)
        return growth.DynamicGrowth(depth, tree.top_k, tree.max_total_draft_tokens)


def _ngram(inputs: DrafterInputs) -> Drafter:
    from trt_spec.runtime.drafters.ngram import NgramDrafter

    ngram = inputs.speculation.ngram
    return NgramDrafter(ngram.min_ngram, ngram.max_ngram)


def _draft_model(inputs: DrafterInputs) -> Drafter:
    from trt_spec.runtime.drafters.draft_model import DraftModelDrafter
    from trt_spec.runtime.models import load_model

    growth, limits, target = inputs.growth(), inputs.limits, inputs.target
    model = load_model(inputs.draft_dir, target.dtype, target.device, limits.max_seq_len + growth.max_fed)
    return DraftModelDrafter(model, growth, limits.max_batch_size, limits.max_seq_len, target.vocab_size)


def _medusa(inputs: DrafterInputs) -> Drafter:
    from trt_spec.runtime.drafters.medusa import MedusaDrafter
    from trt_spec.runtime.heads import load_medusa

    heads = load_medusa(inputs.draft_dir, inputs.target, inputs.target_dir)
    return MedusaDrafter(heads, inputs.growth(heads.num_heads))


def _feature(inputs: DrafterInputs) -> Drafter:
    from trt_spec.runtime.drafters.feature import FeatureDrafter
    from trt_spec.runtime.drafters.turns import TurnsDrafter
    from trt_spec.runtime.heads import load_feature_head

    limits = inputs.limits
    head = load_feature_head(
        inputs.speculation.method, inputs.draft_dir, inputs.target, inputs.target_dir, limits.slot_len
    )
    if head.num_turns == 1:
        return FeatureDrafter(head, inputs.growth(), limits.max_batch_size, limits.max_seq_len)
    return TurnsDrafter(head, inputs.growth(head.num_turns), limits.max_batch_size, limits.max_seq_len)


DRAFTERS: dict[str, Callable[[DrafterInputs], Drafter]] = {
    "ngram": _ngram,
    "draft_model": _draft_model,
    "medusa": _medusa,
    "eagle": _feature,
    "eagle3": _feature,
    "mtp": _feature,
}


def make_drafter(inputs: DrafterInputs) -> Drafter | None:
    """The drafter of a run config; None for plain decoding.

    Raises:
        CapabilityError: the method has no drafter on the torch target.
    """
    method = inputs.speculation.method
    if method == "none" or inputs.speculation.max_draft_len == 0:
        return None
    if method not in DRAFTERS:
        raise CapabilityError(
            f"method {method} is not available on the torch target",
            where="speculation.method",
            got=method,
            expected=f"one of none, {', '.join(DRAFTERS)}",
        )
    drafter, first = DRAFTERS[method](inputs), inputs.speculation.ngram_first
    if first is None:
        return drafter
    from trt_spec.runtime.drafters.ngram import NgramDrafter
    from trt_spec.runtime.drafters.ngram_first import NgramFirstDrafter

    return NgramFirstDrafter(NgramDrafter(first.min_ngram, first.max_ngram), drafter)
