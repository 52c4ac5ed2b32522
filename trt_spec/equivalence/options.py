"""What the command line asks for, and the requests that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trt_spec.clients import prompts
from trt_spec.clients import triton_wire as wire
from trt_spec.clients.prompts import Prompt
from trt_spec.errors import RequestError
from trt_spec.triton import codec
from trt_spec.triton.contract import INPUT_BY_NAME, NUMPY_TYPES

if TYPE_CHECKING:
    from trt_spec.checkpoints.tokenizer import Tokenizer
    from trt_spec.runtime.request import SamplingParams

REPORTS_DIR = Path("reports")
DEFAULTS: dict[str, Any] = {"temperature": 0.8, "max_tokens": 128}
MESSAGES = (
    "Explain in a few sentences why the sky is blue.",
    "Write the beginning of a short story about a lighthouse keeper.",
    "List five things to pack for a walk in the rain, one per line.",
    "Repeat this sentence word for word: The laboratory on the second floor is open from nine until six.",
    "Translate into French: The train leaves at seven from platform two.",
    "Write a Python function that returns the largest of three numbers.",
    "Repeat this Python code exactly:\n\ndef total(items):\n    return sum(item.price for item in items)",
    "What is the difference between a lake and a pond?",
    "Give me a recipe for pancakes with exact quantities.",
    "Summarise the plot of a fairy tale that everybody knows.",
    "Count from one to twenty in words, separated by commas.",
    "Write a polite e-mail that moves a meeting from Monday to Wednesday.",
)


@dataclass(frozen=True)
class Options:
    """What the command line asked for beside the run.

    Attributes:
        url: a server to judge; None judges the built engine in this process.
        reference: native or transformers.
        prompts_path: a file with one prompt per line; None takes `MESSAGES`.
        max_tokens: budget in speculative tokens. max_seconds: in seconds.
        is_fresh: leave earlier evidence aside.
        is_cross_checked: compare a native reference with transformers first.
        parameters: sampling parameters of the contract that were given.
    """

    url: str | None
    reference: str
    prompts_path: Path | None
    max_tokens: int
    max_seconds: float | None
    is_fresh: bool
    is_cross_checked: bool
    report_dir: Path
    parameters: Mapping[str, Any]


def sampling_params(parameters: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters from the contract's names, with this command's defaults.

    Raises:
        RequestError: unknown, out of bounds, or not for sampling.
    """
    values = wire.request_values([0], {**DEFAULTS, **parameters})
    arrays = {name: np.array(items, NUMPY_TYPES[INPUT_BY_NAME[name].data_type]) for name, items in values.items()}
    params = replace(codec.decode_request(arrays, {}).params, seed=None)
    if params.temperature == 0:
        raise RequestError(
            "there is no law to verify at temperature 0",
            where="temperature",
            expected="a temperature above 0; greedy outputs are judged in every run",
        )
    if params.stop:
        raise RequestError("stop strings do not go with verification", where="stop", remedy="leave them out")
    return params


def prompts_of(path: Path | None, tokenizer: Tokenizer | None = None) -> list[Prompt]:
    """Prompts of a file, one a line, or `MESSAGES`; with their ids where there is a tokenizer. Their names are labels.

    Raises:
        UsageError: the file has none.
    """
    texts = MESSAGES if path is None else [prompt.text for prompt in prompts.read(path)]
    named = [Prompt(text.splitlines()[0], text) for text in texts]
    if tokenizer is None:
        return named
    encode = prompts.encoder(tokenizer)
    return [replace(prompt, input_ids=encode(prompt)) for prompt in named]
