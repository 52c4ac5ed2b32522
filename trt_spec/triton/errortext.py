"""Errors as the text that Triton carries, and back.

Triton gives an error a text and a status, and loses the status on the way: what one model gets from another is always
INTERNAL, and HTTP has 400 for an overloaded server. So the text says it too, in a last line `code: …`, for the unary
alias, for our client and for anybody else's; before it, where the error has a finer code of its own, `reason: …`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

from trt_spec.errors import CapabilityError, MachineError, OverloadedError, RequestError, TrtSpecError

_KINDS: dict[str, type[TrtSpecError]] = {
    kind.default_code: kind for kind in (RequestError, CapabilityError, OverloadedError, MachineError, TrtSpecError)
}
_TRITON_CODES = {RequestError: "INVALID_ARG", CapabilityError: "INVALID_ARG", OverloadedError: "UNAVAILABLE"}
# Labels as TrtSpecError prints them, and ours, to its arguments and the kind.
_LABELS = {"where": "where", "got": "got", "expected": "expected", "what to do": "remedy"}
_LABELS |= {"reason": "code", "code": "kind"}
_LINE = re.compile(r"  (?P<label>{}): (?P<value>.*)".format("|".join(_LABELS)))


def to_text(error: TrtSpecError) -> str:
    """The error for a client; `to_error` reads it."""
    kind = _kind_of(error).default_code
    reason = "" if error.code in (error.default_code, kind) else f"\n  reason: {error.code}"
    return f"{error}{reason}\n  code: {kind}"


def to_error(text: str, otherwise: Callable[..., TrtSpecError] = MachineError) -> TrtSpecError:
    """The error of a text, of `to_text` or the server's own making; `otherwise` where it does not say its class."""
    what, *lines = text.splitlines() or ["the server gave no reason"]
    fields: dict[str, str] = {}
    details = []
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            details.append(line.strip().removeprefix("- "))
        else:
            fields[_LABELS[match["label"]]] = match["value"]
    kind = _KINDS.get(fields.pop("kind", ""), otherwise)
    return kind(what, details=details, **fields)


def triton_code(error: Exception) -> str:
    """The name of Triton's code for an error."""
    return _TRITON_CODES.get(_kind_of(error), "INTERNAL") if isinstance(error, TrtSpecError) else "INTERNAL"


def _kind_of(error: TrtSpecError) -> type[TrtSpecError]:
    return next(kind for kind in _KINDS.values() if isinstance(error, kind))


def to_response(error: Exception, pb_utils: Any) -> Any:
    """A response of Triton's Python backend that says what went wrong; what is not ours is logged too."""
    if not isinstance(error, TrtSpecError):
        pb_utils.Logger.log_error(f"trt_spec: {''.join(traceback.format_exception(error))}")
    code = getattr(pb_utils.TritonError, triton_code(error))
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(to_text(as_ours(error)), code))


def as_ours(error: Exception) -> TrtSpecError:
    """An error that a client can be told; one that is not ours may say anything, and says what it is."""
    if isinstance(error, TrtSpecError):
        return error
    return TrtSpecError("the model failed on this request", got=f"{type(error).__name__}: {error}")
