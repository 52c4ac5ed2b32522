"""The engine's counters as Prometheus metrics on Triton's metrics port.

Triton's custom metrics crash the whole server when two threads call them at once (seen with server 2.51), so every call
is behind one lock here, and nothing else in the project touches them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "trt_spec_"


@dataclass(frozen=True)
class Series:
    """One metric.

    Attributes:
        name: without the prefix.
        read: its value, off the worker; with a label those of 0, 1, …; None where `EngineMetrics` counts itself.
        label: of series with several values.
    """

    name: str
    doc: str
    read: Callable[[Any], Any] | None = None
    label: str = ""
    is_gauge: bool = False


def _stat(name: str, doc: str, label: str = "") -> Series:
    return Series(f"{name}_total", doc, lambda worker: getattr(worker.engine.stats, name), label)


def _gauge(name: str, doc: str, read: Callable[[Any], int]) -> Series:
    return Series(name, doc, read, is_gauge=True)


def _num_running(worker: Any) -> int:
    return len(worker.engine.scheduler.running)


REQUESTS = Series("requests_total", "Requests ended, by how: a finish reason, refused or failed.", label="outcome")
# Every engine's, and those that only the torch engine tells.
COMMON: tuple[Series, ...] = (
    _stat("num_output_tokens", "Tokens generated."),
    _stat("num_draft_tokens", "Draft tokens verified."),
    _stat("num_accepted_tokens", "Draft tokens accepted."),
    REQUESTS,
)
TORCH: tuple[Series, ...] = (
    Series("steps_total", "Steps of the engine.", lambda worker: worker.engine.stats.num_steps),
    _stat("num_drafts", "Steps of a request with at least one draft token."),
    _stat(
        "num_drafter_errors", "Times the drafter raised; requests go on without its drafts. The first is in the log."
    ),
    _stat("num_accepted_tokens_per_pos", "Draft tokens accepted at each position of the draft, from 0.", "position"),
    _gauge("num_requests_running", "Requests that hold a KV slot.", _num_running),
    _gauge(
        "num_requests_waiting",
        "Requests accepted and waiting for a slot.",
        lambda worker: max(worker.num_in_flight - _num_running(worker), 0),
    ),
    _gauge("kv_slots_used", "KV slots in use.", _num_running),
    _gauge("kv_slots", "KV slots there are.", lambda worker: worker.engine.limits.max_batch_size),
    _gauge("engine_up", "1 while the engine works, 0 after it failed.", lambda worker: int(worker.failure is None)),
)
LLMAPI: tuple[Series, ...] = (
    _gauge("num_requests_in_flight", "Requests running or waiting in the engine.", lambda worker: worker.num_in_flight),
)


class EngineMetrics:
    """Publishes one worker's numbers, `COMMON` and others, under the label of one model."""

    def __init__(self, pb_utils: Any, worker: Any, model_name: str, others: Sequence[Series] = TORCH) -> None:
        self._worker, self._model_name, self._lock = worker, model_name, threading.Lock()
        self._metrics: dict[tuple[Series, str], Any] = {}
        self._published: dict[tuple[Series, str], int] = {}
        family = pb_utils.MetricFamily
        with self._lock:
            # A family that is collected takes its metrics along: keep them all.
            self._families = {
                series: family(
                    name=PREFIX + series.name,
                    description=series.doc,
                    kind=family.GAUGE if series.is_gauge else family.COUNTER,
                )
                for series in (*COMMON, *others)
            }
        self.publish()

    def count_request(self, outcome: str) -> None:
        """Counts one ended request: a finish reason, `refused` or `failed`."""
        with self._lock:
            self._metric(REQUESTS, outcome).increment(1)

    def publish(self) -> None:
        """Brings every series up to the worker's numbers of now; only what changed costs a call."""
        with self._lock:
            for series in self._families:
                found = () if series.read is None else series.read(self._worker)
                for label, number in enumerate(found) if series.label else (("", found),):
                    self._set(series, str(label), number)

    def _set(self, series: Series, label: str, number: int) -> None:
        metric, before = self._metric(series, label), self._published.get((series, label), 0)
        if number != before:
            metric.set(number) if series.is_gauge else metric.increment(number - before)
            self._published[series, label] = number

    def _metric(self, series: Series, label: str) -> Any:
        if (series, label) not in self._metrics:
            labels = {"model": self._model_name} | ({series.label: label} if series.label else {})
            self._metrics[series, label] = self._families[series].Metric(labels=labels)
        return self._metrics[series, label]
