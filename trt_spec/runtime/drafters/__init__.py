"""Drafters by method: made by the function that the method's record names, which is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trt_spec.errors import CapabilityError
from trt_spec.methods import METHODS
from trt_spec.runtime.drafters.inputs import DrafterInputs

if TYPE_CHECKING:
    from trt_spec.runtime.drafters.base import Drafter

__all__ = ["DrafterInputs", "make_drafter"]


def make_drafter(inputs: DrafterInputs) -> Drafter | None:
    """The drafter of a run config; None for plain decoding.

    Raises:
        CapabilityError: the method has no drafter on the torch target.
    """
    method, first = METHODS[inputs.speculation.method], inputs.speculation.ngram_first
    if method.name == "none" or inputs.speculation.max_draft_len == 0:
        return None
    if not method.drafter:
        raise CapabilityError(
            f"method {method.name} is not available on the torch target",
            where="speculation.method",
            got=method.name,
            expected=f"one of none, {', '.join(name for name, other in METHODS.items() if other.drafter)}",
        )
    module, _, function = method.drafter.partition(":")
    drafter = getattr(import_module(module), function)(inputs)
    if first is None:
        return drafter
    from trt_spec.runtime.drafters.ngram import NgramDrafter
    from trt_spec.runtime.drafters.ngram_first import NgramFirstDrafter

    return NgramFirstDrafter(NgramDrafter(first.min_ngram, first.max_ngram), drafter)
