"""A body in OpenAI's format to what is forwarded: prompts, parameters of the contract, and what to send back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.clients import triton_wire as wire
from trt_spec.clients.triton_wire import TextOrIds
from trt_spec.errors import CapabilityError, RequestError
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.request import MAX_SEED
from trt_spec.serve.openai import fields
from trt_spec.triton.served_request import seed_of

Kind = Literal["completion", "chat"]
MAX_N = 128  # OpenAI's own bound
MAX_CHOICES = 2048  # prompts times n of one call
_DEFAULT_MAX_TOKENS = 16  # of completions; a chat goes on to the context limit
_ROLES = ("system", "developer", "user", "assistant")
_MESSAGE_FIELDS = ("role", "content")


@dataclass(frozen=True)
class Upstream:
    """What the front knows of the model behind it.

    Attributes:
        max_seq_len: the context limit, in tokens.
        max_batch_size: how many choices of one call are in flight at once.
        tokenizer: the target's; without one there are no chats and no token texts.
    """

    model_name: str
    max_seq_len: int
    max_batch_size: int
    tokenizer: Tokenizer | None = None

    def check_name(self, name: Any) -> None:
        """Raises UnknownModelError where it is another model's."""
        if name != self.model_name:
            raise UnknownModelError(
                "this model is not served here", where="model", got=ascii(name)[:200], expected=self.model_name
            )

    def tokenizer_for(self, what: str, where: str, remedy: str | None = None) -> Tokenizer:
        """The tokenizer; raises CapabilityError where there is none, which `what` is not supported without."""
        if self.tokenizer is None:
            raise CapabilityError(f"{what} not supported: this engine has no tokenizer", where=where, remedy=remedy)
        return self.tokenizer

    def encode(self, tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; raises RequestError where it cannot fit into the context."""
        EngineLimits(max_seq_len=self.max_seq_len).refuse_long_text(tokenizer.fewest_tokens(text))
        return tokenizer.encode(text, add_special_tokens)


@dataclass(frozen=True)
class Call:
    """One call of a client.

    Attributes:
        prompts: each answered `n` times; choice `index` answers prompt `index // n`.
        parameters: of the serving contract, by the client's names.
        sent_names: what the client called a parameter, where that is another name; errors use it.
        echoes: the texts to put before the answers, one per prompt; empty where that was not asked for.
        num_prompt_tokens: where the front knows it before the answers come, for running usage.
    """

    kind: Kind
    prompts: tuple[TextOrIds, ...]
    parameters: dict[str, Any]
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    has_running_usage: bool = False
    echoes: tuple[str, ...] = ()
    num_prompt_tokens: int = 0
    sent_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    def choice(self, index: int) -> tuple[TextOrIds, dict[str, Any]]:
        """Prompt and parameters of one choice; what it gives is what that sequence of the contract's `n` gives.

        Each choice is a request of its own: `n` of one request are admitted together or not at all, and more than the
        engine has places would never be.
        """
        parameters, seed = self.parameters, self.parameters.get("seed")
        if seed is not None:
            parameters = {**parameters, "seed": seed_of(seed, index % self.n)}
        return self.prompts[index // self.n], parameters


class UnknownModelError(RequestError, code="model_not_found"):
    """The call names a model that is not served here."""


def read(kind: Kind, body: Any, upstream: Upstream) -> Call:
    """Checks and reads one call; raises RequestError or CapabilityError, whose `where` names the field."""
    if not isinstance(body, dict):
        raise RequestError("the body is no JSON object", expected="an object with model and prompt or messages")
    given = fields.check(kind, body)
    if "model" not in given:
        raise RequestError("no model is named", where="model", expected=upstream.model_name)
    upstream.check_name(given["model"])
    options = fields.stream_options(given)
    parameters, sent_names = _parameters(kind, given, upstream)
    wants_logprobs = _wants_logprobs(kind, given, upstream)
    prompts = _chat_prompts(given, upstream) if kind == "chat" else _text_prompts(given)
    n = fields.whole(given, "n", 1, 1, MAX_N)
    if len(prompts) * n > MAX_CHOICES:
        name = "n" if n > 1 else "prompt"
        raise fields.invalid(name, f"{len(prompts)} prompts, n = {n}", f"at most {MAX_CHOICES} choices in one call")
    has_running_usage = bool(options.get("continuous_usage_stats"))
    if has_running_usage:
        prompts = tuple(_ids(prompt, upstream, "stream_options.continuous_usage_stats") for prompt in prompts)
    parameters |= {"logprobs": wants_logprobs, "return_perf_metrics": fields.flag(given, "return_perf_metrics")}
    call = Call(
        kind=kind,
        prompts=prompts,
        parameters=parameters,
        n=n,
        stream=fields.flag(given, "stream"),
        include_usage=bool(options.get("include_usage")),
        has_running_usage=has_running_usage,
        echoes=_echoes(_text_prompts(given), upstream) if fields.flag(given, "echo") else (),
        num_prompt_tokens=sum(map(len, prompts)) if has_running_usage else 0,
        sent_names=sent_names,
    )
    for prompt in prompts:  # types and names; bounds are the model's to check
        wire.request_values(prompt, parameters)
    return call


def _parameters(kind: Kind, given: Mapping[str, Any], upstream: Upstream) -> tuple[dict[str, Any], dict[str, str]]:
    """The contract's parameters, with OpenAI's defaults; and what the client called the renamed ones."""
    parameters = {name: given[name] for name in (*fields.SAMPLING, *fields.EXTRA) if name in given}
    parameters.setdefault("temperature", 1.0)
    if "logit_bias" in parameters:
        parameters["logit_bias"] = _logit_bias(parameters["logit_bias"])
    seed = parameters.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool) and -(2**63) <= seed < 0:
        parameters["seed"] = seed & MAX_SEED  # OpenAI's seeds are signed
    old, new = given.get("max_tokens"), given.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise fields.invalid("max_completion_tokens", new, f"max_tokens = {old}, or only one of the two")
    asked = new if new is not None else old
    default = _DEFAULT_MAX_TOKENS if kind == "completion" else upstream.max_seq_len
    parameters["max_tokens"] = default if asked is None else asked
    return parameters, {"max_tokens": "max_completion_tokens"} if new is not None else {}


def _logit_bias(value: Any) -> dict[int, Any]:
    """OpenAI sends a JSON object, whose keys are ids written as text."""
    if not isinstance(value, dict):
        raise fields.invalid("logit_bias", value, "an object of token ids and numbers")
    bias = {}
    for key, number in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12):
            raise fields.invalid("logit_bias", key, "token ids")
        bias[int(key)] = number
    return bias


def _wants_logprobs(kind: Kind, given: Mapping[str, Any], upstream: Upstream) -> bool:
    """Chats say true or false; completions say how many alternatives to list beside the chosen token."""
    if kind == "chat":
        wanted = fields.flag(given, "logprobs")
        if "top_logprobs" in given and not wanted:
            raise RequestError("top_logprobs needs logprobs", where="top_logprobs", remedy="set logprobs to true")
    else:
        wanted = "logprobs" in given
        if fields.whole(given, "logprobs", 0, 0, 2**31) > 0:
            raise CapabilityError(
                f"logprobs beyond 0 is not supported: {fields.ONLY['top_logprobs'][1]}",
                where="logprobs",
                got=given["logprobs"],
                expected="0, for the chosen tokens' log-probabilities",
            )
        if wanted and fields.flag(given, "echo"):
            raise CapabilityError(
                "logprobs with echo is not supported: prompts are not scored", where="logprobs", remedy="leave out echo"
            )
    if wanted:
        upstream.tokenizer_for("logprobs is", "logprobs")
    return wanted


# --- prompts ---


def _text_prompts(given: Mapping[str, Any]) -> tuple[TextOrIds, ...]:
    """A prompt may be a text, texts, token ids, or lists of token ids."""
    prompt = given.get("prompt")
    if prompt is None:
        raise RequestError("no prompt", where="prompt", expected="a text, texts, token ids or lists of token ids")
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt, list) and prompt:
        if all(map(_is_id, prompt)):
            return (prompt,)
        if all(isinstance(item, str) for item in prompt):
            return tuple(prompt)
        if all(isinstance(item, list) and item and all(map(_is_id, item)) for item in prompt):
            return tuple(prompt)
    raise fields.invalid("prompt", prompt, "a text, texts, token ids or lists of token ids")


def _is_id(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _ids(prompt: TextOrIds, upstream: Upstream, needed_for: str) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    return upstream.encode(upstream.tokenizer_for(f"{needed_for} is", needed_for), prompt)


def _echoes(prompts: Sequence[TextOrIds], upstream: Upstream) -> tuple[str, ...]:
    return tuple(
        prompt if isinstance(prompt, str) else upstream.tokenizer_for("echo of token ids is", "echo").decode(prompt)
        for prompt in prompts
    )


def _chat_prompts(given: Mapping[str, Any], upstream: Upstream) -> tuple[TextOrIds, ...]:
    """One prompt of token ids: the messages in the target's chat template, which has its special tokens written out."""
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.invalid("messages", messages, "a list of messages, at least one")
    tokenizer = upstream.tokenizer_for("chats are", "messages", "use /v1/completions")
    plain = [_message(f"messages[{number}]", message) for number, message in enumerate(messages)]
    return (upstream.encode(tokenizer, tokenizer.apply_chat_template(plain), add_special_tokens=False),)


def _message(where: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise fields.invalid(where, message, "an object with role and content")
    role = message.get("role")
    if role not in _ROLES:
        raise fields.invalid(f"{where}.role", role, ", ".join(_ROLES))
    for name, value in message.items():
        # A client may send an answer's message back as it is, empty fields included.
        if name not in _MESSAGE_FIELDS and value not in (None, [], {}):
            raise CapabilityError(
                f"{where}.{name} is not supported",
                where=f"{where}.{name}",
                expected="role and content",
                remedy="remove it",
            )
    # Templates know the older name of the developer's role.
    return {"role": "system" if role == "developer" else role, "content": _content(f"{where}.content", message)}


def _content(where: str, message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise fields.invalid(where, content, "a text, or a list of text parts")
    texts = []
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise CapabilityError(
                f"{where}[{number}] is not supported: this engine serves text",
                where=f"{where}[{number}]",
                expected='{"type": "text", "text": …}',
            )
        texts.append(part["text"])
    return "".join(texts)
