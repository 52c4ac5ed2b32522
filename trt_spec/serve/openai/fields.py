"""Every field of OpenAI's two requests, and what becomes of it: honoured, ignored because it is harmless, or refused.

A field that is in none of these tables is unknown and refused. tests/openai/test_fields.py holds the tables against the
official client's own signatures, so that a field which OpenAI adds is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trt_spec.errors import CapabilityError, RequestError

# Parameters that the serving contract has under the same name. The second row is beyond OpenAI's API: the official
# client sends them by `extra_body`.
SAMPLING = ("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias")
EXTRA = (
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "speculation",
    "max_draft_len",
)
_BOTH = (*SAMPLING, *EXTRA, "model", "max_tokens", "n", "stream", "stream_options", "logprobs", "return_perf_metrics")
HONOURED: Mapping[str, tuple[str, ...]] = {
    "completion": (*_BOTH, "prompt", "echo"),
    "chat": (*_BOTH, "messages", "max_completion_tokens", "top_logprobs"),
}
# They change nothing that a client could see in an answer.
IGNORED: Mapping[str, str] = {
    "user": "names the end user, for abuse monitoring",
    "safety_identifier": "names the end user, for abuse monitoring",
    "metadata": "labels of a stored answer, and nothing is stored",
    "prompt_cache_key": "a hint for routing",
    "prompt_cache_options": "hints for a prompt cache",
    "prompt_cache_retention": "how long a prompt cache may keep what it has",
}
# Honoured for these values only, because they mean what is done anyway.
ONLY: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "store": ((False,), "nothing is stored"),
    "service_tier": (("auto", "default"), "there is one tier"),
    "modalities": ((["text"],), "this engine serves text"),
    "response_format": (({"type": "text"},), "this engine has no guided decoding"),
    "tools": (([],), "this engine has no tool calls"),
    "tool_choice": (("none", "auto"), "this engine has no tool calls"),
    "parallel_tool_calls": ((True, False), "this engine has no tool calls"),
    "functions": (([],), "this engine has no tool calls"),
    "function_call": (("none", "auto"), "this engine has no tool calls"),
    "top_logprobs": ((0,), "the engine tells the log-probability of the tokens that it chose, and of no others"),
    "suffix": (("",), "this engine completes at the end only"),
    "best_of": ((1,), "sequences are not ranked: ask for n"),
    "audio": ((), "this engine serves text"),
    "prediction": ((), "drafts come from the engine's own drafter"),
    "moderation": ((), "there is no moderation here"),
    "reasoning_effort": (("none",), "the chat template has no such setting"),
    "verbosity": ((), "the chat template has no such setting"),
    "web_search_options": ((), "this server reaches nothing"),
}
_COMPLETION_ONLY = ("best_of", "suffix")
_STREAM_OPTIONS = ("include_usage", "include_obfuscation", "continuous_usage_stats")


def known(kind: str) -> frozenset[str]:
    """The names of every field of a kind of request, refused ones included."""
    ours = (name for name in ONLY if (name in _COMPLETION_ONLY) == (kind == "completion"))
    return frozenset((*HONOURED[kind], *IGNORED, *ours))


def check(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given, without those that are ignored; null means not given.

    Raises:
        RequestError: a field that is unknown.
        CapabilityError: one that is known, with a value that cannot be honoured.
    """
    names, given = known(kind), {}
    for name, value in body.items():
        if name not in names:
            raise RequestError(
                f"unknown field {name}", where=name, remedy="remove it; docs/openai.md lists the fields of this server"
            )
        if value is None or name in IGNORED:
            continue
        if name in ONLY:
            allowed, reason = ONLY[name]
            if not any(type(value) is type(one) and value == one for one in allowed):
                shown = " or ".join(repr(one) for one in allowed)
                raise CapabilityError(
                    f"{name} is not supported: {reason}",
                    where=name,
                    got=_short(value),
                    expected=shown or "nothing",
                    remedy="remove it",
                )
        given[name] = value
    return given


def stream_options(given: Mapping[str, Any]) -> Mapping[str, bool]:
    """The options of a stream; raises where none was asked for, or one is unknown, malformed or not honoured."""
    options = given.get("stream_options")
    if options is None:
        return {}
    if not given.get("stream"):
        raise RequestError("stream_options needs stream", where="stream_options", remedy="set stream to true")
    if not isinstance(options, dict):
        raise RequestError("invalid field stream_options", where="stream_options", got=_short(options))
    for name, value in options.items():
        if name not in _STREAM_OPTIONS:
            raise RequestError(f"unknown field stream_options.{name}", where=f"stream_options.{name}")
        if value is not None and not isinstance(value, bool):
            raise invalid(f"stream_options.{name}", value, "true or false")
    if options.get("include_obfuscation"):
        raise CapabilityError(
            "stream_options.include_obfuscation is not supported: deltas are not padded",
            where="stream_options.include_obfuscation",
            got=True,
            expected=False,
        )
    return options


def flag(given: Mapping[str, Any], name: str) -> bool:
    """A truth value; false where it is not given."""
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise invalid(name, value, "true or false")
    return value


def whole(given: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    """A whole number within bounds."""
    value = given.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise invalid(name, value, f"a whole number from {low} to {high}")
    return value


def invalid(name: str, got: Any, expected: str) -> RequestError:
    """A field with a value that it cannot have."""
    return RequestError(f"invalid field {name}", where=name, got=_short(got), expected=expected)


def _short(value: Any) -> str:
    """A value as ASCII, cut where it is long: what a client sent may be anything."""
    text = ascii(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
