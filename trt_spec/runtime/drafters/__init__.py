"""Drafters by method: factories that get what the engine has and import nothing before it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trt_spec.config.schema import SpeculationConfig
from trt_spec.errors import CapabilityError

if TYPE_CHECKING:
    from trt_spec.runtime.drafters.base import Drafter
    from trt_spec.runtime.models import Model


@dataclass(frozen=True)
class DrafterInputs:
    """What a drafter can be made from.

    Attributes:
        speculation: the section of the run config.
        target: the loaded target.
        draft_dir: the engine's draft checkpoint, where the method has one.
        num_slots, slot_len: geometry of the target's KV cache, which the drafter's own caches share.
    """

    speculation: SpeculationConfig
    target: Model
    draft_dir: Path
    num_slots: int
    slot_len: int


def _ngram(inputs: DrafterInputs) -> Drafter:
    from trt_spec.runtime.drafters.ngram import NgramDrafter

    ngram = inputs.speculation.ngram
    return NgramDrafter(ngram.min_ngram, ngram.max_ngram)


def _draft_model(inputs: DrafterInputs) -> Drafter:
    from trt_spec.runtime.drafters.draft_model import DraftModelDrafter
    from trt_spec.runtime.models import load_model

    model = load_model(inputs.draft_dir, inputs.target.dtype, inputs.target.device, inputs.slot_len)
    return DraftModelDrafter(model, inputs.num_slots, inputs.slot_len, inputs.target.vocab_size)


DRAFTERS: dict[str, Callable[[DrafterInputs], Drafter]] = {"ngram": _ngram, "draft_model": _draft_model}


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
    return DRAFTERS[method](inputs)
