"""What is sent, and when: the prompts of a workload, and the arrival processes closed loop and Poisson.

The prompts are text files beside this module, written for this project. Line `=== name` begins a prompt.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trt_spec.config.latency_config import WORKLOADS
from trt_spec.errors import UsageError

DATA_DIR = Path(__file__).parent / "data"
RAW_WORKLOADS = ("code_completion",)  # text to go on with; the others are messages of a user


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        name: short, unique within its workload.
        text: the message, or the text to be continued.
        is_chat: a message of the user, which goes through the target's chat template.
    """

    name: str
    text: str
    is_chat: bool = True


def load(workload: str) -> list[Prompt]:
    """The prompts of a workload that the project ships.

    Raises:
        UsageError: there is none of this name.
    """
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


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` clients: each sends its next request when its last one is answered."""

    concurrency: int

    @property
    def name(self) -> str:
        return f"concurrency {self.concurrency}"

    def due_ns(self, num_requests: int, seed: int) -> list[int] | None:
        """None: a request is due when a client is free."""
        return None


@dataclass(frozen=True)
class Poisson:
    """Requests arrive independently of each other and of the answers, `rate_per_s` of them a second on average."""

    rate_per_s: float

    @property
    def name(self) -> str:
        return f"{self.rate_per_s:g} requests/s"

    def due_ns(self, num_requests: int, seed: int) -> list[int]:
        """When each request is due, in nanoseconds after the first; gaps are exponential. Equal seeds, equal times."""
        generator, due, now = random.Random(seed), [], 0.0
        for _ in range(num_requests):
            due.append(round(now * 1e9))
            now += generator.expovariate(self.rate_per_s)
        return due


Arrivals = ClosedLoop | Poisson
