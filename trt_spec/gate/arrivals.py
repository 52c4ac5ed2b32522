"""When requests are sent: arrival processes, closed loop and Poisson."""

from __future__ import annotations

import random
from dataclasses import dataclass


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
