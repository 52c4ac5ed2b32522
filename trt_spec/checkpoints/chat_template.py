"""Jinja chat templates in a sandbox, with the functions and settings that transformers gives them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trt_spec.errors import CheckpointError, RequestError


def render(
    template: str, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, tokens: Mapping[str, str]
) -> str:
    """The prompt that a chat template makes of messages; `tokens` has names such as bos_token to their text.

    Raises:
        CheckpointError: The template is not valid Jinja.
        RequestError: The template refuses the messages, such as two turns of one role.
    """
    import jinja2

    try:
        compiled = _environment().from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"the chat template is not valid Jinja: {error}") from None
    try:
        # Templates ask `tools is not none`, which an undefined name would pass.
        absent = {"tools": None, "documents": None}
        return compiled.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **absent, **tokens)
    except (jinja2.TemplateError, TypeError, LookupError, AttributeError, ValueError) as error:
        raise RequestError(
            f"the chat template refuses these messages: {error}",
            where="messages",
            expected='a list such as [{"role": "user", "content": "Hello"}]',
        ) from None


def _environment():
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what an assistant wrote, for training; here it is only its content."""

        tags: ClassVar = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        import jinja2

        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)  # jinja2's own escapes HTML

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.datetime.now().strftime(pattern)
    return environment
