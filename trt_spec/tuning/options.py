"""What the command line asks of `trt-spec tune` beside the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What is measured, and with what.

    Attributes:
        acceptance: coins by position in place of the engine's own acceptance; None measures it.
        prompts_path: a file with one message per line; None takes the run's workload.
        num_prompts: at most so many of them.
        num_tokens: output tokens of each.
        temperature: of the requests that acceptance is measured on.
        requests_per_s: arrivals to find operating points for; None for none.
        output_tokens: of each of those requests.
    """

    acceptance: tuple[float, ...] | None = None
    prompts_path: Path | None = None
    num_prompts: int = 12
    num_tokens: int = 48
    temperature: float = 0.0
    requests_per_s: float | None = None
    output_tokens: int = 256
