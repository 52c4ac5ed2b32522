"""Prompts: text, messages of a user, or token ids; those of the workloads that ship with the project, and one's own.

The prompts are text files beside this module, written for this project. Line `=== name` begins a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trt_spec.config.latency_config import WORKLOADS
from trt_spec.errors import CheckpointError, RequestError, UsageError

if TYPE_CHECKING:
    from trt_spec.checkpoints.tokenizer import Tokenizer

DATA_DIR = Path(__file__).parent / "data"
RAW_WORKLOADS = ("code_completion",)  # text to go on with; the others are messages of a user


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        name: short, unique among those that are sent together.
        text: the message, or the text to be continued.
        is_chat: a message of the user, which goes through the target's chat template.
        input_ids: the prompt as token ids, where it has been encoded already; these are then what is sent.
    """

    name: str
    text: str = ""
    is_chat: bool = True
    input_ids: tuple[int, ...] | None = None


_NOTICE = (
    "The laboratory on the second floor is open from nine in the morning until six in the evening. Visitors sign in at "
    "the front desk and wear a badge at all times. Food and drinks stay outside. Please report broken equipment to the "
    "technician on duty."
)
_CODE = """def total_price(items, tax_rate):
    subtotal = 0.0
    for item in items:
        subtotal += item.price * item.quantity
    return subtotal * (1.0 + tax_rate)
"""
DEMO_PROMPTS = (  # of the demo and the benchmarks; the name begins with the kind
    Prompt("chat: explain", "Explain in a few sentences why the sky is blue."),
    Prompt("chat: story", "Write the beginning of a short story about a lighthouse keeper."),
    Prompt("copy: notice", f"Repeat the following text word for word:\n\n{_NOTICE}"),
    Prompt("copy: code", f"Repeat this Python code exactly:\n\n```python\n{_CODE}```"),
    Prompt("edit: notice", f"Copy this text, but replace 'second floor' by 'third floor':\n\n{_NOTICE}"),
    Prompt("edit: code", f"Rename `item` to `product` in this Python code:\n\n```python\n{_CODE}```"),
)
Encode = Callable[[Prompt], tuple[int, ...]]


def chat_ids(tokenizer: Tokenizer, message: str) -> tuple[int, ...]:
    """Token ids of one message of the user in the chat template; CheckpointError where there is none."""
    text = tokenizer.apply_chat_template([{"role": "user", "content": message}])
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def encoder(tokenizer: Tokenizer | None) -> Encode:
    """Token ids of a prompt, a message in the chat template where there is one; each prompt is encoded once.

    Without a tokenizer only prompts that are encoded already have ids; others raise RequestError.
    """

    @cache
    def encode(prompt: Prompt) -> tuple[int, ...]:
        if prompt.input_ids is not None:
            return prompt.input_ids
        if tokenizer is None:
            raise RequestError("this engine has no tokenizer", where=prompt.name, remedy="give token ids")
        if prompt.is_chat:
            try:
                return chat_ids(tokenizer, prompt.text)
            except CheckpointError:  # a base model: no chat template
                pass
        return tuple(tokenizer.encode(prompt.text))

    return encode


def load(workload: str) -> list[Prompt]:
    """The prompts of a workload that the project ships; UsageError where there is none of this name."""
    if workload not in WORKLOADS:
        raise UsageError("unknown workload", got=workload, expected="one of " + ", ".join(WORKLOADS))
    text = (DATA_DIR / f"{workload}.txt").read_text(encoding="utf-8")
    parts = re.split(r"^=== (.+)\n", text, flags=re.MULTILINE)[1:]
    named = zip(parts[::2], parts[1::2], strict=True)
    return [Prompt(name, body.rstrip("\n"), workload not in RAW_WORKLOADS) for name, body in named]


def read(path: Path) -> list[Prompt]:
    """One's own prompts, one message a line.

    Raises:
        UsageError: there is none, or the file is not UTF-8.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise UsageError("the prompts are not UTF-8", where=str(path), got=str(error)) from None
    prompts = [Prompt(f"line {number}", line) for number, line in enumerate(lines, 1) if line]
    if not prompts:
        raise UsageError("no prompts", where=str(path), expected="one prompt per line")
    return prompts


def take(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """The first `count` prompts, from the beginning again where there are fewer."""
    return [prompts[index % len(prompts)] for index in range(count)]
