"""Our errors as OpenAI's: an HTTP status, and an object with message, type, param and code."""

from __future__ import annotations

from collections.abc import Mapping

from trt_spec.errors import CapabilityError, CheckpointError, MachineError, OverloadedError, RequestError, TrtSpecError
from trt_spec.runtime.admission import PROMPT_TOO_LONG
from trt_spec.serve.openai.requests import Call, UnknownModelError
from trt_spec.triton.contract import PREFIX

RETRY_AFTER_S = 1  # clients that honour it come back then; a queue place is free after some steps

# Class to (status, type, code); the first that fits.
_KINDS: tuple[tuple[type[TrtSpecError], int, str, str | None], ...] = (
    (UnknownModelError, 404, "invalid_request_error", "model_not_found"),
    (CapabilityError, 400, "invalid_request_error", "unsupported_parameter"),
    (RequestError, 400, "invalid_request_error", None),
    (CheckpointError, 400, "invalid_request_error", "no_chat_template"),
    (OverloadedError, 429, "rate_limit_error", "overloaded"),
    (MachineError, 503, "service_unavailable_error", "not_ready"),
)


def status_of(error: TrtSpecError) -> int:
    """The HTTP status of an error: whose fault it is."""
    return next((status for kind, status, _, _ in _KINDS if isinstance(error, kind)), 500)


def body_of(error: TrtSpecError, call: Call | None = None) -> dict[str, object]:
    """The body of an error; the call that it answers gives fields the names that the client used."""
    found = ((of, code) for kind, _, of, code in _KINDS if isinstance(error, kind))
    of_type, code = next(found, ("server_error", None))
    if error.code == PROMPT_TOO_LONG:
        code = "context_length_exceeded"
    return body(str(error), of_type, _param(error, call) if of_type == "invalid_request_error" else None, code)


def body(message: str, of_type: str, param: str | None = None, code: str | None = None) -> dict[str, object]:
    """The body of any error."""
    return {"error": {"message": message, "type": of_type, "param": param, "code": code}}


def headers_of(error: TrtSpecError) -> Mapping[str, str]:
    """What to send beside it."""
    return {"Retry-After": str(RETRY_AFTER_S)} if isinstance(error, OverloadedError) else {}


def _param(error: TrtSpecError, call: Call | None) -> str | None:
    if error.where is None:
        return None
    name = error.where.removeprefix(PREFIX)
    if name in ("text_input", "input_ids"):
        return "messages" if call is not None and call.kind == "chat" else "prompt"
    if name in ("logit_bias_ids", "logit_bias_values"):
        return "logit_bias"
    return call.sent_names.get(name, name) if call is not None else name
